"""What one worker of a model can do, learnt from the reports of all of them, in either role."""

from proto.reports import LoadReport
from proto.roles import Role
from services.planner.rate_match import Capability
from services.planner.step_cost import StepFit

KEPT = 0.95
"""What a measurement still weighs after the next one."""
BLOCKS_SHARE = 0.9
"""The share of a pool that running sequences may fill before they get into each other's way."""


class Average:
    """Exponentially weighted; 0 before the first value."""

    def __init__(self) -> None:
        self._weight = self._sum = 0.0

    def note(self, value: float) -> None:
        self._weight = KEPT * self._weight + 1.0
        self._sum = KEPT * self._sum + value

    @property
    def value(self) -> float:
        return self._sum / self._weight if self._weight else 0.0


class CapabilityMeter:
    """One model's. What was measured stays known when nobody has the role any more.

    Of a decode worker the prefill rate counts only while no prefill worker has measured one: its steps decode
    as well.
    """

    def __init__(self) -> None:
        self._prefill_rates = {role: Average() for role in Role}
        self._steps = StepFit()
        self._places = Average()
        self._blocks_each = Average()
        self._total_blocks = Average()

    def hear(self, report: LoadReport, before: LoadReport | None) -> None:
        """`before` is the same life's last report; what it said already is not measured again."""
        if report.prefill_rate and (before is None or report.prefill_rate != before.prefill_rate):
            self._prefill_rates[report.role].note(report.prefill_rate)
        if report.max_sequences:
            self._places.note(report.max_sequences)
        if report.role is Role.DECODE and report.num_running:
            self._hear_decode(report)

    def _hear_decode(self, report: LoadReport) -> None:
        if report.decode_step_s:
            self._steps.note(report.num_running, report.decode_step_s)
        lent = report.granted_blocks + report.quarantined_blocks
        active = report.total_blocks - report.free_blocks - lent
        if active > 0:
            self._total_blocks.note(report.total_blocks)
            self._blocks_each.note(active / (report.num_running + report.num_waiting))

    def capability(self) -> Capability | None:
        """None until both a prefill and a decode step were measured."""
        rate = self._prefill_rates[Role.PREFILL].value or self._prefill_rates[Role.DECODE].value
        step = self._steps.cost()
        if not rate or step is None:
            return None
        return Capability(prefill_rate=rate, step=step, most_sequences=self._most_sequences())

    def _most_sequences(self) -> float:
        most = self._places.value or 1.0
        if self._blocks_each.value:
            most = min(most, BLOCKS_SHARE * self._total_blocks.value / self._blocks_each.value)
        return max(1.0, most)
