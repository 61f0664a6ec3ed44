"""The directory against a real etcd that is killed, emptied, stopped and compacted."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.request import Request, urlopen

import pytest

from proto.errors import Conflict, DeadlineExceeded, Disconnected, InvalidSetting, PayloadTooLarge
from services.directory import (
    Change,
    Changed,
    Directory,
    DirectorySettings,
    Entry,
    Guard,
    Listed,
    Put,
    Removed,
    open_directory,
)
from services.lease import LeaseKeeper
from services.servers import Server, reserve_port
from tests.services.waiting import wait_for


@asynccontextmanager
async def _open(server: Server, lease_ttl_s: int = 10) -> AsyncIterator[Directory]:
    settings = DirectorySettings(endpoints=[server.url], lease_ttl_s=lease_ttl_s, connect_timeout_s=10)
    async with open_directory(settings) as directory:
        yield directory


async def _next(changes: AsyncGenerator[Change, None], limit_s: float = 10) -> Change:
    async with asyncio.timeout(limit_s):
        return await anext(changes)


async def _until(
    changes: AsyncGenerator[Change, None], wanted: Callable[[Change], bool], limit_s: float = 10
) -> Change:
    async with asyncio.timeout(limit_s):
        async for change in changes:
            if wanted(change):
                return change
    raise AssertionError("the watch ended")


def _lists(key: str) -> Callable[[Change], bool]:
    def shows(change: Change) -> bool:
        entries = change.entries if isinstance(change, Listed) else []
        entries = [change.entry] if isinstance(change, Changed) else entries
        return any(entry.key == key for entry in entries)

    return shows


def _compact(server: Server, revision: int) -> None:
    body = json.dumps({"revision": str(revision), "physical": True}).encode()
    with urlopen(Request(f"http://{server.url}/v3/kv/compaction", data=body), timeout=5) as answer:
        answer.read()


def _revoke(server: Server, lease_id: int) -> None:
    body = json.dumps({"ID": str(lease_id)}).encode()
    urlopen(Request(f"http://{server.url}/v3/lease/revoke", data=body), timeout=5).close()


async def _lose_lease(server: Server, keeper: LeaseKeeper) -> None:
    """Its lease is revoked; on return it has taken another."""
    lost = keeper.lease_id
    await asyncio.to_thread(_revoke, server, lost)
    await wait_for(lambda: keeper.lease_id not in (0, lost))


def test_a_key_is_put_read_listed_and_deleted(etcd_server: Server, namespace: str) -> None:
    async def body() -> None:
        async with _open(etcd_server) as directory:
            revision = await directory.put(f"{namespace}/a", b"1")
            assert await directory.get(f"{namespace}/a") == Entry(f"{namespace}/a", b"1", revision)
            assert await directory.list(f"{namespace}/") == [Entry(f"{namespace}/a", b"1", revision)]
            await directory.delete(f"{namespace}/a")
            await directory.delete(f"{namespace}/a")
            assert await directory.get(f"{namespace}/a") is None
            assert await directory.list(f"{namespace}/") == []

    asyncio.run(body())


def test_of_many_who_create_a_key_one_does(etcd_server: Server, namespace: str) -> None:
    async def body() -> None:
        async with _open(etcd_server) as directory:
            made = await asyncio.gather(*(directory.create(namespace, b"%d" % i) for i in range(20)))
            entry = await directory.get(namespace)
        assert made.count(True) == 1
        assert entry is not None
        assert entry.value == b"%d" % made.index(True)

    asyncio.run(body())


def test_of_many_who_swap_a_revision_one_does(etcd_server: Server, namespace: str) -> None:
    async def body() -> None:
        async with _open(etcd_server) as directory:
            revision = await directory.put(namespace, b"before")
            swaps = (directory.swap(namespace, b"%d" % i, revision) for i in range(20))
            results = await asyncio.gather(*swaps, return_exceptions=True)
            entry = await directory.get(namespace)
        won = [i for i, result in enumerate(results) if isinstance(result, int)]
        assert len(won) == 1
        assert sum(isinstance(result, Conflict) for result in results) == 19
        assert entry == Entry(namespace, b"%d" % won[0], int(str(results[won[0]])))

    asyncio.run(body())


def test_a_transaction_is_whole_or_nothing_and_names_the_key_that_changed(
    etcd_server: Server, namespace: str
) -> None:
    async def body() -> None:
        first, second, third = (f"{namespace}/{name}" for name in "abc")
        async with _open(etcd_server) as directory:
            old = await directory.put(first, b"1")
            new = await directory.transact(
                (Guard(first, old), Guard(second, 0)), (Put(first, b"2"), Put(second, b"2"))
            )
            with pytest.raises(Conflict, match=second):
                await directory.transact((Guard(first, new), Guard(second, 0)), (Put(third, b"3"),))
            assert await directory.list(namespace) == [Entry(first, b"2", new), Entry(second, b"2", new)]

    asyncio.run(body())


def test_thousands_of_keys_are_listed_as_at_one_moment(etcd_server: Server, namespace: str) -> None:
    async def body() -> None:
        keys = [f"{namespace}/{number:05}" for number in range(2500)]
        async with _open(etcd_server) as directory:
            for start in range(0, len(keys), 100):
                await directory.transact((), [Put(key, b"x") for key in keys[start : start + 100]])
            assert [entry.key for entry in await directory.list(f"{namespace}/")] == keys

    asyncio.run(body())


def test_a_value_that_etcd_would_refuse_is_refused_before(etcd_server: Server, namespace: str) -> None:
    async def body() -> None:
        async with _open(etcd_server) as directory:
            for write in (directory.put, directory.own):
                with pytest.raises(PayloadTooLarge):
                    await write(namespace, bytes(2**21))
            await directory.own(namespace, bytes(2**20))

    asyncio.run(body())


def test_a_watch_lists_and_then_tells_each_change(etcd_server: Server, namespace: str) -> None:
    async def body() -> None:
        async with _open(etcd_server) as directory:
            before = await directory.put(f"{namespace}/a", b"1")
            async with directory.watch(f"{namespace}/") as changes:
                assert await _next(changes) == Listed([Entry(f"{namespace}/a", b"1", before)])
                after = await directory.put(f"{namespace}/b", b"2")
                assert await _next(changes) == Changed(Entry(f"{namespace}/b", b"2", after))
                await directory.put(f"{namespace}-other/b", b"2")
                await directory.delete(f"{namespace}/a")
                assert await _next(changes) == Removed(f"{namespace}/a")

    asyncio.run(body())


def test_what_a_process_owned_vanishes_when_it_closes(etcd_server: Server, namespace: str) -> None:
    async def body() -> None:
        async with _open(etcd_server) as reader, reader.watch(namespace) as changes:
            await _next(changes)
            async with _open(etcd_server) as directory:
                await directory.own(namespace, b"here")
                assert isinstance(await _next(changes), Changed)
            assert await _next(changes, limit_s=1) == Removed(namespace)

    asyncio.run(body())


def test_an_owned_key_changes_its_value_in_the_order_of_wishes_and_ends_when_disowned(
    etcd_server: Server, namespace: str
) -> None:
    async def body() -> None:
        async with _open(etcd_server) as directory:
            await asyncio.gather(*(directory.own(namespace, b"%d" % i) for i in range(50)))
            entry = await directory.get(namespace)
            assert entry is not None
            assert entry.value == b"49"
            await directory.disown(namespace)
            assert await directory.get(namespace) is None

    asyncio.run(body())


def test_more_owned_keys_than_one_write_takes_are_all_put(etcd_server: Server, namespace: str) -> None:
    async def body() -> None:
        async with _open(etcd_server) as directory:
            await asyncio.gather(*(directory.own(f"{namespace}/{i}", bytes(20_000)) for i in range(250)))
            assert len(await directory.list(f"{namespace}/")) == 250

    asyncio.run(body())


def test_what_lives_by_a_lease_of_its_own_vanishes_with_it_alone(etcd_server: Server, namespace: str) -> None:
    async def body() -> None:
        async with _open(etcd_server) as directory:
            await directory.own(f"{namespace}/process", b"1")
            async with directory.open_lease() as lease:
                await lease.own(f"{namespace}/part", b"2")
                assert len(await directory.list(f"{namespace}/")) == 2
                assert lease.lease_id not in (0, directory.lease_id)
            assert [entry.key for entry in await directory.list(f"{namespace}/")] == [f"{namespace}/process"]

    asyncio.run(body())


def test_many_leases_are_kept_alive_together(etcd_server: Server, namespace: str) -> None:
    async def body() -> None:
        async with _open(etcd_server, lease_ttl_s=1) as directory, AsyncExitStack() as stack:
            for number in range(60):
                lease = await stack.enter_async_context(directory.open_lease())
                await lease.own(f"{namespace}/{number}", b"1")
            revisions = {entry.key: entry.revision for entry in await directory.list(f"{namespace}/")}
            await asyncio.sleep(3)
            assert {entry.key: entry.revision for entry in await directory.list(f"{namespace}/")} == revisions

    asyncio.run(body())


def test_of_leases_renewed_together_a_lost_one_is_taken_anew_and_the_others_stay(
    etcd_server: Server, namespace: str
) -> None:
    async def body() -> None:
        async with _open(etcd_server, lease_ttl_s=2) as directory, AsyncExitStack() as stack:
            leases = [await stack.enter_async_context(directory.open_lease()) for _ in range(3)]
            for number, lease in enumerate(leases):
                await lease.own(f"{namespace}/{number}", b"1")
            ids = [lease.lease_id for lease in leases]
            async with directory.watch(f"{namespace}/1") as changes:
                await _until(changes, _lists(f"{namespace}/1"))
                await asyncio.to_thread(_revoke, etcd_server, ids[1])
                await _until(changes, lambda change: isinstance(change, Removed))
                await _until(changes, _lists(f"{namespace}/1"))
            assert leases[1].lease_id != ids[1]
            assert [leases[0].lease_id, leases[2].lease_id] == [ids[0], ids[2]]

    asyncio.run(body())


def test_a_key_that_another_has_when_a_lease_is_taken_anew_is_his_until_he_is_gone(
    etcd_server: Server, namespace: str
) -> None:
    """As when a process that was stopped for long wakes beside its successor; and as it ends before him."""

    async def body() -> None:
        async with _open(etcd_server, lease_ttl_s=2) as directory, directory.watch(namespace) as changes:
            async with directory.open_lease() as former:
                await former.own(namespace, b"former")
                async with directory.open_lease() as successor:
                    revision = await successor.own(namespace, b"successor")
                    await _lose_lease(etcd_server, former)
                    again = asyncio.ensure_future(former.own(namespace, b"former, awake"))
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(1.5):
                            await asyncio.shield(again)
                    entry = await directory.get(namespace)
                    assert entry is not None
                    assert (entry.value, entry.revision) == (b"successor", revision)
                await again
                await _until(changes, _lists(namespace))
            async with directory.open_lease() as former, directory.open_lease() as successor:
                await former.own(namespace, b"former")
                await successor.own(namespace, b"successor")
                await _lose_lease(etcd_server, former)
                await former.disown(namespace)
                assert [entry.value for entry in await directory.list(namespace)] == [b"successor"]

    asyncio.run(body())


def test_an_owned_key_outlives_many_times_to_live(etcd_server: Server, namespace: str) -> None:
    async def body() -> None:
        async with _open(etcd_server, lease_ttl_s=1) as directory:
            await directory.own(namespace, b"here")
            async with directory.watch(namespace) as changes:
                await _next(changes)
                with pytest.raises(TimeoutError):
                    await _next(changes, limit_s=2.5)

    asyncio.run(body())


def test_an_etcd_that_returns_empty_gets_every_owned_key_within_two_seconds(
    make_etcd: Callable[[], Server],
) -> None:
    server = make_etcd()

    async def body() -> None:
        async with _open(server) as directory:
            await directory.put("stays/not", b"")
            first_lease = directory.lease_id
            for number in range(3):
                await directory.own(f"owned/{number}", b"here")
            async with directory.watch("owned/") as changes:
                await _next(changes)
                server.kill()
                server.wipe()
                server.restart()
                await _until(changes, _lists("owned/2"), limit_s=2)
            assert len(await directory.list("owned/")) == 3
            assert await directory.list("stays/") == []
            assert directory.lease_id != first_lease

    asyncio.run(body())


def test_an_outage_shorter_than_the_lease_removes_nothing(make_etcd: Callable[[], Server]) -> None:
    server = make_etcd()

    async def body() -> None:
        async with _open(server) as directory, directory.watch("owned") as changes:
            await _next(changes)
            revision = await directory.own("owned", b"here")
            await _until(changes, _lists("owned"))
            lease_id = directory.lease_id
            server.kill()
            with pytest.raises(Disconnected):
                await directory.get("owned")
            server.restart()
            assert await _next(changes, limit_s=2) == Listed([Entry("owned", b"here", revision, lease_id)])
            assert await directory.own("owned", b"still here") > revision
            assert directory.lease_id == lease_id

    asyncio.run(body())


def test_listeners_hear_when_etcd_goes_and_comes(make_etcd: Callable[[], Server]) -> None:
    server = make_etcd()

    async def body() -> None:
        heard: asyncio.Queue[bool] = asyncio.Queue()
        async with _open(server, lease_ttl_s=2) as directory:
            directory.listeners.append(heard.put_nowait)
            assert directory.is_connected
            server.kill()
            async with asyncio.timeout(3):
                assert await heard.get() is False
            server.restart()
            async with asyncio.timeout(3):
                assert await heard.get() is True

    asyncio.run(body())


def test_a_wish_made_during_an_outage_is_granted_after_it(make_etcd: Callable[[], Server]) -> None:
    server = make_etcd()

    async def body() -> None:
        settings = DirectorySettings(endpoints=[server.url], rpc_timeout_s=0.2)
        async with open_directory(settings) as directory, directory.watch("owned/") as changes:
            await directory.own("owned/gone", b"here")
            await _until(changes, _lists("owned/gone"))
            server.kill()
            with pytest.raises(DeadlineExceeded):
                await directory.own("owned/new", b"here")
            with pytest.raises(DeadlineExceeded):
                await directory.disown("owned/gone")
            server.restart()
            await _until(changes, _lists("owned/new"), limit_s=3)
            assert await directory.get("owned/gone") is None

    asyncio.run(body())


def test_a_lease_that_expired_while_etcd_was_stopped_is_taken_anew(make_etcd: Callable[[], Server]) -> None:
    server = make_etcd()

    async def body() -> None:
        settings = DirectorySettings(endpoints=[server.url], lease_ttl_s=1, rpc_timeout_s=2.5)
        async with open_directory(settings) as directory:
            await directory.own("owned", b"here")
            first_lease = directory.lease_id
            async with directory.watch("owned") as changes:
                await _next(changes)
                server.suspend()
                with pytest.raises(DeadlineExceeded):
                    await directory.get("owned")  # for longer than the lease
                server.resume()
                await _until(changes, _lists("owned"), limit_s=3)
            entry = await directory.get("owned")
            assert entry is not None
            assert directory.lease_id != first_lease

    asyncio.run(body())


def test_a_watch_that_slept_through_a_compaction_lists_again(make_etcd: Callable[[], Server]) -> None:
    server = make_etcd()

    async def body() -> None:
        async with _open(server) as writer, writer.watch("key") as changes:
            await writer.put("key", b"0")
            await _next(changes)
            server.kill()
            server.restart()
            async with _open(server) as other:
                for number in range(1, 50):
                    revision = await other.put("key", b"%d" % number)
                _compact(server, revision)
                change = await _until(changes, _lists("key"), limit_s=3)
                assert change == Listed([Entry("key", b"49", revision)])
                await other.delete("key")
                assert await _until(changes, lambda change: change == Removed("key"), limit_s=3)

    asyncio.run(body())


def test_a_compaction_under_a_watch_loses_no_change(make_etcd: Callable[[], Server]) -> None:
    server = make_etcd()

    async def body() -> None:
        async with _open(server) as directory, directory.watch("key") as changes:
            await _next(changes)
            for number in range(20):
                revision = await directory.put("key", b"%d" % number)
                _compact(server, revision)
            last = Entry("key", b"19", revision)
            await _until(changes, lambda change: change in (Listed([last]), Changed(last)), limit_s=3)
            await directory.delete("key")
            assert await _next(changes, limit_s=3) == Removed("key")

    asyncio.run(body())


def test_a_process_that_starts_before_etcd_waits_for_it(make_etcd: Callable[[], Server]) -> None:
    server = make_etcd()
    server.kill()

    async def body() -> None:
        async with asyncio.TaskGroup() as tasks:
            opening = tasks.create_task(_lease_of(server), name="opening")
            await asyncio.wait((opening,), timeout=0.3)
            assert not opening.done()
            server.restart()
        assert opening.result() > 0

    asyncio.run(body())


async def _lease_of(server: Server) -> int:
    async with _open(server) as directory:
        await directory.own("key", b"")
        return directory.lease_id


def test_no_etcd_at_all_is_disconnected_after_the_limit() -> None:
    async def body() -> None:
        settings = DirectorySettings(endpoints=[f"127.0.0.1:{reserve_port()}"], connect_timeout_s=0.5)
        with pytest.raises(Disconnected):
            async with open_directory(settings):
                pass

    asyncio.run(body())


def test_a_nats_server_in_place_of_etcd_is_named_at_once(nats_server: Server) -> None:
    async def body() -> None:
        settings = DirectorySettings(endpoints=[nats_server.url.removeprefix("nats://")])
        async with asyncio.timeout(5):
            with pytest.raises(InvalidSetting, match="is no etcd; it says 'INFO"):
                async with open_directory(settings):
                    pass

    asyncio.run(body())


def test_what_takes_connections_and_says_nothing_is_named_in_seconds() -> None:
    """No etcd that is well does so, but one that waits for its peers does: it is borne for a while."""

    async def body(endpoint: str) -> None:
        settings = DirectorySettings(endpoints=[endpoint], wrong_server_after_s=0.5)
        async with asyncio.timeout(20):
            with pytest.raises(InvalidSetting, match=f"{endpoint} takes connections and says nothing"):
                async with open_directory(settings):
                    pass

    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        asyncio.run(body(f"127.0.0.1:{silent.getsockname()[1]}"))


def test_an_error_of_the_body_comes_out_as_itself(etcd_server: Server) -> None:
    async def body() -> None:
        with pytest.raises(ZeroDivisionError):
            async with _open(etcd_server):
                raise ZeroDivisionError

    asyncio.run(body())


def test_endpoints_may_be_several(etcd_server: Server, namespace: str) -> None:
    async def body() -> None:
        settings = DirectorySettings(
            endpoints=[etcd_server.url, etcd_server.url.replace("127.0.0.1", "localhost")]
        )
        async with open_directory(settings) as directory:
            assert await directory.create(namespace, b"")
        unknown = DirectorySettings(endpoints=[etcd_server.url, "no-such-host.invalid:2379"])
        with pytest.raises(InvalidSetting, match="no-such-host"):
            async with open_directory(unknown):
                pass

    asyncio.run(body())
