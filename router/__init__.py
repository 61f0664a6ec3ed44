"""The router: which worker, and why. It sees tokens, never text.

Reading order: `slots`, `columns` (how workers are numbered); `block_table`, `holder_sets`, `kv_index`,
`hashed_prompt`, `predictions` (what is where, and what soon will be); `lives`,
`workers_view` (who is there and can be chosen); `hearing`, `event_feed`, `snapshots` (how all this stays
true); `cost`, `policy`, `chooser`, `explaining` (the choice), `hit_metrics` (whether it kept its promise);
`line_pace`, `waiting_room`, `waitlist` (when all are full);
`forwarding`, `intake`, `service` (a request's way through the process); `settings`, `entry` (how it starts).
"""
