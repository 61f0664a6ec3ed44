"""The owner's table of pins: leave to read blocks, for a time.

A pin ends when its reader says so or when its time is over; a reader that was too slow learns so from
`Unpinned.was_held` and throws away what it read.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HeldPin:
    """`sequence` is whose KV it is; empty for what lies in the cache. `lent` are the blocks that the reader
    was told of, in place of `blocks` of the pool.

    Units: `until_s` and `began_s` on the table's monotonic clock.
    """

    pin: str
    reader: str
    blocks: list[int]
    lent: list[int]
    began_s: float
    until_s: float
    sequence: str = ""


@dataclass(slots=True)
class PinTable:
    now_s: Callable[[], float] = time.monotonic
    _by_id: dict[str, HeldPin] = field(default_factory=dict)

    def add(
        self, pin: str, reader: str, blocks: list[int], lent: list[int], ttl_s: float, sequence: str = ""
    ) -> None:
        now_s = self.now_s()
        self._by_id[pin] = HeldPin(pin, reader, blocks, lent, now_s, now_s + ttl_s, sequence)

    def find(self, pin: str) -> HeldPin | None:
        return self._by_id.get(pin)

    def take(self, pin: str) -> HeldPin | None:
        """End a pin; None when it had ended, by itself or before."""
        return self._by_id.pop(pin, None)

    def take_expired(self) -> list[HeldPin]:
        """End every pin whose time is over."""
        now_s = self.now_s()
        over = [held for held in self._by_id.values() if held.until_s <= now_s]
        for held in over:
            del self._by_id[held.pin]
        return over

    def __len__(self) -> int:
        return len(self._by_id)

    def all(self) -> list[HeldPin]:
        return list(self._by_id.values())
