"""KV between simulated workers: bytes take time, one after the other, and who is gone gets none."""

import asyncio
import time
from collections.abc import Callable

import numpy as np
import pytest

from proto.codec import encode
from proto.errors import KvmeshError, PeerGone
from proto.jobs import Landing
from workers.simulated.wire import Wire, WireEnd
from workers.transfer.copy_plan import Copies
from workers.transfer.transfers import Transfer

GBIT_PER_S = 0.008  # a million bytes a second
LIMIT_S = 10.0


class Carried:
    """How transfers and notices ended, in order."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, KvmeshError | None]] = []
        self._changed = asyncio.Event()

    def note(self, name: str) -> Callable[[KvmeshError | None], None]:
        def on_done(fault: KvmeshError | None) -> None:
            self.ended.append((name, fault))
            self._changed.set()

        return on_done

    def submit(
        self, end: WireEnd, name: str, num_bytes: int, agent: str = "b", may_start: bool = True
    ) -> None:
        refused = self.note(f"{name} refused")
        copies = Copies(np.array([(0, 0, num_bytes)], dtype=np.uint64))
        end.submit(
            Transfer("WRITE", agent, copies, "cpu", lambda: may_start, lambda: refused(None), self.note(name))
        )

    async def wait(self, num: int) -> list[str]:
        async with asyncio.timeout(LIMIT_S):
            while len(self.ended) < num:
                self._changed.clear()
                await self._changed.wait()
        return [name for name, _ in self.ended]


def ignore(*_: object) -> None:
    """What a test does not look at."""


def test_transfers_of_one_end_leave_one_after_the_other_at_the_stated_speed() -> None:
    async def body() -> None:
        wire, carried = Wire(GBIT_PER_S, 0.0), Carried()
        moved: list[float] = []
        with (
            wire.end("a", ignore, lambda transfer, took_s: moved.append(took_s)) as a,
            wire.end("b", ignore, ignore),
            wire.end("c", ignore, ignore) as c,
        ):
            began_s = time.monotonic()
            carried.submit(a, "first", 200_000)
            carried.submit(a, "second", 100_000)
            carried.submit(c, "beside", 50_000)
            assert await carried.wait(3) == ["beside", "first", "second"]
            assert time.monotonic() - began_s >= 0.295
            assert moved == pytest.approx([0.2, 0.1])
            assert all(fault is None for _, fault in carried.ended)

    asyncio.run(body())


def test_a_transfer_that_may_not_start_any_more_is_refused() -> None:
    async def body() -> None:
        wire, carried = Wire(GBIT_PER_S, 0.0), Carried()
        with wire.end("a", ignore, ignore) as a, wire.end("b", ignore, ignore):
            carried.submit(a, "stale", 1000, may_start=False)
            assert await carried.wait(1) == ["stale refused"]
            carried.submit(a, "after the end", 1000)
        assert (await carried.wait(2))[1:] == ["after the end refused"]

    asyncio.run(body())


def test_what_goes_to_a_worker_that_is_gone_or_was_never_here_fails() -> None:
    async def body() -> None:
        wire, carried = Wire(GBIT_PER_S, 0.0), Carried()
        with wire.end("a", ignore, ignore) as a:
            with wire.end("b", ignore, ignore):
                carried.submit(a, "write", 100_000)
                a.add_peer("b", b"", carried.note("meeting"))
            a.add_peer("z", b"", carried.note("stranger"))
            a.notify("b", encode(Landing("grant", 1)), carried.note("notice"))
            await carried.wait(4)
        faults = dict(carried.ended)
        assert faults["meeting"] is None
        assert all(isinstance(faults[name], PeerGone) for name in ("write", "stranger", "notice"))

    asyncio.run(body())


def test_a_landing_notice_is_heard_at_its_target() -> None:
    async def body() -> None:
        wire, carried = Wire(GBIT_PER_S, 0.001), Carried()
        heard: list[Landing] = []
        with wire.end("a", ignore, ignore) as a, wire.end("b", heard.append, ignore):
            a.notify("b", encode(Landing("grant", 7)), carried.note("notice"))
            await carried.wait(1)
        assert heard == [Landing("grant", 7)]

    asyncio.run(body())
