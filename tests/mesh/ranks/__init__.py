"""Two workers of many ranks, cut differently: the tokens of one process, and nothing left of whatever ends.

Reading order: `one_process` (what the tokens must be), `grid_pair` (the two workers), `conftest` (which
pairs), `test_pairs`.
"""
