"""The same answer in every combination: each kind of request, wherever and however it is computed and sent.

Read `rows` (what is asked), `cells` (in which combinations), `recompute` (what the answer must be),
`asking` (what a client sees), `stage` (one cell on one mesh), `checks` (whether it was what it says),
`test_matrix`; then `test_divided` (workers of many ranks, in each of the `tests.mesh.pairings`).
`test_stored_answers` does the same with the default model.

To grow: a new kind of request is a row, with a field in `Asks` and its meaning in `recompute` where it is
new; a new way to compute or to send is a value of an axis in `cells`, with what it does in `stage`; a new way
to divide workers, or to move KV between them, is a pairing.
"""
