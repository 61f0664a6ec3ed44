"""Who lives: silence counts when it is the other's, and never when it is ours."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from proto.codec import decode, encode
from proto.reports import AnyBeat, Beat
from proto.subjects import beat
from services.bus import Bus, BusSettings, open_bus
from services.liveness import Beats, BeatSettings, Liveness, send_beats, watch_beats
from services.servers import Server
from tests.services.waiting import wait_for

MakeNats = Callable[..., Server]
QUICK = BeatSettings(interval_s=0.1, min_interval_s=0.02, lost_after_s=0.5, forget_after_s=1.0)


def read_beat(payload: bytes) -> AnyBeat:
    return decode(payload, AnyBeat)  # type: ignore[arg-type]


class Changes:
    def __init__(self) -> None:
        self.seen: list[tuple[str, bool]] = []
        self._changed = asyncio.Event()

    def __call__(self, process: str, is_alive: bool) -> None:
        self.seen.append((process, is_alive))
        self._changed.set()

    async def wait(self, process: str, is_alive: bool, num_times: int = 1) -> None:
        async with asyncio.timeout(10):
            while self.seen.count((process, is_alive)) < num_times:
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def watched(
    server: Server, namespace: str, bus_settings: BusSettings | None = None
) -> AsyncIterator[tuple[Bus, Liveness[AnyBeat], Changes]]:
    settings = bus_settings or BusSettings(url=server.url)
    async with (
        open_bus(settings, "watcher") as bus,
        watch_beats(bus, namespace, QUICK, read_beat) as liveness,
    ):
        changes = Changes()
        liveness.on_change(changes)
        yield bus, liveness, changes


@asynccontextmanager
async def beating(server: Server, namespace: str, process: str) -> AsyncIterator[Beats]:
    leaving = False

    def payload() -> bytes:
        return encode(Beat(process, "worker", "life-1", is_leaving=leaving))

    async with (
        open_bus(BusSettings(url=server.url), process) as bus,
        send_beats(bus, beat(namespace, process), payload, QUICK) as beats,
    ):
        yield beats
        leaving = True


def test_a_process_is_alive_from_its_first_beat_and_lost_after_its_last(
    nats_server: Server, namespace: str
) -> None:
    async def body() -> None:
        async with watched(nats_server, namespace) as (_, liveness, changes):
            assert not liveness.is_alive("w1")
            assert liveness.last("w1") is None
            async with beating(nats_server, namespace, "w1"), beating(nats_server, namespace, "w2"):
                await changes.wait("w1", True)
                await changes.wait("w2", True)
                assert sorted(liveness.alive()) == ["w1", "w2"]
                async with beating(nats_server, namespace, "w3"):
                    await changes.wait("w3", True)
                await changes.wait("w3", False)
                last = liveness.last("w3")
                assert isinstance(last, Beat)
                assert last.is_leaving
                assert liveness.is_alive("w1")
                async with beating(nats_server, namespace, "w3"):
                    await changes.wait("w3", True, num_times=2)
                    assert liveness.is_alive("w3")
            assert [is_alive for process, is_alive in changes.seen if process == "w3"] == [True, False, True]

    asyncio.run(body())


def test_who_was_never_heard_is_lost_once_he_would_have_been(nats_server: Server, namespace: str) -> None:
    async def body() -> None:
        began_s = time.monotonic()
        async with (
            beating(nats_server, namespace, "w1"),
            watched(nats_server, namespace) as (_, liveness, changes),
        ):
            await wait_for(lambda: liveness.is_lost("nobody"))
            assert time.monotonic() - began_s >= QUICK.lost_after_s
            await changes.wait("w1", True)
            assert not liveness.is_lost("w1")
            liveness.pardon()
            assert not liveness.is_lost("nobody")

    asyncio.run(body())


def test_a_lost_process_is_forgotten_in_the_end(nats_server: Server, namespace: str) -> None:
    async def body() -> None:
        async with watched(nats_server, namespace) as (bus, liveness, changes):
            await bus.publish(beat(namespace, "w1"), encode(Beat("w1", "worker", "life-1")))
            await changes.wait("w1", False)
            await wait_for(lambda: liveness.last("w1") is None)

    asyncio.run(body())


def test_news_hurries_a_beat_and_not_more_often_than_allowed(nats_server: Server, namespace: str) -> None:
    async def body() -> None:
        slow = BeatSettings(interval_s=30, min_interval_s=0.1)
        async with open_bus(BusSettings(url=nats_server.url), "test") as bus:
            times: asyncio.Queue[float] = asyncio.Queue()
            await bus.subscribe(beat(namespace, "w1"), lambda _: times.put_nowait(time.monotonic()))
            async with (
                send_beats(bus, beat(namespace, "w1"), lambda: b"", slow) as beats,
                asyncio.timeout(10),
            ):
                first_s = await times.get()
                beats.hurry()
                beats.hurry()
                assert await times.get() - first_s >= 0.09
                assert times.empty()

    asyncio.run(body())


def test_an_unreadable_beat_is_a_sign_of_life_and_ends_nothing(nats_server: Server, namespace: str) -> None:
    async def body() -> None:
        async with watched(nats_server, namespace) as (bus, liveness, changes):
            heard: list[str] = []
            liveness.on_beat(lambda process, _: heard.append(process))
            await bus.publish(beat(namespace, "new"), b"\xc1 from a later version")
            await changes.wait("new", True)
            assert liveness.last("new") is None
            await bus.publish(beat(namespace, "w1"), encode(Beat("w1", "worker", "life-1")))
            await changes.wait("w1", True)
            assert heard == ["w1"]

    asyncio.run(body())


def test_nobody_is_lost_while_the_bus_is_out_of_reach(make_nats: MakeNats) -> None:
    async def body() -> None:
        server = make_nats()
        async with watched(server, "ns") as (bus, liveness, changes), beating(server, "ns", "w1"):
            await changes.wait("w1", True)
            await asyncio.to_thread(server.stop)
            await asyncio.sleep(2 * QUICK.lost_after_s)  # the outage that is to be outlived
            assert not bus.is_connected
            assert liveness.is_alive("w1")
            server.restart()
            await wait_for(lambda: bus.num_connects == 2)
            await asyncio.sleep(2 * QUICK.lost_after_s)
            assert liveness.is_alive("w1")
            assert changes.seen == [("w1", True)]

    asyncio.run(body())


def test_nobody_is_lost_while_the_server_hangs(make_nats: MakeNats) -> None:
    async def body() -> None:
        server = make_nats()
        async with watched(server, "ns") as (_, liveness, changes), beating(server, "ns", "w1"):
            await changes.wait("w1", True)
            server.suspend()
            await asyncio.sleep(2 * QUICK.lost_after_s)  # shorter than the bus needs to call it a loss
            server.resume()
            await asyncio.sleep(2 * QUICK.lost_after_s)
            assert liveness.is_alive("w1")
            assert changes.seen == [("w1", True)]

    asyncio.run(body())


def test_nobody_is_lost_because_our_own_loop_was_late(nats_server: Server, namespace: str) -> None:
    async def body() -> None:
        late_soon = BusSettings(url=nats_server.url, late_after_s=0.1)
        async with (
            watched(nats_server, namespace, late_soon) as (_, liveness, changes),
            beating(nats_server, namespace, "w1"),
        ):
            await changes.wait("w1", True)
            time.sleep(3 * QUICK.lost_after_s)  # noqa: ASYNC251 (this is the lateness)
            await asyncio.sleep(QUICK.lost_after_s / 2)
            assert liveness.is_alive("w1")
            assert changes.seen == [("w1", True)]

    asyncio.run(body())


def test_a_process_that_others_may_have_lost_listens_before_it_beats(
    nats_server: Server, namespace: str
) -> None:
    """Whoever came in its place is heard first."""

    async def body() -> None:
        async with (
            watched(nats_server, namespace) as (_, liveness, changes),
            beating(nats_server, namespace, "w1"),
        ):
            await changes.wait("w1", True)
            assert not liveness.was_lost(60)
            heard_s: list[float] = []
            liveness.on_beat(lambda *_: heard_s.append(time.monotonic()))
            time.sleep(3 * QUICK.lost_after_s)  # noqa: ASYNC251 (all in this loop are silent)
            woke_s = time.monotonic()
            await wait_for(lambda: len(heard_s) > 0)
            assert heard_s[0] - woke_s >= QUICK.interval_s
            assert liveness.was_lost(60)

    asyncio.run(body())
