"""Stored answers of `transformers`, and the scripts that make them again."""
