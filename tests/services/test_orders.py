"""Orders and drains of one model: who comes later sees who came first, and a decode worker always stays."""

import asyncio

import msgspec
import pytest

from proto import keys
from proto.cards import KvClass, WorkerCard
from proto.codec import encode
from proto.errors import InvalidRequest
from proto.names import new_id
from proto.roles import Role, WorkerState
from services.directory import Directory, DirectorySettings, open_directory
from services.orders import bump_orders, find_survivors, read_card
from services.servers import Server


def card(worker: str, role: Role = Role.DECODE, state: WorkerState = WorkerState.READY) -> WorkerCard:
    return WorkerCard(worker, "org/m", role, 1, "life", state, KvClass("digest", "float32", 16), 8, 8)


async def put(directory: Directory, ns: str, *cards: WorkerCard) -> None:
    for each in cards:
        await directory.put(keys.worker(ns, each.worker), encode(each))


async def drain(directory: Directory, ns: str, leaver: WorkerCard) -> bool:
    """As an operator's tool does: the card first; whether it may go on."""
    await put(directory, ns, msgspec.structs.replace(leaver, state=WorkerState.DRAINING))
    try:
        await bump_orders(directory, ns, leaver)
    except InvalidRequest:
        await put(directory, ns, leaver)
        return False
    return True


def test_each_order_bumps_the_counter_of_its_model(etcd_server: Server) -> None:
    async def run() -> None:
        ns = new_id()
        async with open_directory(DirectorySettings(endpoints=[etcd_server.url])) as directory:
            await put(directory, ns, card("a"), card("b"), card("p", Role.PREFILL))
            assert [await bump_orders(directory, ns, card(name)) for name in "abab"] == [1, 2, 3, 4]
            assert await bump_orders(directory, ns, card("p", Role.PREFILL)) == 5

    asyncio.run(run())


@pytest.mark.parametrize(
    "other",
    [card("b", Role.PREFILL), card("b", state=WorkerState.DRAINING), card("a")],
    ids=["prefill", "draining", "nobody"],
)
def test_the_last_ready_decode_worker_stays(etcd_server: Server, other: WorkerCard) -> None:
    async def run() -> None:
        ns = new_id()
        async with open_directory(DirectorySettings(endpoints=[etcd_server.url])) as directory:
            await put(directory, ns, card("a"), other)
            for refuse in (find_survivors, bump_orders):
                with pytest.raises(InvalidRequest, match="a is the last ready decode worker of 'org/m'"):
                    await refuse(directory, ns, card("a"))
            assert await directory.get(keys.orders_of(ns, "org/m")) is None

    asyncio.run(run())


def test_a_worker_that_is_not_there_is_named(etcd_server: Server) -> None:
    async def run() -> None:
        async with open_directory(DirectorySettings(endpoints=[etcd_server.url])) as directory:
            with pytest.raises(InvalidRequest, match="there is no worker 'nobody'"):
                await read_card(directory, new_id(), "nobody")

    asyncio.run(run())


def test_of_all_that_are_drained_at_one_moment_one_at_least_stays(etcd_server: Server) -> None:
    async def run() -> None:
        async with open_directory(DirectorySettings(endpoints=[etcd_server.url])) as directory:
            for _ in range(10):
                ns, workers = new_id(), [card(name) for name in "abc"]
                await put(directory, ns, *workers)
                async with asyncio.TaskGroup() as tasks:
                    drains = [tasks.create_task(drain(directory, ns, each)) for each in workers]
                assert sum(each.result() for each in drains) < len(workers)

    asyncio.run(run())
