"""Every setting of the planner, with its unit and its default."""

import re
from typing import Annotated

import msgspec
from msgspec import Meta

from services.admin import AdminSettings
from services.bus import BusSettings
from services.directory import DirectorySettings
from services.liveness import BeatSettings
from services.logs import LogSettings
from services.mesh_settings import MeshSettings
from services.planner.observation import ObservationRules
from services.planner.plan_rules import PlanRules
from services.planner.rate_match import Limits, Split
from services.planner.traffic_meter import MeterRules

_MODEL_LIMITS = re.compile(r"(?P<model>.+)=(?P<ttft_s>\d*\.?\d+):(?P<itl_s>\d*\.?\d+)")


class PlannerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table `[planner]`, and the tables that it shares."""

    mesh: MeshSettings = MeshSettings()
    bus: BusSettings = BusSettings()
    directory: DirectorySettings = msgspec.field(default_factory=DirectorySettings)
    logs: LogSettings = LogSettings()
    admin: AdminSettings = AdminSettings()

    dry_run: Annotated[bool, Meta(description="plan, log and count, but order nothing")] = False
    ttft_s: Annotated[float, Meta(description="seconds that a first token may take", gt=0)] = 2.0
    itl_s: Annotated[float, Meta(description="seconds that each later token may take", gt=0)] = 0.1
    limits: Annotated[
        list[str], Meta(description="other limits for some models: model=ttft_s:itl_s, as org/m=1.5:0.05")
    ] = msgspec.field(default_factory=list)
    quantile: Annotated[
        float, Meta(description="share of the tokens for which the limits shall hold", ge=0.5, lt=1)
    ] = 0.9
    max_busy: Annotated[
        float, Meta(description="share of its time that a worker is planned to compute", gt=0, lt=1)
    ] = 0.9
    min_prefill: Annotated[int, Meta(description="prefill workers that a model keeps at least", ge=0)] = 1
    min_decode: Annotated[int, Meta(description="decode workers that a model keeps at least", ge=1)] = 1
    period_s: Annotated[
        float,
        Meta(
            description="seconds over which latencies and sizes of requests are looked at; "
            "within two such periods a change of the load is answered",
            gt=0,
        ),
    ] = 10.0
    look_s: Annotated[float, Meta(description="seconds between two looks at all reports", gt=0)] = 0.5
    memory_s: Annotated[
        float, Meta(description="seconds after which what came before counts a third of what comes", gt=0)
    ] = 15.0
    ahead_s: Annotated[float, Meta(description="seconds that the trend of the load is drawn on", ge=0)] = 5.0
    catch_up_s: Annotated[
        float, Meta(description="seconds in which what waits too long already shall be worked off", gt=0)
    ] = 20.0
    short_below: Annotated[
        float, Meta(description="capacity over load under which a role is short of workers", ge=1)
    ] = 1.1
    relief_above: Annotated[
        float, Meta(description="capacity over load above which a move on its way is taken back", ge=1)
    ] = 1.6
    least_gain: Annotated[
        float, Meta(description="share by which a move must better the role that is worst off", gt=0)
    ] = 0.15
    confirm_s: Annotated[
        float, Meta(description="seconds that a move must have been right before the first is made", ge=0)
    ] = 2.0
    pause_s: Annotated[float, Meta(description="seconds from a move's end to the next one", ge=0)] = 0.5
    cool_down_s: Annotated[
        float, Meta(description="seconds from a move's end to one the other way", ge=0)
    ] = 30.0
    min_stay_s: Annotated[
        float, Meta(description="seconds that a worker keeps a role at least, as far as is known", ge=0)
    ] = 20.0
    retry_s: Annotated[
        float, Meta(description="seconds that a worker is left alone after a failed move; doubling", ge=0)
    ] = 30.0
    speed_up: Annotated[
        float,
        Meta(description="all seconds above are divided by it, for workers of simulated time", gt=0, le=1000),
    ] = 1.0
    stale_beats: Annotated[
        float, Meta(description="times mesh.beat_s without a report after which nothing is moved", ge=2)
    ] = 2.5
    let_go_s: Annotated[
        float, Meta(description="seconds that a worker's old work may take to let go in a move", gt=0)
    ] = 30.0

    def __post_init__(self) -> None:
        models = [_read_limits(entry)[0] for entry in self.limits]
        if len(set(models)) < len(models):
            raise ValueError("limits: a model is there twice")
        if self.relief_above <= self.short_below:
            raise ValueError("relief_above must be over short_below, or each move is taken back")

    def limits_of(self, model: str) -> Limits:
        """What clients of this model shall feel at most."""
        by_model = {name: (ttft_s, itl_s) for name, ttft_s, itl_s in map(_read_limits, self.limits)}
        ttft_s, itl_s = by_model.get(model, (self.ttft_s, self.itl_s))
        speed_up = self.speed_up
        return Limits(ttft_s / speed_up, itl_s / speed_up, self.quantile, self.max_busy)

    @property
    def floor(self) -> Split:
        return Split(self.min_prefill, self.min_decode)

    @property
    def plan_rules(self) -> PlanRules:
        speed_up = self.speed_up
        return PlanRules(
            floor=self.floor,
            short_below=self.short_below,
            relief_above=self.relief_above,
            least_gain=self.least_gain,
            memory_s=self.memory_s / speed_up,
            confirm_s=self.confirm_s / speed_up,
            min_stay_s=self.min_stay_s / speed_up,
            cool_down_s=self.cool_down_s / speed_up,
            pause_s=self.pause_s / speed_up,
            retry_s=self.retry_s / speed_up,
        )

    @property
    def observation_rules(self) -> ObservationRules:
        speed_up = self.speed_up
        meter = MeterRules(
            memory_s=self.memory_s / speed_up,
            window_s=self.period_s / speed_up,
            ahead_s=self.ahead_s / speed_up,
            quantile=self.quantile,
        )
        return ObservationRules(
            meter, self.limits_of, self.stale_beats * self.mesh.beat_s, self.catch_up_s / speed_up
        )

    @property
    def beats(self) -> BeatSettings:
        return BeatSettings(interval_s=self.mesh.beat_s, lost_after_s=self.mesh.lost_after_s)


def _read_limits(entry: str) -> tuple[str, float, float]:
    """A model, and its limits of TTFT and ITL in seconds."""
    found = _MODEL_LIMITS.fullmatch(entry)
    ttft_s, itl_s = (float(found["ttft_s"]), float(found["itl_s"])) if found is not None else (0.0, 0.0)
    if found is None or not (ttft_s > 0 and itl_s > 0):
        raise ValueError(f"limits: {entry!r} is not model=ttft_s:itl_s, both over 0")
    return found["model"], ttft_s, itl_s
