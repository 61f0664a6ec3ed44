"""What many ranks move is counted together, and their paces add up, since they move side by side."""

import numpy as np
import pytest

from services.metrics import Metrics, WorkerMetrics
from workers.transfer.copy_plan import Copies
from workers.transfer.moved import MovedCounter
from workers.transfer.transfers import Operation, Transfer


def transfer(operation: Operation, num_bytes: int) -> Transfer:
    copies = Copies(np.array([[0, 0, num_bytes]], dtype=np.uint64))
    return Transfer(operation, "agent", copies, "cpu", lambda: True, lambda: None, lambda fault: None)


def test_the_pace_of_a_worker_is_that_of_its_ranks_together() -> None:
    metrics = Metrics("worker", "w")
    moved = MovedCounter(WorkerMetrics(metrics))
    assert moved.push_bytes_per_s == 0
    for rank, took_s in ((0, 1.0), (1, 0.5), (0, 1.0)):
        moved.note(rank, transfer("WRITE", 100), took_s)
    moved.note(1, transfer("READ", 40), 0.1)
    assert moved.push_bytes_per_s == pytest.approx(100 + 200)
    assert metrics.registry.get_sample_value("kvmesh_kv_bytes_pushed_total") == 300
    assert metrics.registry.get_sample_value("kvmesh_kv_bytes_pulled_total") == 40
