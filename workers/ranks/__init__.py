"""A worker of many ranks: one process each, which compute every step together.

Read in this order: `grid` (which rank holds what of a model), `messages` and `link` (how the leader, which is
the worker's own process, and its followers talk), `crew` (the followers, as their leader sees them),
`follower` (their process), `rank_loading` (how all come to be), `exchange` (what they give each other in
mid-step, until they are `apart`), `stage` (a rank's part of a forward), `ranked_runner` (the leader's
runner), `far_transfers` and `ordered_transfers` (KV that leaves a follower, as its leader and as itself see
it).
"""
