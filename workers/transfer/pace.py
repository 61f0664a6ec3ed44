"""How fast KV really moves: bytes a second of one transfer, from those that were made."""

DECAY = 0.9
"""What a past transfer still weighs after the next one: about the last ten count."""


class Pace:
    """Exponentially weighted; 0 until measured. One thread notes, any may read."""

    def __init__(self) -> None:
        self._num_bytes = 0.0
        self._s = 0.0
        self.bytes_per_s = 0.0

    def note(self, num_bytes: int, took_s: float) -> None:
        """A transfer of `num_bytes` is done, `took_s` after it was posted."""
        self._num_bytes = DECAY * self._num_bytes + num_bytes
        self._s = DECAY * self._s + took_s
        if self._s:
            self.bytes_per_s = self._num_bytes / self._s
