"""The mesh: the runtime every process stands on, and the services with no folder of their own.

Reading order: `settings`, `process`, `logs`, then the two outside worlds, `bus` (NATS) and `directory` (etcd:
`lease`, `watch`, `etcd`), then what an operator sees, `metrics`, `admin`, and what starts it all, `child`,
`servers`, `environment`, `launcher`, and the command line.
"""
