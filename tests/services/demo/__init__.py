"""Tests of `services/demo`."""
