"""Tests of `services`, a file for each of its files, against real servers and processes."""
