"""The engine and its roles.

Read in this order: `entry`, `process` (a worker's life), `settings`, `runners`, `assembly` (how the parts
hang together), `serving` (a worker among others), `bridge` (where the engine's thread meets the loop),
`door` (what comes in), `decode_desk` and `prefill_desk` (which work is taken) with `request_spec`,
`long_prompt`, `decisions`, `early_cancels`, `grammars` and `served`, `roles` (a prefill elsewhere, a
sequence that moves), `transfer` (KV on the move), `memory` (how that is opened), `engine` (steps), `model`
(the transformer), `huge_region` (in which all of their memory lies), `ranks` (many processes that compute
as one). `outbox`, `cache_mirror`, `event_publisher`, `reporter`, `registration` and `role_pages` are what
others see of a worker; `neighbours`, with `control_client` to ask them, what it sees of others,
`acquaintance` and `admittance` whether each knows the other; `client_watch` and `guards` say when work, or
the worker, ends. `simulated` has many workers in one process.
"""
