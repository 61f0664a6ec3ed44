"""The tables of both ends: grants, pins, held grants, the owner's job, and who could take one."""

import asyncio

import pytest

from proto.cards import ProcessIdentity
from proto.control import Granted
from proto.jobs import PrefillJob
from workers.roles.grants import Grant, GrantTable
from workers.roles.held_grants import HeldGrants
from workers.roles.owned_job import JobEnd, OwnedJob
from workers.roles.pins import PinTable
from workers.roles.proof import own_identity

GONE = ProcessIdentity("boot", "pid:[1]", 1, 1)


class Clock:
    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


def add_grant(table: GrantTable, grant: str, job: str = "job", holder_incarnation: str = "one") -> Grant:
    granted = Granted(grant, job, 0, 32, [1, 2])
    return table.add(granted, [1, 2], "sequence", "holder", holder_incarnation, [GONE])


def test_a_grant_is_found_by_its_job_and_holder_until_it_is_quarantined() -> None:
    table = GrantTable()
    grant = add_grant(table, "g")
    assert table.find_asked("job", "one") is grant
    assert table.find_asked("job", "two") is None
    assert (table.num_granted_blocks, table.num_quarantined_blocks) == (2, 0)
    table.quarantine("g")
    assert table.find_asked("job", "one") is None
    assert (table.num_granted_blocks, table.num_quarantined_blocks) == (0, 2)


def test_quarantine_counts_its_own_time_and_only_once() -> None:
    clock = Clock()
    table = GrantTable(clock)
    grant = add_grant(table, "g")
    clock.s = 110.0
    table.quarantine("g")
    clock.s = 120.0
    table.quarantine("g")
    assert grant.began_s == 110.0


def test_a_grant_is_taken_once() -> None:
    table = GrantTable()
    grant = add_grant(table, "g")
    assert table.take("g") is grant
    assert table.take("g") is None
    table.quarantine("g")
    assert len(table) == 0


def test_a_pin_ends_once_by_its_reader_or_by_its_time() -> None:
    clock = Clock()
    table = PinTable(clock)
    table.add("short", "reader", [1], [1], 5.0)
    table.add("long", "reader", [2], [2], 50.0)
    clock.s = 104.9
    assert table.take_expired() == []
    clock.s = 105.0
    assert [held.pin for held in table.take_expired()] == ["short"]
    assert table.take("short") is None
    assert table.take("long") is not None
    assert table.all() == []


def test_a_grant_that_was_denied_once_is_never_held() -> None:
    held = HeldGrants()
    assert held.among(["late"]) == []
    assert not held.try_add("late")
    assert held.among(["late"]) == []


def test_a_grant_that_was_dropped_is_never_held_again() -> None:
    held = HeldGrants()
    assert held.try_add("g")
    assert held.among(["g", "other"]) == ["g"]
    held.drop("g")
    assert held.among(["g"]) == []
    assert not held.try_add("g")
    assert len(held) == 0


def test_a_grant_in_doubt_is_held_while_a_process_of_its_owner_lives() -> None:
    held = HeldGrants()
    for grant, owner in (("of the living", [own_identity()]), ("of the dead", [_ended_process()] * 2)):
        assert held.try_add(grant)
        held.doubt(grant, owner)
    assert held.among(["of the living"]) == ["of the living"]
    assert (held.all(), len(held)) == (["of the living"], 1)
    held.doubt("next", [_ended_process(), own_identity()])
    assert held.among(["of the dead", "of the living", "next"]) == ["of the living", "next"]


def _ended_process() -> ProcessIdentity:
    own = own_identity()
    return ProcessIdentity(own.boot_id, own.pid_namespace, own.pid, own.start_ticks - 1)


def new_job(job: str = "job") -> PrefillJob:
    return PrefillJob(job, "request", "model", "owner", "owner's life", b"", 10.0)


def test_the_first_end_of_a_job_counts() -> None:
    async def body() -> None:
        owned = OwnedJob(new_job(), "sequence", 0, 16, "best")
        assert owned.is_open
        owned.settle(JobEnd.LANDED)
        owned.settle(JobEnd.FAILED, "too late")
        assert await owned.wait_ended() is JobEnd.LANDED
        assert owned.reason == ""

    asyncio.run(body())


def test_an_ended_job_lets_nobody_wait_for_its_grant() -> None:
    async def body() -> None:
        owned = OwnedJob(new_job(), "sequence", 0, 16, "best")
        owned.settle(JobEnd.CANCELLED)
        async with asyncio.timeout(1):
            await owned.wait_granted()

    asyncio.run(body())


def test_who_waits_for_a_job_may_leave_without_ending_it() -> None:
    async def body() -> None:
        owned = OwnedJob(new_job(), "sequence", 0, 16, "best")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await owned.wait_ended()
        assert owned.is_open
        owned.settle(JobEnd.FAILED, "why")
        assert await owned.wait_ended() is JobEnd.FAILED

    asyncio.run(body())


def test_only_the_holder_of_a_landing_has_done_the_prefill() -> None:
    async def body() -> None:
        for end, holder in ((JobEnd.LANDED, "holder"), (JobEnd.FAILED, ""), (JobEnd.CANCELLED, "")):
            owned = OwnedJob(new_job(), "sequence", 0, 16, "best")
            owned.note_grant(add_grant(GrantTable(), "g"))
            assert owned.landed_by == ""
            owned.settle(end)
            assert owned.landed_by == holder

    asyncio.run(body())
