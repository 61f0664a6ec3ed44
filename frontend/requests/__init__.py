"""The client side of a request's life: attempts, frames, resends, moves, and exactly one end.

Reading order: `actions` (what a request asks of the mesh), `stream_state` (the pure machine), `control_line`
(what is told to whom), `stream_hub` (the machine on the bus), `waker` (how a reader waits).
"""
