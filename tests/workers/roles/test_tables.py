"""The tables of both ends: grants, pins, held grants, the owner's job, and who could take one."""

import asyncio

import msgspec
import pytest

from proto.cards import ProcessIdentity
from proto.control import Granted
from proto.jobs import PrefillJob
from proto.reports import LoadReport
from proto.roles import Role, WorkerState
from workers.roles.grants import Grant, GrantTable
from workers.roles.held_grants import HeldGrants
from workers.roles.owned_job import JobEnd, OwnedJob
from workers.roles.pins import PinTable
from workers.roles.prefill_view import AVOID_FIRST_S, AVOID_MOST_S, PrefillView
from workers.roles.proof import own_identity

GONE = ProcessIdentity("boot", "pid:[1]", 1, 1)


class Clock:
    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


def add_grant(table: GrantTable, grant: str, job: str = "job", holder_incarnation: str = "one") -> Grant:
    granted = Granted(grant, job, 0, 32, [1, 2])
    return table.add(granted, "sequence", "holder", holder_incarnation, GONE)


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
    table.add("short", "reader", [1], 5.0)
    table.add("long", "reader", [2], 50.0)
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


def test_a_grant_in_doubt_is_held_while_its_owner_lives() -> None:
    held = HeldGrants()
    for grant, owner in (("of the living", own_identity()), ("of the dead", _ended_process())):
        assert held.try_add(grant)
        held.doubt(grant, owner)
    assert held.among(["of the living"]) == ["of the living"]
    held.doubt("next", own_identity())
    assert held.among(["of the dead", "of the living", "next"]) == ["of the living", "next"]


def _ended_process() -> ProcessIdentity:
    own = own_identity()
    return ProcessIdentity(own.boot_id, own.pid_namespace, own.pid, own.start_ticks - 1)


def new_job(job: str = "job") -> PrefillJob:
    return PrefillJob(job, "request", "model", "owner", "owner's life", b"", 10.0)


def test_the_first_end_of_a_job_counts() -> None:
    async def body() -> None:
        owned = OwnedJob(new_job(), "sequence", 0, 16)
        assert owned.is_open
        owned.settle(JobEnd.LANDED)
        owned.settle(JobEnd.FAILED, "too late")
        assert await owned.wait_ended() is JobEnd.LANDED
        assert owned.reason == ""

    asyncio.run(body())


def test_an_ended_job_lets_nobody_wait_for_its_grant() -> None:
    async def body() -> None:
        owned = OwnedJob(new_job(), "sequence", 0, 16)
        owned.settle(JobEnd.CANCELLED)
        async with asyncio.timeout(1):
            await owned.wait_granted()

    asyncio.run(body())


def test_who_waits_for_a_job_may_leave_without_ending_it() -> None:
    async def body() -> None:
        owned = OwnedJob(new_job(), "sequence", 0, 16)
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
            owned = OwnedJob(new_job(), "sequence", 0, 16)
            owned.note_grant(add_grant(GrantTable(), "g"))
            assert owned.landed_by == ""
            owned.settle(end)
            assert owned.landed_by == holder

    asyncio.run(body())


def report(
    worker: str,
    *,
    role: Role = Role.PREFILL,
    state: WorkerState = WorkerState.READY,
    model: str = "m",
    tokens: int = 0,
    rate: float = 0.0,
) -> LoadReport:
    return LoadReport(
        worker=worker,
        model=model,
        incarnation="one",
        epoch=1,
        role=role,
        state=state,
        job_tokens=tokens,
        prefill_rate=rate,
    )


def test_the_prefill_worker_that_would_begin_first_is_chosen() -> None:
    view = PrefillView("m")
    view.learn(report("slow", tokens=100, rate=100.0))
    view.learn(report("fast", tokens=1000, rate=10_000.0))
    chosen = view.choose()
    assert chosen is not None
    assert chosen.worker == "fast"
    assert view.wait_s() == pytest.approx(0.1)


@pytest.mark.parametrize(
    "other",
    [
        report("w", role=Role.DECODE),
        report("w", state=WorkerState.DRAINING),
        report("w", state=WorkerState.LEAVING),
    ],
)
def test_who_takes_no_jobs_any_more_is_chosen_no_more(other: LoadReport) -> None:
    view = PrefillView("m")
    view.learn(report("w"))
    assert view.choose() == report("w")
    view.learn(other)
    assert view.is_empty
    assert view.choose() is None
    assert view.wait_s() == float("inf")


def test_workers_of_other_models_and_lost_ones_are_not_chosen() -> None:
    view = PrefillView("m")
    view.learn(report("other", model="n"))
    assert view.is_empty
    view.learn(report("w"))
    view.lose("w")
    view.lose("w")
    assert view.is_empty


def test_who_fails_jobs_is_asked_less_and_less_until_one_lands() -> None:
    now_s = 100.0
    view = PrefillView("m", now_s=lambda: now_s)
    view.learn(report("w"))
    pauses_s = []
    for _ in range(12):
        view.avoid("w")
        assert view.is_empty
        assert view.wait_s() == float("inf")
        began_s = now_s
        while view.choose() is None:
            now_s += 0.05
        pauses_s.append(now_s - began_s)
    assert pauses_s[0] <= AVOID_FIRST_S + 0.1
    assert AVOID_MOST_S / 2 <= max(pauses_s) <= AVOID_MOST_S + 0.1
    view.avoid("w")
    view.forgive("w")
    assert view.choose() == report("w")
    view.avoid("w")
    now_s += AVOID_FIRST_S
    assert view.choose() == report("w")


def test_another_worker_is_asked_meanwhile_and_a_successor_is_not_blamed() -> None:
    view = PrefillView("m", now_s=lambda: 100.0)
    view.learn(report("bad"))
    view.learn(report("good", tokens=1000))
    view.avoid("bad")
    assert view.choose() == report("good", tokens=1000)
    successor = msgspec.structs.replace(report("bad"), incarnation="two")
    view.learn(successor)
    assert view.choose() == successor


def test_who_has_kv_that_cannot_come_here_is_never_asked() -> None:
    view = PrefillView("m", lambda worker, incarnation: (worker, incarnation) != ("w", "one"))
    view.learn(report("w"))
    assert view.is_empty
    view.learn(msgspec.structs.replace(report("w"), incarnation="two"))
    assert not view.is_empty
