"""The client side of a request's life: attempts, frames, resends, moves, and exactly one end.

Reading order: `actions` (what a request asks of the mesh), `attempt`, `successor` (the attempt that relieves
another), `stream_state` (the pure machine of them, within `stream_rules`), `control_line` (what is told to
whom), `stream_hub` (the machine on the bus), `waker` (how a reader waits).
"""
