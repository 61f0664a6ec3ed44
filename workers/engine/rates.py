"""How fast this engine really is, from its own steps: prompt tokens a second, seconds from token to token."""

from services.planner.step_cost import StepCost, StepFit

DECAY = 0.9
"""What a past step still weighs after the next one: about the last ten steps count."""
STALL = 3.0
"""A step counts as no longer than so many times what it should take, when it is asked what a token costs: one
that stood still would say that its few drafts cost all of it."""


class Rates:
    """Exponentially weighted; 0 until measured. A weighted sum over a weighted sum, so that long steps count
    for what they are and a short odd one does not swing the ratio."""

    def __init__(self) -> None:
        self._prefill_tokens = 0.0
        self._prefill_s = 0.0
        self._decode_tokens = 0.0
        self._decode_s = 0.0
        self._decode_fit = StepFit()

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens a second, in steps that computed any."""
        return self._prefill_tokens / self._prefill_s if self._prefill_s else 0.0

    @property
    def decode_step_s(self) -> float:
        """Seconds from a sequence's token to its next, in steps that only decoded."""
        return self._decode_s / self._decode_tokens if self._decode_tokens else 0.0

    @property
    def decode_cost(self) -> StepCost | None:
        """What a step that only decodes costs, by the tokens that it computes; None until measured."""
        return self._decode_fit.cost()

    def note_prefill(self, num_tokens: int, step_s: float) -> None:
        """Takes in a step that computed so many tokens of prompts, whatever else."""
        self._prefill_tokens = DECAY * self._prefill_tokens + num_tokens
        self._prefill_s = DECAY * self._prefill_s + step_s

    def note_decode(self, num_tokens: int, num_given: float, step_s: float) -> None:
        """Takes in a step that only decoded: it computed so many tokens, drafts among them, and gave each
        sequence so many in the mean."""
        self._decode_tokens = DECAY * self._decode_tokens + num_given
        self._decode_s = DECAY * self._decode_s + step_s
        known = self.decode_cost
        self._decode_fit.note(
            num_tokens, step_s if known is None else min(step_s, STALL * known.step_s(num_tokens))
        )
