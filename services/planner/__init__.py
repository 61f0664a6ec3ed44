"""The planner: which workers prefill and which decode, as the load asks for it.

Read in this order: `rate_match` (what so many workers can take, against what comes) over `step_cost`,
`picture` (what a plan is made on), `step` (whether another split is better) with `plan_rules`, `planning`
(whether somebody should move, and who), `observation` (what is known, from beats alone) over `traffic_meter`,
`flow`, `histogram` and `capability`, `model_planner` (orders, and what becomes of them) with `explanation`,
`election` (which planner gives them), `service`, `metrics`, `settings`, `entry`.

Workers by role are also told as `kvmesh_planner_wanted_workers{model,role}`: what the load wants however many
there are, for an autoscaler; deploy/kubernetes/README.md shows one that follows it.
"""
