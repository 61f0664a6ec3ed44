"""The mesh: the runtime every process stands on, and the services with no folder of their own.

Reading order: `settings` (with `mesh_settings`, `settings_file`, `settings_flags`), `process`, `tasks`,
`niceness`, `logs`; then the two outside worlds, `bus` (NATS: `bus_link` and `nats_connection` beneath it;
upon it `micro`, `objects`, and with `jetstream` also `work_queue` and `taker`) and `directory` (etcd:
`lease`, `renewals`, `watch`, `etcd`), both with `backoff`; `liveness`, `presence` and `loop_watch` (who
lives, ourselves among them); what an operator sees, `metrics`, `admin` (on an `http_server`, with `faults`,
the JSON of errors), `tracing`, `status`, `route`, and what one says, by `worker_ask` or in the directory:
`orders`, `drain`, `role`; who says it by itself, the `planner`; what an answer may be, `grammars`; what
starts it all, `models`, `child`, `asked_child` with `pipe_messages`, `servers` with `etcd_endpoint`,
`environment`, `launcher`, `entry`, `cli` (whose commands use `console` and `patience`); and what it is shown
and measured by, `demo` and `replay`.
"""
