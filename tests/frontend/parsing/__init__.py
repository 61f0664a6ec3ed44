"""Tests of frontend/parsing."""
