"""What was moved, counted: bytes and seconds of every transfer, and how fast pushes are."""

from collections import defaultdict

from services.metrics import WorkerMetrics
from workers.transfer.pace import Pace
from workers.transfer.transfers import Transfer


class MovedCounter:
    """`note` is called where transfers end, by one thread for each rank; the rest may be read anywhere."""

    def __init__(self, metrics: WorkerMetrics) -> None:
        self._paces: defaultdict[int, Pace] = defaultdict(Pace)
        self._metrics = metrics

    @property
    def push_bytes_per_s(self) -> float:
        """Of all ranks together, since they push side by side; 0 until measured."""
        return sum(pace.bytes_per_s for pace in list(self._paces.values()))

    def note(self, rank: int, transfer: Transfer, took_s: float) -> None:
        """A transfer of this rank is done, `took_s` after it was posted."""
        self._metrics.transfer_s.observe(took_s)
        if transfer.operation == "WRITE":
            self._metrics.bytes_pushed.inc(transfer.num_bytes)
            self._paces[rank].note(transfer.num_bytes, took_s)
        else:
            self._metrics.bytes_pulled.inc(transfer.num_bytes)
