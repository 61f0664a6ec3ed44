"""KV on the move: NIXL, and the one thread that drives it.

Read in this order: `transfer_settings` (what an operator may say), `nixl_transport` (the library's border),
`transfer_thread` (who calls it, and when), `peers` (whose memory is reachable), `push` (the writes of one
grant), `pull` (the read under one pin).
"""
