"""Tests of `frontend`, a file for each of its files."""
