"""KV on the move: NIXL, and the one thread that drives it.

Read in this order: `copy_plan` (which bytes go where), `rank_routes` (from which rank to which), `transfers`
(the contract of what moves them), `transfer_settings` (what an operator may say), `nixl_agent` (the library's
border), `kv_transport` (the contract of what the transfer thread drives) and `looks` (how often),
`shared_post` (what two share), `hand` (one of them) and `second_hand` (the one with a thread of its own, on
another of the `cores`), `nixl_line` (the two over one pool), `nixl_transport` (another line where one is
stuck), `post` (what leaves together), `transfer_thread` (who calls it, and when), `outcome` (what came of
it), `own_memory` (the ranks of a worker), `agents` (the way to every memory) and `peers` (those met), `push`
(the writes of one grant) and `pull` (the read under one pin), `pace` and `moved` (how fast it all really
moves, and how much). Where a pool is hidden: `strategy` (whether it is), `staging` (what stands in its
place), `own_copies` and `device_copies` (between the two), `bounce` and `staged_transport` (what is posted
here), `carrier` (what has landed), `opened_rank` (all of it together).
"""
