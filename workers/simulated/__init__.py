"""Many workers in one process, whose time is a model's: they compute nothing, and are real in all else.

Read in this order: `entry`, `process` (the life of all), `worker` (one of them), `pacer` (its steps, each at
its time) over `instant_runner`, `wire` (KV from one to another, at a stated speed), `settings`.
"""
