"""The work queue: a job is done once if all is well, and by another if its taker falls silent."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from proto.errors import InvalidSetting, Overloaded
from services.bus import Bus, BusSettings, open_bus
from services.servers import Server
from services.taker import Taker, open_taker
from services.work_queue import Work, WorkQueue, WorkQueueSettings, open_work_queue
from tests.services.waiting import wait_for

MakeNats = Callable[..., Server]
QUICK = WorkQueueSettings(ack_wait_s=0.3, max_deliveries=3)


@asynccontextmanager
async def open_queue(
    server: Server, namespace: str, settings: WorkQueueSettings = QUICK
) -> AsyncIterator[tuple[Bus, WorkQueue, str]]:
    async with open_bus(BusSettings(url=server.url), "test") as bus:
        queue = await open_work_queue(bus, settings, f"JOBS_{namespace}", f"{namespace}.jobs.*")
        yield bus, queue, f"{namespace}.jobs.model=2e5"


async def take(taker: Taker, limit_s: float = 5.0) -> Work:
    work = await taker.fetch(limit_s)
    assert work is not None
    return work


def test_jobs_come_in_order_and_are_gone_when_done(nats_server: Server, namespace: str) -> None:
    async def body() -> None:
        async with open_queue(nats_server, namespace) as (_, queue, subject):
            for index in range(20):
                assert await queue.put(subject, f"job-{index}", b"%d" % index)
            assert await queue.num_pending(subject) == 20
            async with open_taker(queue, subject) as taker:
                for index in range(20):
                    work = await take(taker)
                    assert (work.payload, work.num_deliveries) == (b"%d" % index, 1)
                    await work.done()
                assert await taker.fetch(0.5) is None
            assert await queue.num_pending(subject) == 0

    asyncio.run(body())


def test_a_waiting_taker_gets_a_job_when_it_is_put(nats_server: Server, namespace: str) -> None:
    async def body() -> None:
        async with (
            open_queue(nats_server, namespace) as (_, queue, subject),
            open_taker(queue, subject) as taker,
        ):
            waiting = asyncio.ensure_future(take(taker, 10))
            await queue.num_pending(subject)
            await queue.put(subject, "job", b"now")
            started_s = time.monotonic()
            assert (await waiting).payload == b"now"
            assert time.monotonic() - started_s < 5

    asyncio.run(body())


def test_subjects_of_one_queue_do_not_mix(nats_server: Server, namespace: str) -> None:
    async def body() -> None:
        async with open_queue(nats_server, namespace) as (_, queue, subject):
            other = f"{namespace}.jobs.other"
            await queue.put(subject, "a", b"a")
            await queue.put(other, "b", b"b")
            async with open_taker(queue, other) as taker:
                work = await take(taker)
                assert work.payload == b"b"
                await work.done()
                assert await taker.fetch(0.2) is None
            assert await queue.num_pending(subject) == 1

    asyncio.run(body())


def test_one_job_id_is_one_job(nats_server: Server, namespace: str) -> None:
    async def body() -> None:
        async with open_queue(nats_server, namespace) as (_, queue, subject):
            assert await queue.put(subject, "same", b"first")
            assert not await queue.put(subject, "same", b"second")
            assert await queue.num_pending(subject) == 1

    asyncio.run(body())


def test_a_job_whose_taker_falls_silent_goes_to_another_until_the_last_delivery(
    nats_server: Server, namespace: str
) -> None:
    async def body() -> None:
        async with open_queue(nats_server, namespace) as (_, queue, subject):
            await queue.put(subject, "job", b"x")
            async with open_taker(queue, subject) as silent, open_taker(queue, subject) as other:
                assert not (await take(silent)).is_last_delivery
                second = await take(other)
                assert (second.num_deliveries, second.is_last_delivery) == (2, False)
                third = await take(silent)
                assert (third.num_deliveries, third.is_last_delivery) == (3, True)
                await third.terminate()
                assert await other.fetch(0.6) is None

    asyncio.run(body())


def test_a_taker_that_reports_progress_keeps_its_job(nats_server: Server, namespace: str) -> None:
    async def body() -> None:
        async with open_queue(nats_server, namespace) as (_, queue, subject):
            await queue.put(subject, "job", b"x")
            async with open_taker(queue, subject) as taker, open_taker(queue, subject) as other:
                work = await take(taker)
                for _ in range(8):
                    assert await other.fetch(0.1) is None
                    await work.progress()
                await work.done()

    asyncio.run(body())


def test_a_job_given_back_comes_again_and_not_before_its_delay(nats_server: Server, namespace: str) -> None:
    async def body() -> None:
        async with (
            open_queue(nats_server, namespace) as (_, queue, subject),
            open_taker(queue, subject) as taker,
        ):
            await queue.put(subject, "job", b"x")
            await (await take(taker)).give_back()
            work = await take(taker)
            given_s = time.monotonic()
            await work.give_back(delay_s=0.5)
            again = await take(taker)
            assert again.num_deliveries == 3
            assert time.monotonic() - given_s >= 0.45

    asyncio.run(body())


def test_a_bad_job_that_is_terminated_does_not_hold_up_the_others(
    nats_server: Server, namespace: str
) -> None:
    async def body() -> None:
        async with (
            open_queue(nats_server, namespace) as (_, queue, subject),
            open_taker(queue, subject) as taker,
        ):
            for word in (b"bad", b"good"):
                await queue.put(subject, word.decode(), word)
            await (await take(taker)).terminate()
            assert (await take(taker)).payload == b"good"

    asyncio.run(body())


def test_a_leaver_gives_back_what_it_had_fetched(nats_server: Server, namespace: str) -> None:
    async def body() -> None:
        patient = WorkQueueSettings(ack_wait_s=30)
        async with open_queue(nats_server, namespace, patient) as (bus, queue, subject):
            async with open_taker(queue, subject) as leaver:
                waiting = asyncio.ensure_future(leaver.fetch(30))
                await queue.num_pending(subject)
                waiting.cancel()
                await asyncio.wait({waiting})
                await queue.put(subject, "job", b"x")  # answers the pull that nobody waits for any more
                await bus.flush(2)
            async with open_taker(queue, subject) as stayer:
                assert (await take(stayer)).payload == b"x"

    asyncio.run(body())


def test_a_full_queue_refuses(nats_server: Server, namespace: str) -> None:
    async def body() -> None:
        small = WorkQueueSettings(max_jobs=2)
        async with open_queue(nats_server, namespace, small) as (_, queue, subject):
            for index in range(2):
                await queue.put(subject, f"{index}", b"")
            with pytest.raises(Overloaded):
                await queue.put(subject, "one too many", b"")

    asyncio.run(body())


def test_jobs_in_hand_at_once_are_bounded(nats_server: Server, namespace: str) -> None:
    async def body() -> None:
        one = WorkQueueSettings(max_taken=1, ack_wait_s=30)
        async with (
            open_queue(nats_server, namespace, one) as (_, queue, subject),
            open_taker(queue, subject) as taker,
        ):
            for index in range(2):
                await queue.put(subject, f"{index}", b"%d" % index)
            work = await take(taker)
            assert await taker.fetch(0.2) is None
            await work.done()
            assert (await take(taker)).payload == b"1"

    asyncio.run(body())


def test_a_queue_that_exists_takes_new_settings(nats_server: Server, namespace: str) -> None:
    async def body() -> None:
        async with open_queue(nats_server, namespace, WorkQueueSettings(max_jobs=1)) as (_, queue, subject):
            await queue.put(subject, "a", b"")
        async with open_queue(nats_server, namespace, WorkQueueSettings(max_jobs=2)) as (_, queue, subject):
            await queue.put(subject, "b", b"")
            assert await queue.num_pending(subject) == 2
        with pytest.raises(InvalidSetting, match="JOBS_"):
            async with open_queue(nats_server, namespace, WorkQueueSettings(storage="file")):
                pass

    asyncio.run(body())


def test_a_server_that_lost_the_queue_gets_it_again_and_the_waiting_taker_the_next_job(
    make_nats: MakeNats,
) -> None:
    async def body() -> None:
        server = make_nats()
        async with open_queue(server, "ns") as (bus, queue, subject), open_taker(queue, subject) as taker:
            await queue.put(subject, "lost", b"lost with the memory of the server")
            waiting = asyncio.ensure_future(take(taker))
            lost = await waiting
            waiting = asyncio.ensure_future(take(taker, 20))
            await asyncio.to_thread(server.stop)
            server.wipe()
            server.restart()
            await wait_for(lambda: bus.num_connects == 2)
            await queue.put(subject, "fresh", b"fresh")
            work = await waiting
            assert work.payload == b"fresh"
            await work.done()
            assert lost.payload.startswith(b"lost")

    asyncio.run(body())


def test_a_queue_that_rests_for_hours_is_kept(nats_server: Server, namespace: str) -> None:
    """The server forgets a consumer that nobody uses for its `inactive_threshold`: ours has none."""

    async def body() -> None:
        async with open_queue(nats_server, namespace) as (bus, queue, subject):
            consumer = await queue.ensure_consumer(subject)
            info = await bus.request(f"$JS.API.CONSUMER.INFO.{queue.stream}.{consumer}", b"", 5)
            config = msgspec.json.decode(info)["config"]
            assert config["durable_name"] == consumer
            assert not config.get("inactive_threshold")

    asyncio.run(body())


def test_a_fetch_from_a_broken_connection_leaves_the_loop_free(make_nats: MakeNats) -> None:
    async def body() -> None:
        server = make_nats()
        async with open_queue(server, "ns") as (bus, queue, subject), open_taker(queue, subject) as taker:
            server.kill()
            await wait_for(lambda: not bus.is_connected)
            fetching = asyncio.ensure_future(taker.fetch(0.5))
            num_turns = 0
            while not fetching.done():
                await asyncio.sleep(0)
                num_turns += 1
            assert fetching.result() is None
            assert num_turns > 100

    asyncio.run(body())


def test_a_fetch_without_a_server_ends_in_time(make_nats: MakeNats) -> None:
    async def body() -> None:
        server = make_nats()
        async with open_queue(server, "ns") as (_, queue, subject), open_taker(queue, subject) as taker:
            server.kill()
            started_s = time.monotonic()
            assert await taker.fetch(0.5) is None
            assert time.monotonic() - started_s < 3

    asyncio.run(body())


def test_a_server_without_jetstream_is_a_clear_error_in_seconds(make_nats: MakeNats) -> None:
    async def body() -> None:
        started_s = time.monotonic()
        with pytest.raises(InvalidSetting, match="no JetStream"):
            async with open_queue(make_nats(jetstream=False), "ns"):
                pass
        assert time.monotonic() - started_s < 5

    asyncio.run(body())


def test_every_setting_is_described() -> None:
    for settings in (WorkQueueSettings, BusSettings):
        for field in msgspec.json.schema(settings)["$defs"][settings.__name__]["properties"].values():
            assert field["description"]
