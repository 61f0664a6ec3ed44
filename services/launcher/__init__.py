"""`kvmesh up`: a whole mesh on one machine, as children of one process.

Reading order: `up_settings` (what may be said), `devices` (where workers run), `plan` (which children, with
which command lines), `child`, `child_log` and `probe` (one child's life), `supervisor` (all of them, kept and
ended), `state` (the folder they share), `narrator` (what people see), `launch` (the mesh being up), `up` (the
whole command).
"""
