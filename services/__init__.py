"""The mesh: the runtime every process stands on, and the services with no folder of their own.

Reading order: `settings`, `process`, `logs`; then the two outside worlds, `bus` (NATS: `bus_link` and
`nats_connection` beneath it, `work_queue`, `taker` and `objects` upon it) and `directory` (etcd: `lease`,
`watch`, `etcd`); `liveness`, `presence` and `loop_watch` (who lives, ourselves among them); what an operator
sees, `metrics`, `admin` (with `faults`, the JSON of errors), `tracing`, `status/`, and what one says,
`orders`, `drain`, `role`; what an answer may be, `grammars/`; and what starts it all, `models/`, `child`,
`servers`, `environment`, `launcher/`, `entry`, `cli`.
"""
