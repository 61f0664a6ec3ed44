"""The engine: which tokens are computed when, in which blocks, and what comes of it.

Read in this order: `runner` (the contract with what computes), `sequence` and `hash_chain`, `prefix_cache`,
`block_pool` and `block_ledger` (who owns which block), `scheduler` (which tokens next, in which `step`),
`computation` (with `grammar_masks`, over each sequence's `grammar_state`), `outcome` (what a step means),
`freezer`, `books` (all of it together), `engine` (the verbs under a lock, `admission`, `engine_load`,
`rates`), `engine_thread`. Two runners keep the contract: `torch_runner`, which `torch_loading` makes of
`torch_settings` and `host_memory`, and `simulated_runner`.

What becomes of logits: `logit_reading` (rows to results), `draw`, `sampler`, `logit_edits` (what requests
change, with `token_counts` for penalties), `narrowing` (top-k and its like), `logprob_records`.
Torch is in these, in `torch_runner` and in `torch_loading` only.
"""
