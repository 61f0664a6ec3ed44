"""How fast this engine really is: prefill tokens a second and seconds a decode step, from its own steps."""

DECAY = 0.9
"""What a past step still weighs after the next one: about the last ten steps count."""


class Rates:
    """Exponentially weighted; 0 until measured. A weighted sum over a weighted sum, so that long steps count
    for what they are and a short odd one does not swing the ratio."""

    def __init__(self) -> None:
        self._prefill_tokens = 0.0
        self._prefill_s = 0.0
        self._decode_steps = 0.0
        self._decode_s = 0.0

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens a second, in steps that computed any."""
        return self._prefill_tokens / self._prefill_s if self._prefill_s else 0.0

    @property
    def decode_step_s(self) -> float:
        """Seconds a step, in steps that only decoded."""
        return self._decode_s / self._decode_steps if self._decode_steps else 0.0

    def note_step(self, prefill_tokens: int, step_s: float) -> None:
        """Takes in a step that computed `prefill_tokens` tokens of prompts, none when it only decoded."""
        if prefill_tokens:
            self._prefill_tokens = DECAY * self._prefill_tokens + prefill_tokens
            self._prefill_s = DECAY * self._prefill_s + step_s
        else:
            self._decode_steps = DECAY * self._decode_steps + 1
            self._decode_s = DECAY * self._decode_s + step_s
