"""Benchmarks: scripts that print ratios, each ending in one line of JSON; `python -m tests.perf.NAME`."""
