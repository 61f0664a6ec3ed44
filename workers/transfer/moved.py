"""What was moved, counted: bytes and seconds of every transfer, and how fast pushes are."""

from services.metrics import WorkerMetrics
from workers.transfer.pace import Pace
from workers.transfer.transfers import Transfer


class MovedCounter:
    """`note` is called where transfers end; `push_pace` may be read anywhere."""

    def __init__(self, metrics: WorkerMetrics) -> None:
        self.push_pace = Pace()
        self._metrics = metrics

    def note(self, transfer: Transfer, took_s: float) -> None:
        """A transfer is done, `took_s` after it was posted."""
        self._metrics.transfer_s.observe(took_s)
        if transfer.operation == "WRITE":
            self._metrics.bytes_pushed.inc(transfer.num_bytes)
            self.push_pace.note(transfer.num_bytes, took_s)
        else:
            self._metrics.bytes_pulled.inc(transfer.num_bytes)
