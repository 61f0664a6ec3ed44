"""One request of a replay as its client saw it."""

from array import array

import msgspec


class Reading(msgspec.Struct):
    """Filled while the answer comes. `error` is empty for a whole answer; `worker` and `prefill` where the
    server tells them.

    Units: seconds on the monotonic clock (uvloop's own counts whole milliseconds): `due_s` when the trace has
    it, `first_s` and `last_s` the first and the last event with text; `gaps_s` between such events; `num_x`
    tokens.
    """

    due_s: float
    sent_s: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0
    ended_s: float = 0.0
    gaps_s: "array[float]" = msgspec.field(default_factory=lambda: array("f"))
    num_prompt: int = 0
    num_out: int = 0
    num_cached: int = 0
    worker: str = ""
    prefill: str = ""
    finish: str = ""
    error: str = ""

    @property
    def ttft_s(self) -> float:
        """From when it was due, not from when it was sent: a client that is late hides no wait."""
        return self.first_s - self.due_s

    @property
    def mean_itl_s(self) -> float:
        """Between the tokens of this answer; 0 for an answer of one token."""
        return (self.last_s - self.first_s) / (self.num_out - 1) if self.num_out > 1 else 0.0

    def take_text(self, now_s: float) -> None:
        """An event with text has come."""
        if self.first_s:
            self.gaps_s.append(now_s - self.last_s)
        else:
            self.first_s = now_s
        self.last_s = now_s
