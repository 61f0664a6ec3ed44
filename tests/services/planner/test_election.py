"""Who leads, on a real etcd: the one that is there longest, for as long as its lease lasts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from proto import keys
from proto.errors import Conflict
from services.directory import Directory, DirectorySettings, Put, open_directory
from services.etcd import EtcdClient, open_channel
from services.planner.election import Election, line_up
from services.servers import Server
from services.tasks import open_tasks
from tests.services.waiting import wait_for

LIMIT_S = 30.0


@asynccontextmanager
async def _candidate(etcd: Server, ns: str, name: str) -> AsyncIterator[tuple[Directory, Election]]:
    """A planner's part in the election, for the time of the body."""
    election = Election(ns, name)

    async def follow(directory: Directory) -> None:
        async with directory.watch(keys.planners(ns)) as changes:
            async for change in changes:
                election.apply(change)

    settings = DirectorySettings(endpoints=[etcd.url], lease_ttl_s=2)
    async with open_directory(settings) as directory, open_tasks() as tasks:
        following = tasks.create_task(follow(directory), name="election")
        await directory.own(keys.planner(ns, name), b"")
        try:
            yield directory, election
        finally:
            following.cancel()


def test_the_first_leads_and_the_next_one_after_it(etcd_server: Server, namespace: str) -> None:
    async def body() -> None:
        async with _candidate(etcd_server, namespace, "second-by-name") as (_, first):
            await wait_for(lambda: first.leads, LIMIT_S)
            async with _candidate(etcd_server, namespace, "a-first-by-name") as (directory, second):
                entries = await directory.list(keys.planners(namespace))
                assert line_up(entries) == ["second-by-name", "a-first-by-name"]
                assert not second.leads
                with pytest.raises(Conflict):
                    await second.lead(directory)
                await directory.delete(keys.planner(namespace, "second-by-name"))
                await wait_for(lambda: second.leads and not first.leads, LIMIT_S)
                assert (await second.lead(directory)).key == keys.planner(namespace, "a-first-by-name")

    asyncio.run(body())


def test_one_that_lost_its_lease_leads_no_more_and_is_last_in_line(
    etcd_server: Server, namespace: str
) -> None:
    async def body() -> None:
        async with (
            _candidate(etcd_server, namespace, "a") as (directory, first),
            _candidate(etcd_server, namespace, "b") as (_, second),
            open_channel([etcd_server.url]) as channel,
        ):
            await wait_for(lambda: first.leads, LIMIT_S)
            lead = await first.lead(directory)
            await directory.transact([lead], [Put(f"{namespace}/ordered", b"while it leads")])
            await EtcdClient(channel, LIMIT_S).revoke(directory.lease_id, LIMIT_S)
            with pytest.raises(Conflict):
                await first.lead(directory)
            with pytest.raises(Conflict):
                await directory.transact([lead], [Put(f"{namespace}/ordered", b"after it led")])
            await wait_for(lambda: second.leads and not first.leads, LIMIT_S)

            async def line() -> list[str]:
                return line_up(await directory.list(keys.planners(namespace)))

            async with asyncio.timeout(LIMIT_S):
                while await line() != ["b", "a"]:  # noqa: ASYNC110 (its new lease is taken by and by)
                    await asyncio.sleep(0.05)

    asyncio.run(body())
