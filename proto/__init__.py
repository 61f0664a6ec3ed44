"""The ground: every value that two processes agree on. Standard library and msgspec, no I/O.

Read in this order: `struct`, `codec`, `errors` (how values travel and fail); `names`, `subjects`, `keys`
(where they travel); `roles`, `cards` (who is there); `constraints`, `requests`, `streams` (a request's way in
and out);
`jobs`, `control` (a prefill elsewhere, and the leave to touch memory); `blockhash`, `events`, `reports`
(what workers say of themselves); `layout` (how KV lies in memory); `tokens` (ids as bytes).
"""
