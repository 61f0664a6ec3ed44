"""Tests of the engine: its bookkeeping against naive twins, its runner on tiny models."""
