"""The mesh as beats and orders tell of it: what a plan is made on. Fed by its owner, who has the clock."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from proto.reports import AnyBeat, Beat, LoadReport
from proto.roles import Order, Role, WorkerState
from services.planner.capability import CapabilityMeter
from services.planner.picture import Move, Picture, UnderWay, WorkerSeen
from services.planner.rate_match import Limits, Load, Match
from services.planner.traffic_meter import MeterRules, Traffic, TrafficMeter

PLANNER = "planner"
"""By whom a planner's orders are placed; any planner's."""
FULL_SHARE = 0.9
"""Decode workers are full from this share of their places on."""


class ObservationRules(msgspec.Struct, frozen=True):
    """Units: seconds; a report older than `stale_after_s` is missed, and what waits shall be gone in
    `catch_up_s`. `limits` of a model by its name."""

    meter: MeterRules
    limits: Callable[[str], Limits]
    stale_after_s: float
    catch_up_s: float


class _Heard(msgspec.Struct):
    """A worker's last report, and since when it has the role in it. Units: seconds on the owner's clock."""

    report: LoadReport
    heard_s: float
    since_s: float


class _Model:
    def __init__(self, rules: MeterRules) -> None:
        self.meter = TrafficMeter(rules)
        self.capability = CapabilityMeter()


class Observation:
    """What is known. Belongs to one event loop."""

    def __init__(self, rules: ObservationRules) -> None:
        self._rules = rules
        self._workers: dict[str, _Heard] = {}
        self._frontends: dict[str, float] = {}
        self._models: dict[str, _Model] = {}
        self._orders: Mapping[str, Order] = {}

    def hear(self, process: str, beat: AnyBeat, now_s: float) -> None:
        if isinstance(beat, LoadReport):
            self._hear_worker(beat, now_s)
        elif beat.kind == "frontend":
            self._hear_frontend(process, beat, now_s)

    def lose(self, process: str) -> None:
        """It beats no more."""
        self._workers.pop(process, None)
        if self._frontends.pop(process, None) is not None:
            for model in self._models.values():
                model.meter.forget(process)

    def note_orders(self, orders: Mapping[str, Order]) -> None:
        """All that there are now, by worker."""
        self._orders = orders

    def _hear_worker(self, report: LoadReport, now_s: float) -> None:
        heard = self._workers.get(report.worker)
        before = (
            heard.report if heard is not None and heard.report.incarnation == report.incarnation else None
        )
        is_same_term = before is not None and (before.role, before.epoch) == (report.role, report.epoch)
        since_s = heard.since_s if heard is not None and is_same_term else now_s
        self._workers[report.worker] = _Heard(report, now_s, since_s)
        self._model(report.model).capability.hear(report, before)

    def _hear_frontend(self, process: str, beat: Beat, now_s: float) -> None:
        if beat.is_leaving:
            self.lose(process)
            return
        self._frontends[process] = now_s
        for traffic in beat.traffic:
            self._model(traffic.model).meter.hear(process, traffic)

    def _model(self, name: str) -> _Model:
        model = self._models.get(name)
        if model is None:
            model = self._models[name] = _Model(self._rules.meter)
        return model

    def forget_latencies(self, model: str) -> None:
        """The split has changed: what was felt before says nothing any more."""
        self._model(model).meter.forget_latencies()

    def reports(self) -> dict[str, LoadReport]:
        """The last of each worker that lives."""
        return {worker: heard.report for worker, heard in self._workers.items()}

    def look(self, now_s: float) -> dict[str, Picture]:
        """Every model that somebody serves. What came since the last look is measured now, unless a frontend
        is not heard: then it is later, over the whole time."""
        served = {heard.report.model for heard in self._workers.values()}
        self._models = {name: model for name, model in self._models.items() if name in served}
        silent = self._silence_of(self._frontends.items(), now_s)
        if not silent:
            for model in self._models.values():
                model.meter.measure(now_s)
        if not self._frontends:
            silent = "no frontend is heard"
        return {name: self._picture(name, silent, now_s) for name in sorted(served)}

    def _silence_of(self, heard_s: Iterable[tuple[str, float]], now_s: float) -> str:
        late = sorted(name for name, at_s in heard_s if now_s - at_s > self._rules.stale_after_s)
        return f"no fresh report of {late[0]}" if late else ""

    def _picture(self, name: str, silent: str, now_s: float) -> Picture:
        all_heard = [heard for heard in self._workers.values() if heard.report.model == name]
        silent = silent or self._silence_of(((each.report.worker, each.heard_s) for each in all_heard), now_s)
        traffic = self._models[name].meter.traffic()
        return Picture(
            workers=[self._seen(each) for each in all_heard if self._is_steady(each.report)],
            under_way=[way for each in all_heard if (way := self._under_way(each.report)) is not None],
            match=self._match(name, traffic, [each.report for each in all_heard]),
            noise=traffic.noise,
            ttft_s=traffic.ttft_s,
            itl_s=traffic.itl_s,
            obstacle=silent,
        )

    def _seen(self, heard: _Heard) -> WorkerSeen:
        report = heard.report
        is_decode = report.role is Role.DECODE
        num_in_hand = report.num_running + report.num_waiting if is_decode else report.num_jobs
        return WorkerSeen(report.worker, report.role, heard.since_s, num_in_hand)

    def _is_steady(self, report: LoadReport) -> bool:
        return report.state is WorkerState.READY and self._under_way(report) is None

    def _under_way(self, report: LoadReport) -> UnderWay | None:
        order = self._orders.get(report.worker)
        if order is None or order.epoch <= report.epoch or report.state is WorkerState.LEAVING:
            return None
        return UnderWay(Move(report.worker, order.role), is_ours=order.placed_by == PLANNER)

    def _match(self, name: str, traffic: Traffic, reports: list[LoadReport]) -> Match | None:
        capability = self._models[name].capability.capability()
        if capability is None:
            return None
        limits = self._rules.limits(name)
        backlog = find_backlog(traffic, reports, limits)
        load = Load(
            prompt_rate=traffic.prompt_rate + backlog.prompt_tokens / self._rules.catch_up_s,
            output_rate=traffic.output_rate + backlog.output_tokens / self._rules.catch_up_s,
            prompt_tokens=traffic.prompt_tokens,
        )
        return Match(load, capability, limits)


class Backlog(msgspec.Struct, frozen=True):
    """Units: tokens that are to be computed beside those that come."""

    prompt_tokens: float
    output_tokens: float


def find_backlog(traffic: Traffic, reports: Sequence[LoadReport], limits: Limits) -> Backlog:
    """What waits beyond what the TTFT limit allows. It waits for prefill, unless decode workers are full:
    then only what workers report does, and all others wait for a place."""
    decoding = [each for each in reports if each.role is Role.DECODE and each.state is WorkerState.READY]
    places = sum(each.max_sequences for each in decoding)
    is_full = places > 0 and sum(each.num_running for each in decoding) >= FULL_SHARE * places
    waiting_tokens = traffic.waiting_tokens
    output_tokens = 0.0
    if is_full:
        waiting_tokens = min(waiting_tokens, sum(each.waiting_tokens + each.job_tokens for each in reports))
        num_prefilling = waiting_tokens / traffic.prompt_tokens if traffic.prompt_tokens else 0.0
        output_tokens = max(0.0, traffic.num_waiting - num_prefilling) * traffic.answer_tokens
    allowed = traffic.prompt_rate * limits.ttft_s
    return Backlog(prompt_tokens=max(0.0, waiting_tokens - allowed), output_tokens=output_tokens)
