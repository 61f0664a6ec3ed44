"""Tests of workers of many ranks."""
