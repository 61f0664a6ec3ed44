"""Each worker's small number: its bit in masks of holders, and its place in columns."""

from collections.abc import Iterator


class Slots:
    """Who has which number. A number that was given back serves the next worker, so columns stay short."""

    def __init__(self) -> None:
        self._slots: dict[str, int] = {}
        self._free: list[int] = []
        self.size = 0  # one more than the highest number ever given

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(self._slots.items())

    def allot(self, worker: str) -> int:
        """The number of `worker`, a free one when it has none."""
        slot = self._slots.get(worker)
        if slot is None:
            if self._free:
                slot = self._free.pop()
            else:
                slot, self.size = self.size, self.size + 1
            self._slots[worker] = slot
        return slot

    def give_back(self, worker: str) -> None:
        """Only once nothing is kept under its number any more."""
        slot = self._slots.pop(worker, None)
        if slot is not None:
            self._free.append(slot)
