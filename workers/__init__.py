"""The engine and its roles.

Read in this order: `process` (a worker's life), `settings`, `assembly` (how the parts hang together),
`bridge` (where the engine's thread meets the loop), `door` (what comes in), `decode_desk` and `prefill_desk`
(which work is taken) with `request_spec`, `grammars` and `served`, `roles/` (a prefill elsewhere, a sequence
that moves), `transfer/` (KV on the move), `engine/` (steps), `model/` (the transformer). `outbox`,
`cache_mirror`, `event_publisher`, `reporter`, `registration` and `role_pages` are what others see of a
worker; `client_watch` and `guards` say when work, or the worker, ends.
"""
