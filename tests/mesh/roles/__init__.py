"""Workers change their roles under load, while all else may die: no client can tell.

Read `switching` (who orders), `mixture` (who asks, and what it must be told), `test_flips`. What dies in
mid-switch is in `tests/mesh/deaths`.
"""
