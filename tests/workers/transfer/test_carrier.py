"""Copies between a pool and its staging: told of in order, and told of when the device hangs in one."""

import asyncio
import threading

import numpy as np

from proto.errors import InternalFault, KvmeshError
from tests.services.waiting import wait_for
from workers.transfer.carrier import Carrier
from workers.transfer.copy_plan import Copies

NOTHING = Copies(np.empty((0, 3), dtype=np.uint64))


class StoppedDevice:
    """Copies nothing until it is let go."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def copy(self, _: Copies) -> None:
        self.go_on.wait()


def test_a_copy_that_hangs_is_an_ailment_until_it_ends_and_keeps_nobody_from_ending() -> None:
    device, ended = StoppedDevice(), threading.Event()

    def on_done(fault: KvmeshError | None) -> None:
        assert fault is None
        ended.set()

    with Carrier(device, stall_s=0.1) as carrier:
        assert not carrier.ailment
        carrier.carry(NOTHING, on_done)
        asyncio.run(wait_for(lambda: "has not ended" in carrier.ailment))
    refused: list[KvmeshError | None] = []
    carrier.carry(NOTHING, refused.append)
    assert isinstance(refused[0], InternalFault)
    device.go_on.set()
    assert ended.wait(20)
    asyncio.run(wait_for(lambda: not carrier.ailment))


def test_a_copy_that_ends_soon_is_no_ailment() -> None:
    device = StoppedDevice()
    device.go_on.set()
    with Carrier(device, stall_s=60.0) as carrier:
        ended = threading.Event()
        carrier.carry(NOTHING, lambda _: ended.set())
        assert ended.wait(20)
        assert not carrier.ailment
