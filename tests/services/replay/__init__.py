"""Traces that are made, read and played, and what is shown of them."""
