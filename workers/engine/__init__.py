"""The engine: which tokens are computed when, in which blocks, and what comes of it.

Read in this order: `engine_settings`, `runner` (the contract with what computes), `sequence` and
`hash_chain`, `prefix_cache`, `block_pool` and `block_ledger` (who owns which block), `scheduler` (which
tokens next, in which `step`; with `speculation` also such as may come: each sequence's `guesses`, by a
`drafter` such as `ngram_drafter`), `computation` (with `grammar_masks`, over each sequence's
`grammar_state`), `outcome` (what a step means), `freezer`, `books` (all of it together), `engine` (the verbs
under a lock, `admission`, `engine_load`, `rates`), `engine_thread`. Two runners keep the contract:
`torch_runner` over a `paged_decoder`, which `torch_loading` makes of `torch_settings`, `host_memory` and a
`pool_tensor`, and `simulated_runner`, whose time and tokens `simulated_model` has.

What becomes of logits: `logit_reading` (rows to results), `draw`, `sampler`, `logit_edits` (what requests
change, with `token_counts` for penalties), `narrowing` (top-k and its like), `logprob_records`.
Torch is in these, and in what `torch_runner` is made of.
"""
