"""A prefill elsewhere, from both ends, and the leaves to touch memory that it takes.

The owner's side: `prefill_choice` (here or elsewhere, with `trips`), `prefill_view` (who could take a job),
`owned_job` (one job), `remote_prefill` (its life), `lender` (who may touch blocks here) with `grants`, `pins`
and `lent_blocks`, `patrol` and `proof` (when a writer is gone for certain). The holder's side: `held_job`
(from a job taken to its landing) and `held_grants` (what may be written). A sequence that moves: `hand_over`
(the verb), `hand_over_giver` and `hand_over_taker` (its two sides); `pinned_reads` serve both kinds of pull;
`drainer` takes an operator's word. `term` says which role a worker has, and in which epoch; `role_switch`
changes it: on an order that `order_watch` has seen, once `letting_go` is done and `standing`, a worker as the
others see it, may have it so.
"""
