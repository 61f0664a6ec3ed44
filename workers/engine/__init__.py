"""The engine: which tokens are computed when, in which blocks, and what comes of it.

Read in this order: `runner` (the contract with what computes), `sequence` and `hash_chain`, `prefix_cache`,
`block_pool` and `block_ledger` (who owns which block), `scheduler` (which tokens next, in which `step`),
`computation`, `outcome` (what a step means), `freezer`, `engine` (the verbs, `admission`, `engine_load`,
`rates`), `engine_thread`. Two runners keep the contract: `torch_runner` with its `sampler`, and
`simulated_runner`.
Torch is in those first two files only.
"""
