"""The attempt that shall relieve the current one, whose worker wants to let it go.

```
 PleaseMove ─► ROUTING ─► SENT ─► ACCEPTED ─► it reaches as far as ours: it relieves the current one
                  │         │         │
                  └─────────┴─────────┴─► refused, lost, silent, ended: it is dropped as if never issued
```

Until then the current attempt counts, and this one's tokens are looked at for their reach alone. One that has
taken over need not show a token first.
"""

import msgspec

from frontend.requests.actions import Actions, Route
from frontend.requests.attempt import Attempt, Phase
from proto.requests import KvSource
from proto.streams import Frame
from proto.tokens import count_tokens


class Successor(msgspec.Struct, frozen=True):
    """Asked for by `source`, which runs the current attempt."""

    attempt: Attempt
    source: KvSource

    @classmethod
    def issue(cls, number: int, base: int, source: KvSource, now: float) -> "Successor":
        return cls(Attempt(number, base, Phase.ROUTING, now), source)

    def route(self, exclude: tuple[str, ...]) -> Actions:
        without = exclude if self.source.worker in exclude else (*exclude, self.source.worker)
        return (Route(self.attempt.number, self.attempt.base, without, self.source),)

    def hear(self, worker: str, now: float) -> Actions | None:
        """A sign of it from `worker`; None when another one has it."""
        attempt = self.attempt
        if attempt.phase is not Phase.ACCEPTED:
            return attempt.accept(worker, now)
        if attempt.worker != worker:
            return None
        attempt.heard_at = now
        return ()

    def is_overdue(self, now: float, silence_s: float) -> bool:
        attempt = self.attempt
        if attempt.phase is Phase.ACCEPTED:
            return now - attempt.heard_at >= silence_s
        return attempt.phase is Phase.SENT and now >= attempt.due_at


def has_failed(frame: Frame) -> bool:
    """Whether it ends the attempt with anything but an answer."""
    return frame.end is not None and frame.end.finish not in ("stop", "length")


def reaches(frame: Frame, num_tokens: int) -> bool:
    """Whether its worker has what `num_tokens` are, and goes on from there."""
    has_news = bool(frame.tokens) or frame.end is not None or frame.has_taken_over
    return has_news and frame.offset + count_tokens(frame.tokens) >= num_tokens
