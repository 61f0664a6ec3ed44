"""The pause between two tries: doubling, with jitter, never over its bound."""

import random


class Backoff:
    """`next_s()` grows from `first_s` to `most_s`; `reset()` after a success."""

    def __init__(self, first_s: float = 0.05, most_s: float = 0.5) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._pause_s = first_s

    def reset(self) -> None:
        self._pause_s = self._first_s

    def next_s(self) -> float:
        """Between half the pause and all of it, so that many who lost one peer do not return at once."""
        pause_s = self._pause_s
        self._pause_s = min(2 * pause_s, self._most_s)
        return pause_s * random.uniform(0.5, 1.0)
