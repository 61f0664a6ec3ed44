"""Orders and drains of one model: who comes later sees who came first, and a decode worker always stays."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine

import msgspec
import pytest

from proto import keys
from proto.cards import KvClass, WorkerCard
from proto.codec import encode
from proto.errors import Conflict, InvalidRequest
from proto.names import new_id
from proto.roles import DrainMode, Order, Role, WorkerState
from services.directory import Directory, DirectorySettings, Guard, open_directory
from services.orders import (
    MOST_ABSENT,
    NUM_TRIES,
    PlacedOrder,
    begin_order,
    bump_orders,
    find_survivors,
    place_order,
    read_card,
    read_order,
    take_back,
)
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


def test_nobody_leaves_a_model_to_a_worker_that_beats_no_more(etcd_server: Server) -> None:
    def is_lost(worker: str) -> bool:
        return worker == "b"

    async def run() -> None:
        ns = new_id()
        async with open_directory(DirectorySettings(endpoints=[etcd_server.url])) as directory:
            await put(directory, ns, card("a"), card("b"))
            placed = PlacedOrder(await place_order(directory, ns, "a", Role.PREFILL), 0)
            left_alone = "a is the last ready decode worker of 'org/m', and not heard of: b"
            with pytest.raises(InvalidRequest, match=left_alone):
                await bump_orders(directory, ns, card("a"), is_lost)
            with pytest.raises(InvalidRequest, match=left_alone):
                await begin_order(directory, ns, placed, card("a"), is_lost)
            await put(directory, ns, card("c"))
            with pytest.raises(InvalidRequest, match="c is the last ready decode worker"):
                await place_order(directory, ns, "c", Role.PREFILL, is_lost=is_lost)

    asyncio.run(run())


def test_an_order_whose_condition_does_not_hold_is_not_placed(etcd_server: Server) -> None:
    async def run() -> None:
        ns = new_id()
        async with open_directory(DirectorySettings(endpoints=[etcd_server.url])) as directory:
            await put(directory, ns, card("a"), card("b"))
            lead = Guard(f"{ns}/lead", 0)
            await directory.put(lead.key, b"somebody else's")
            with pytest.raises(Conflict):
                await place_order(directory, ns, "a", Role.PREFILL, only_if=[lead])
            assert await read_order(directory, ns, "a") is None
            await directory.delete(lead.key)
            assert (await place_order(directory, ns, "a", Role.PREFILL, only_if=[lead])).epoch == 2

    asyncio.run(run())


@pytest.mark.parametrize("words", ["two\nlines", "x" * 1001], ids=["two lines", "too long"])
@pytest.mark.parametrize("field", ["reason", "placed_by"])
def test_an_order_whose_words_no_log_line_holds_is_refused(
    etcd_server: Server, field: str, words: str
) -> None:
    async def run() -> None:
        ns = new_id()
        async with open_directory(DirectorySettings(endpoints=[etcd_server.url])) as directory:
            await put(directory, ns, card("a"), card("b"))
            with pytest.raises(InvalidRequest, match=f"{field}: not one line"):
                await place_order(directory, ns, "a", Role.PREFILL, **{field: words})  # type: ignore[arg-type]
            assert await read_order(directory, ns, "a") is None

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


Body = Callable[[Directory, str], Awaitable[None]]


def run_in(etcd: Server, body: Body) -> None:
    """`body` with a directory and a namespace of its own."""

    async def run() -> None:
        async with open_directory(DirectorySettings(endpoints=[etcd.url])) as directory:
            await body(directory, new_id())

    asyncio.run(run())


async def fulfil(directory: Directory, ns: str, order: Order) -> None:
    """As the worker does once its card says what the order wants."""
    now = await read_card(directory, ns, order.worker)
    await put(directory, ns, msgspec.structs.replace(now, role=order.role, epoch=order.epoch))


async def placed_order(directory: Directory, ns: str, worker: str) -> PlacedOrder:
    placed = await read_order(directory, ns, worker)
    assert placed is not None
    return placed


def test_an_order_says_role_and_next_epoch_and_stays_once_it_is_fulfilled(etcd_server: Server) -> None:
    async def body(directory: Directory, ns: str) -> None:
        await put(directory, ns, card("a"), card("b"))
        order = await place_order(
            directory,
            ns,
            "a",
            Role.PREFILL,
            mode=DrainMode.BOTH,
            limit_s=5.0,
            placed_by="planner",
            reason="r",
        )
        assert order == Order("a", Role.PREFILL, 2, DrainMode.BOTH, 5.0, "planner", "r")
        assert (await placed_order(directory, ns, "a")).order == order
        await fulfil(directory, ns, order)
        again = await place_order(directory, ns, "a", Role.DECODE)
        assert (again.role, again.epoch) == (Role.DECODE, 3)
        counter = await directory.get(keys.orders_of(ns, "org/m"))
        assert counter is not None and counter.value == b"2"

    run_in(etcd_server, body)


@pytest.mark.parametrize(
    ("worker", "role", "limit_s", "reason"),
    [
        ("nobody", Role.PREFILL, 1.0, "there is no worker 'nobody'"),
        ("a", Role.DECODE, 1.0, "a is a decode worker already"),
        ("a", Role.PREFILL, 0.0, "0.0 s is no time to let go in"),
        ("drained", Role.PREFILL, 1.0, "drained is draining"),
        ("lone", Role.PREFILL, 1.0, "lone is the last ready decode worker of 'other'"),
        ("ordered", Role.PREFILL, 1.0, "ordered is on its way to prefill already"),
    ],
)
def test_an_order_that_cannot_be_is_refused_and_changes_nothing(
    etcd_server: Server, worker: str, role: Role, limit_s: float, reason: str
) -> None:
    async def body(directory: Directory, ns: str) -> None:
        drained = card("drained", state=WorkerState.DRAINING)
        lone = msgspec.structs.replace(card("lone"), model="other")
        await put(directory, ns, card("a"), card("b"), card("ordered"), drained, lone)
        await place_order(directory, ns, "ordered", Role.PREFILL)
        before = await directory.list(keys.root(ns))
        with pytest.raises(InvalidRequest, match=re.escape(reason)):
            await place_order(directory, ns, worker, role, limit_s=limit_s)
        assert await directory.list(keys.root(ns)) == before

    run_in(etcd_server, body)


async def is_ordered(directory: Directory, ns: str, worker: str) -> bool:
    try:
        await place_order(directory, ns, worker, Role.PREFILL)
    except InvalidRequest:
        return False
    return True


def test_of_two_orders_at_one_moment_for_the_last_two_decode_workers_exactly_one_stands(
    etcd_server: Server,
) -> None:
    async def body(directory: Directory, ns: str) -> None:
        for number in range(10):
            await put(directory, f"{ns}-{number}", card("a"), card("b"), card("p", Role.PREFILL))
            async with asyncio.TaskGroup() as tasks:
                orders = [
                    tasks.create_task(is_ordered(directory, f"{ns}-{number}", name)) for name in ("a", "b")
                ]
            assert sum(each.result() for each in orders) == 1

    run_in(etcd_server, body)


def test_orders_and_drains_at_one_moment_leave_a_decode_worker(etcd_server: Server) -> None:
    async def body(directory: Directory, ns: str) -> None:
        for number in range(10):
            here, workers = f"{ns}-{number}", [card(name) for name in "abcd"]
            await put(directory, here, *workers)
            async with asyncio.TaskGroup() as tasks:
                leaving = [tasks.create_task(drain(directory, here, each)) for each in workers[:2]]
                leaving += [tasks.create_task(is_ordered(directory, here, name)) for name in ("c", "d")]
            assert 0 < sum(each.result() for each in leaving) < len(workers)

    run_in(etcd_server, body)


def test_many_orders_at_one_moment_are_all_placed(etcd_server: Server) -> None:
    """Each try that meets a conflict met somebody who was placed: as many tries as orders are enough."""

    async def body(directory: Directory, ns: str) -> None:
        names = [f"p-{number}" for number in range(NUM_TRIES)]
        await put(directory, ns, *(card(name, Role.PREFILL) for name in names))
        async with asyncio.TaskGroup() as tasks:
            for name in names:
                tasks.create_task(place_order(directory, ns, name, Role.DECODE))
        assert len(await directory.list(keys.orders(ns))) == len(names)

    run_in(etcd_server, body)


def test_an_order_is_taken_back_until_its_worker_begins(etcd_server: Server) -> None:
    async def body(directory: Directory, ns: str) -> None:
        await put(directory, ns, card("a"), card("b"))
        with pytest.raises(InvalidRequest, match="a is not on its way to another role"):
            await take_back(directory, ns, "a")
        await place_order(directory, ns, "a", Role.PREFILL)
        await take_back(directory, ns, "a")
        assert await read_order(directory, ns, "a") is None
        await place_order(directory, ns, "a", Role.PREFILL)
        begun = await begin_order(directory, ns, await placed_order(directory, ns, "a"), card("a"))
        assert await placed_order(directory, ns, "a") == begun
        with pytest.raises(InvalidRequest, match="a begins its role as a prefill worker"):
            await take_back(directory, ns, "a")

    run_in(etcd_server, body)


def test_an_order_that_is_taken_back_leaves_the_record_of_the_term_before(etcd_server: Server) -> None:
    async def body(directory: Directory, ns: str) -> None:
        await put(directory, ns, card("a"), card("b"))
        await fulfil(directory, ns, await place_order(directory, ns, "a", Role.PREFILL))
        await place_order(directory, ns, "a", Role.DECODE)
        await take_back(directory, ns, "a")
        kept = (await placed_order(directory, ns, "a")).order
        assert (kept.role, kept.epoch) == (Role.PREFILL, 2)
        assert (await place_order(directory, ns, "a", Role.DECODE)).epoch == 3

    run_in(etcd_server, body)


def test_an_order_is_not_begun_once_it_was_taken_back_or_nobody_else_decodes(etcd_server: Server) -> None:
    async def body(directory: Directory, ns: str) -> None:
        await put(directory, ns, card("a"), card("b"))
        await place_order(directory, ns, "a", Role.PREFILL)
        placed = await placed_order(directory, ns, "a")
        await directory.delete(keys.worker(ns, "b"))
        with pytest.raises(InvalidRequest, match="a is the last ready decode worker"):
            await begin_order(directory, ns, placed, card("a"))
        await put(directory, ns, card("b"))
        await take_back(directory, ns, "a")
        await place_order(directory, ns, "a", Role.PREFILL)
        with pytest.raises(InvalidRequest, match="the order was taken back"):
            await begin_order(directory, ns, placed, card("a"))

    run_in(etcd_server, body)


def test_a_worker_that_was_ordered_away_is_no_reason_to_drain_another(etcd_server: Server) -> None:
    async def body(directory: Directory, ns: str) -> None:
        await put(directory, ns, card("a"), card("b"))
        await place_order(directory, ns, "a", Role.PREFILL)
        with pytest.raises(InvalidRequest, match="b is the last ready decode worker"):
            await bump_orders(directory, ns, card("b"))

    run_in(etcd_server, body)


def test_of_a_begin_and_a_taking_back_at_one_moment_one_succeeds(etcd_server: Server) -> None:
    async def body(directory: Directory, ns: str) -> None:
        for number in range(10):
            here = f"{ns}-{number}"
            await put(directory, here, card("a"), card("b"))
            await place_order(directory, here, "a", Role.PREFILL)
            placed = await placed_order(directory, here, "a")
            async with asyncio.TaskGroup() as tasks:
                both = [
                    tasks.create_task(succeeds(begin_order(directory, here, placed, card("a")))),
                    tasks.create_task(succeeds(take_back(directory, here, "a"))),
                ]
            assert sum(each.result() for each in both) == 1

    run_in(etcd_server, body)


async def succeeds(attempt: Coroutine[None, None, object]) -> bool:
    try:
        await attempt
    except InvalidRequest:
        return False
    return True


def test_orders_of_workers_that_never_return_are_forgotten_the_oldest_first(etcd_server: Server) -> None:
    async def run() -> None:
        ns = new_id()

        async def names() -> set[str]:
            return {keys.last_part(entry.key) for entry in await directory.list(keys.orders(ns))}

        async with open_directory(DirectorySettings(endpoints=[etcd_server.url])) as directory:
            await put(directory, ns, card("a"), card("b"), card("here"))
            gone = [f"gone-{number}" for number in range(MOST_ABSENT + 3)]
            for worker in ("here", *gone):
                await directory.put(keys.order(ns, worker), encode(Order(worker, Role.DECODE, 1)))
            await place_order(directory, ns, "a", Role.PREFILL)
            assert await names() == {"a", "here", *gone[3:]}
            await directory.put(keys.order(ns, gone[3]), encode(Order(gone[3], Role.PREFILL, 2)))
            await directory.put(keys.order(ns, "new"), encode(Order("new", Role.DECODE, 1)))
            await place_order(directory, ns, "b", Role.PREFILL)
            assert await names() == {"a", "b", "here", gone[3], "new", *gone[5:]}

    asyncio.run(run())
