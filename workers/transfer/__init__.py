"""KV on the move: NIXL, and the one thread that drives it.

Read in this order: `copy_plan` (which bytes go where), `transfers` (the contract of what moves them),
`transfer_settings` (what an operator may say), `nixl_transport` (the library's border), `post` (what leaves
together), `transfer_thread` (who calls it, and when), `agents` (the way to every memory) and `peers` (those
met), `push` (the writes of one grant), `pull` (the read under one pin), `pace` and `moved` (how fast it all
really moves, and how much).
"""
