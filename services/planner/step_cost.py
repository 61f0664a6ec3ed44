"""What a decode step costs: so much, and so much more for each sequence in it, fitted to what workers report.

Least squares over the reports, the older the less. While all of them tell of much the same batch nothing says
how the cost divides; then half of it is taken to be the sequences'.
"""

import msgspec

KEPT = 0.995
"""What a report still weighs after the next one: about the last two hundred count."""
PRIOR_WEIGHT = 0.02
"""How firmly half is believed in, against reports whose batches vary by their whole mean."""
LEAST_SHARE = 0.02
"""A sequence costs at least this share of what it would if sequences were all that costs."""


class StepCost(msgspec.Struct, frozen=True):
    """Units: seconds; `sequence_s` for each sequence that decodes in the step."""

    base_s: float
    sequence_s: float

    def step_s(self, num_sequences: float) -> float:
        return self.base_s + self.sequence_s * num_sequences

    def most_sequences(self, limit_s: float) -> float:
        """How many a step of `limit_s` may have; at least one, which is served however long it takes."""
        return max(1.0, (limit_s - self.base_s) / self.sequence_s)


class StepFit:
    """Sums over what was reported. Units: sequences and seconds."""

    def __init__(self) -> None:
        self._weight = self._num = self._s = self._num_num = self._num_s = 0.0

    def note(self, num_sequences: int, step_s: float) -> None:
        """A worker that decodes so many says that its steps take so long."""
        self._weight = KEPT * self._weight + 1.0
        self._num = KEPT * self._num + num_sequences
        self._s = KEPT * self._s + step_s
        self._num_num = KEPT * self._num_num + num_sequences * num_sequences
        self._num_s = KEPT * self._num_s + num_sequences * step_s

    def cost(self) -> StepCost | None:
        """None before the first report."""
        if not self._weight:
            return None
        mean_num, mean_s = self._num / self._weight, self._s / self._weight
        variance = self._num_num / self._weight - mean_num**2
        covariance = self._num_s / self._weight - mean_num * mean_s
        prior = PRIOR_WEIGHT * mean_num**2
        whole_s = mean_s / mean_num  # what a sequence would cost if there were nothing else
        fitted_s = (covariance + prior * whole_s / 2) / (variance + prior)
        sequence_s = min(whole_s, max(LEAST_SHARE * whole_s, fitted_s))
        return StepCost(base_s=mean_s - sequence_s * mean_num, sequence_s=sequence_s)
