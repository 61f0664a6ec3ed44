"""Two workers of many ranks, cut differently: nothing is left of what is cancelled, moves or ends, and what
goes on has the tokens of one process. That all else has them, too, is for `tests.mesh.equality`.

Reading order: `one_process` (what the tokens must be), `grid_pair` (the two workers), `conftest` (which
pairs, and how they end), `test_pairs`.
"""
