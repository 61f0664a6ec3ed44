"""The engine and its roles.

Read in this order: `process` (a worker's life), `settings`, `bridge` (where the engine's thread meets the
loop), `decode_desk` and `prefill_desk` (which work is taken), `roles/` (a prefill elsewhere, from both ends),
`transfer/` (KV on the move), `engine/` (steps), `model/` (the transformer); `outbox`, `event_publisher`,
`reporter`, `control` and `registration` are what others see of a worker.
"""
