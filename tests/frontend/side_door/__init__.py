"""Tests of the side door."""
