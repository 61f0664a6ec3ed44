"""The object store: what was put is what is read, in time, or there is an error that says why."""

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from proto.errors import DeadlineExceeded, InvalidRequest, InvalidSetting, KvmeshError, Overloaded
from services.bus import Bus, BusSettings, open_bus
from services.jetstream import purge
from services.objects import CHUNK_BYTES, Objects, ObjectSettings, open_objects
from services.servers import Server
from tests.services.waiting import wait_for

MakeNats = Callable[..., Server]


@asynccontextmanager
async def open_store(
    server: Server, bucket: str, settings: ObjectSettings | None = None
) -> AsyncIterator[tuple[Bus, Objects]]:
    async with open_bus(BusSettings(url=server.url), "test") as bus:
        yield bus, await open_objects(bus, settings or ObjectSettings(storage="memory"), bucket)


@pytest.mark.parametrize(
    "num_bytes", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 9 * 2**20], ids=["0", "1", "chunk", "chunk+1", "9M"]
)
def test_an_object_comes_back_under_its_digest(nats_server: Server, namespace: str, num_bytes: int) -> None:
    async def body() -> None:
        data = os.urandom(num_bytes)
        async with open_store(nats_server, namespace) as (_, objects):
            digest = await objects.put_if_absent(data)
            assert digest == hashlib.sha256(data).hexdigest()
            assert await objects.get(digest, 10) == data

    asyncio.run(body())


def test_an_object_is_stored_once_whoever_puts_it(nats_server: Server, namespace: str) -> None:
    async def body() -> None:
        data = os.urandom(3 * CHUNK_BYTES)
        async with (
            open_store(nats_server, namespace) as (bus, one),
            open_store(nats_server, namespace) as (_, other),
        ):
            await asyncio.gather(*(store.put_if_absent(data) for store in (one, other, one, other)))
            digest = await other.put_if_absent(data)
            assert await one.get(digest, 5) == data
            info = await bus.request(f"$JS.API.STREAM.INFO.OBJ_{namespace}", b"", 5)
            assert b'"messages":4,' in info, info  # three chunks and one description

    asyncio.run(body())


def test_an_object_that_is_not_there_is_an_error_at_once(nats_server: Server, namespace: str) -> None:
    async def body() -> None:
        async with open_store(nats_server, namespace) as (_, objects):
            started_s = time.monotonic()
            with pytest.raises(InvalidRequest, match="0123"):
                await objects.get("0123" * 16, 30)
            assert time.monotonic() - started_s < 5

    asyncio.run(body())


def test_a_damaged_object_is_an_error_at_once_until_it_is_put_again(
    nats_server: Server, namespace: str
) -> None:
    async def body() -> None:
        data = os.urandom(3 * CHUNK_BYTES)
        async with open_store(nats_server, namespace) as (bus, objects):
            digest = await objects.put_if_absent(data)
            await purge(bus, f"OBJ_{namespace}", f"$O.{namespace}.C.*")
            with pytest.raises(InvalidRequest):
                await objects.get(digest, 30)
            await objects.put_if_absent(data)
            assert await objects.get(digest, 5) == data

    asyncio.run(body())


def test_a_description_that_lies_is_an_error(nats_server: Server, namespace: str) -> None:
    async def body() -> None:
        async with open_store(nats_server, namespace) as (bus, objects):
            digest = await objects.put_if_absent(b"honest")
            held = await bus.exchange(
                f"$JS.API.DIRECT.GET.OBJ_{namespace}.{objects._description_subject(digest)}", b"", 5
            )
            liar = hashlib.sha256(b"other").hexdigest()
            await bus.request(objects._description_subject(liar), held.payload, 5)
            with pytest.raises(InvalidRequest):
                await objects.get(liar, 5)
            await bus.request(objects._description_subject(liar), b"{not json", 5)
            with pytest.raises(InvalidRequest):
                await objects.get(liar, 5)

    asyncio.run(body())


def test_a_put_that_is_cut_off_leaves_nothing_to_be_read(nats_server: Server, namespace: str) -> None:
    async def body() -> None:
        data = os.urandom(9 * 2**20)
        async with open_store(nats_server, namespace) as (bus, objects):
            with pytest.raises(DeadlineExceeded):
                await objects.put_if_absent(data, timeout_s=0.01)
            with pytest.raises(InvalidRequest):
                await objects.get(hashlib.sha256(data).hexdigest(), 5)
            info = await bus.request(f"$JS.API.STREAM.INFO.OBJ_{namespace}", b"", 5)
            assert b'"messages":0,' in info, info

    asyncio.run(body())


def test_objects_are_bounded(nats_server: Server, namespace: str) -> None:
    async def body() -> None:
        small = ObjectSettings(storage="memory", max_bytes=2 * CHUNK_BYTES, max_object_bytes=4 * CHUNK_BYTES)
        async with open_store(nats_server, namespace, small) as (_, objects):
            with pytest.raises(InvalidRequest):
                await objects.put_if_absent(bytes(4 * CHUNK_BYTES + 1))
            with pytest.raises(Overloaded):
                await objects.put_if_absent(bytes(3 * CHUNK_BYTES))

    asyncio.run(body())


def test_a_bucket_lost_with_the_server_is_made_again(make_nats: MakeNats) -> None:
    async def body() -> None:
        server = make_nats()
        async with open_store(server, "ns", ObjectSettings(storage="file")) as (bus, objects):
            digest = await objects.put_if_absent(b"kept")
            await asyncio.to_thread(server.stop)
            server.restart()
            await wait_for(lambda: bus.num_connects == 2)
            assert await objects.get(digest, 5) == b"kept"
            await asyncio.to_thread(server.stop)
            with pytest.raises(KvmeshError):
                await objects.get(digest, 0.5)
            server.wipe()
            server.restart()
            await wait_for(lambda: bus.num_connects == 3)
            with pytest.raises(InvalidRequest):
                await objects.get(digest, 5)
            assert await objects.put_if_absent(b"kept") == digest
            assert await objects.get(digest, 5) == b"kept"

    asyncio.run(body())


def test_a_server_without_jetstream_is_a_clear_error(make_nats: MakeNats) -> None:
    async def body() -> None:
        with pytest.raises(InvalidSetting, match="no JetStream"):
            async with open_store(make_nats(jetstream=False), "ns"):
                pass

    asyncio.run(body())
