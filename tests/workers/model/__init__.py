"""Tests of the transformer, against `transformers` on tiny checkpoints of every family."""
