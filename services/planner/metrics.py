"""What a planner sees, wants and does, as metrics: by model, and mostly by role."""

from typing import Literal

from proto.roles import Role
from services.metrics import DURATION_BUCKETS_S, Metrics
from services.planner.picture import Move, Picture
from services.planner.rate_match import Split

Outcome = Literal["done", "taken_back", "failed", "lost", "refused", "dry_run"]
"""How a move ended: refused ones were never on their way, and those of a dry run were only thought of."""


class PlannerMetrics:
    """`wanted_workers` is for an autoscaler: every planner says it, whether it leads or not."""

    def __init__(self, metrics: Metrics) -> None:
        by_role, by_what = ("model", "role"), ("model", "what")
        self.leads = metrics.gauge(
            "planner_leads", "1 for the planner that gives orders, 0 for one that stands by"
        )
        self._wanted = metrics.gauge(
            "planner_wanted_workers", "workers that the load wants, however many there are", by_role
        )
        self._split = metrics.gauge(
            "planner_split", "workers by role: as they are, or best for the load", ("model", "role", "which")
        )
        self._is_blind = metrics.gauge(
            "planner_blind", "1 while a report is missing and nothing is moved", ("model",)
        )
        self._headroom = metrics.gauge(
            "planner_headroom_ratio", "capacity within the limits over load", by_role
        )
        self._load = metrics.gauge(
            "planner_load_tokens_per_second", "tokens that are to be computed", by_what
        )
        self._latency_s = metrics.gauge("planner_latency_seconds", "what clients feel; 0: unknown", by_what)
        self._limit_s = metrics.gauge("planner_limit_seconds", "what clients shall feel at most", by_what)
        self._moves = metrics.counter(
            "planner_moves_total", "changes of a worker's role, by how they ended", ("model", "to", "outcome")
        )
        self._move_s = metrics.histogram(
            "planner_move_seconds", "from an order to the new role", DURATION_BUCKETS_S, ("to",)
        )

    def show_picture(self, model: str, picture: Picture) -> None:
        self._set_split(model, "present", picture.split)
        self._is_blind.labels(model).set(bool(picture.obstacle))
        self._latency_s.labels(model, "ttft").set(picture.ttft_s)
        self._latency_s.labels(model, "itl").set(picture.itl_s)
        match = picture.match
        if match is None:
            return
        self._limit_s.labels(model, "ttft").set(match.limits.ttft_s)
        self._limit_s.labels(model, "itl").set(match.limits.itl_s)
        self._load.labels(model, "prompt").set(match.load.prompt_rate)
        self._load.labels(model, "output").set(match.load.output_rate)
        headroom = match.headroom(picture.split)
        self._headroom.labels(model, Role.PREFILL).set(headroom.prefill)
        self._headroom.labels(model, Role.DECODE).set(headroom.decode)

    def show_plan(self, model: str, best: Split | None, wanted: Split | None) -> None:
        if best is not None:
            self._set_split(model, "best", best)
        if wanted is not None:
            self._wanted.labels(model, Role.PREFILL).set(wanted.prefill)
            self._wanted.labels(model, Role.DECODE).set(wanted.decode)

    def _set_split(self, model: str, which: Literal["present", "best"], split: Split) -> None:
        self._split.labels(model, Role.PREFILL, which).set(split.prefill)
        self._split.labels(model, Role.DECODE, which).set(split.decode)

    def moved(self, model: str, move: Move, outcome: Outcome, took_s: float) -> None:
        self._moves.labels(model, move.to, outcome).inc()
        if outcome == "done":
            self._move_s.labels(move.to).observe(took_s)
