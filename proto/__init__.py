"""The ground: every value that two processes agree on. Standard library and msgspec, no I/O.

Read in this order: `struct`, `codec`, `errors` (how values travel and fail); `names`, `subjects`, `keys`
(where they travel); `roles`, `cards` (who is there); `constraints`, `requests`, `streams` (a request's way in
and out); `jobs`, `control`, `hand_over` (a prefill elsewhere, the leave to touch memory, a sequence that
moves); `blockhash`, `events`, `reports`, `traffic` (what processes say of themselves); `layout` (how KV lies
in memory); `tokens`, `logprobs` (both as bytes).
"""
