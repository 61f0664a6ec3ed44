"""Tests of `workers`: tiny models with random weights for logic, real processes for what moves KV."""
