"""Who may touch blocks: grants and pins over a real engine, whatever comes twice, late or never."""

import asyncio
from collections.abc import Callable

import pytest

from proto.blockhash import block_hashes
from proto.control import AskGrant, Pin
from proto.errors import GrantRefused, InvalidRequest
from proto.events import pack_hashes
from proto.jobs import Landing
from proto.tokens import pack_tokens
from tests.workers.roles.lending import BLOCK_SIZE, SALT, Lending, ask_of
from workers.roles.owned_job import JobEnd


@pytest.fixture
def run(runner: asyncio.Runner) -> Callable[[Callable[[], None]], None]:
    """Runs a plain function on the loop, where a job may be made."""

    def run(body: Callable[[], None]) -> None:
        async def on_loop() -> None:
            body()

        runner.run(on_loop())

    return run


Run = Callable[[Callable[[], None]], None]


def test_a_landing_gives_the_blocks_to_the_sequence_which_then_goes_on(run: Run, lending: Lending) -> None:
    def body() -> None:
        owned = lending.offer("r")
        granted = lending.lender.grant(ask_of(owned))
        assert (granted.start, granted.end, len(granted.blocks)) == (0, 12, 3)
        assert lending.num_set_aside == 3
        assert not lending.engine.step_once()
        lending.lender.land(Landing(granted.grant, 1))
        assert owned.landed_by == "ann"
        assert lending.engine.block_table("r") == granted.blocks
        lending.lender.close_job(owned)
        lending.step_to_rest()
        assert lending.listener.ended == {"r": "length"}
        lending.assert_at_rest()

    run(body)


def test_only_what_the_cache_lacks_is_granted(run: Run, lending: Lending) -> None:
    def body() -> None:
        lending.fill_cache(8)
        granted = lending.lender.grant(ask_of(lending.offer("r")))
        assert (granted.start, granted.end, len(granted.blocks)) == (8, 12, 1)

    run(body)


def test_a_holder_that_asks_twice_is_answered_alike(run: Run, lending: Lending) -> None:
    def body() -> None:
        owned = lending.offer("r")
        assert lending.lender.grant(ask_of(owned)) == lending.lender.grant(ask_of(owned))
        assert lending.num_set_aside == 3

    run(body)


def test_a_second_taker_gets_fresh_blocks_and_the_first_one_writes_into_quarantine(
    run: Run, lending: Lending
) -> None:
    def body() -> None:
        owned = lending.offer("r")
        first = lending.lender.grant(ask_of(owned, "ann"))
        second = lending.lender.grant(ask_of(owned, "ben"))
        assert not set(first.blocks) & set(second.blocks)
        assert lending.lender.grants.num_quarantined_blocks == 3
        lending.lender.land(Landing(first.grant, 1))
        assert owned.is_open
        assert lending.num_set_aside == 3
        lending.lender.land(Landing(second.grant, 1))
        assert owned.landed_by == "ben"
        lending.lender.close_job(owned)
        lending.step_to_rest()
        lending.assert_at_rest()

    run(body)


def test_the_blocks_of_a_cancelled_request_are_in_quarantine_until_their_writer_is_done(
    run: Run, lending: Lending
) -> None:
    def body() -> None:
        owned = lending.offer("r")
        granted = lending.lender.grant(ask_of(owned))
        lending.engine.cancel("r")
        owned.settle(JobEnd.CANCELLED)
        lending.lender.close_job(owned)
        assert lending.num_set_aside == lending.lender.grants.num_quarantined_blocks == 3
        lending.lender.land(Landing(granted.grant, 1))
        lending.assert_at_rest()

    run(body)


@pytest.mark.parametrize("is_landing", [True, False])
def test_an_end_that_comes_twice_changes_nothing(run: Run, lending: Lending, is_landing: bool) -> None:
    def body() -> None:
        owned = lending.offer("r")
        granted = lending.lender.grant(ask_of(owned))
        if is_landing:
            lending.lender.land(Landing(granted.grant, 1))
        for _ in range(2):
            lending.lender.end_grant(granted.grant, "given back")
            lending.lender.land(Landing(granted.grant, 1))
        lending.check()
        lending.lender.close_job(owned)
        lending.engine.recall("r")
        lending.step_to_rest()
        lending.assert_at_rest()

    run(body)


def test_a_landing_for_a_sequence_that_is_gone_ends_the_job(run: Run, lending: Lending) -> None:
    def body() -> None:
        owned = lending.offer("r")
        granted = lending.lender.grant(ask_of(owned))
        lending.engine.cancel("r")
        lending.lender.land(Landing(granted.grant, 1))
        assert not owned.is_open
        assert owned.landed_by == ""
        lending.lender.close_job(owned)
        lending.assert_at_rest()

    run(body)


def test_beyond_the_share_that_may_be_lent_a_job_fails_at_once(run: Run, lending: Lending) -> None:
    def body() -> None:
        first = lending.offer("first", 41)
        lending.lender.grant(ask_of(first))
        second = lending.offer("second", 13, first_token=100)
        with pytest.raises(GrantRefused):
            lending.lender.grant(ask_of(second))
        assert not second.is_open
        assert first.is_open
        lending.check()

    run(body)


def test_a_refused_second_taker_leaves_the_first_one_alone(run: Run, lending: Lending) -> None:
    def body() -> None:
        owned = lending.offer("r", 41)
        granted = lending.lender.grant(ask_of(owned, "ann"))
        with pytest.raises(GrantRefused):
            lending.lender.grant(ask_of(owned, "ben"))
        assert owned.is_open
        lending.lender.land(Landing(granted.grant, 1))
        assert owned.landed_by == "ann"

    run(body)


@pytest.mark.parametrize("holder", ["nobody", "ann"])
def test_a_holder_that_could_not_be_fenced_gets_no_grant(run: Run, lending: Lending, holder: str) -> None:
    def body() -> None:
        owned = lending.offer("r")
        with pytest.raises(GrantRefused):
            lending.lender.grant(AskGrant("r", holder, "a life that the directory does not know"))
        assert not owned.is_open
        lending.check()

    run(body)


def test_a_job_that_is_done_with_gets_no_grant(run: Run, lending: Lending) -> None:
    def body() -> None:
        owned = lending.offer("r")
        owned.settle(JobEnd.CANCELLED)
        with pytest.raises(GrantRefused):
            lending.lender.grant(ask_of(owned))
        lending.lender.close_job(owned)
        with pytest.raises(GrantRefused):
            lending.lender.grant(ask_of(owned))

    run(body)


def test_a_taker_that_gives_up_ends_the_job_and_its_blocks_stay_closed(run: Run, lending: Lending) -> None:
    def body() -> None:
        owned = lending.offer("r")
        granted = lending.lender.grant(ask_of(owned))
        lending.lender.give_up("r", "a write failed")
        lending.lender.close_job(owned)
        assert lending.lender.grants.num_quarantined_blocks == 3
        lending.lender.end_grant(granted.grant, "gone")
        lending.engine.cancel("r")
        lending.assert_at_rest()

    run(body)


def test_a_lost_worker_loses_its_jobs_and_no_others(run: Run, lending: Lending) -> None:
    def body() -> None:
        taken, granted, other = (lending.offer(name, 9, 50 * index) for index, name in enumerate("abc"))
        taken.taker = "ann"
        lending.lender.grant(ask_of(granted, "ann"))
        lending.lender.grant(ask_of(other, "ben"))
        lending.lender.lose("ann")
        assert (taken.is_open, granted.is_open, other.is_open) == (False, False, True)
        lending.check()

    run(body)


def hashes_of(num_tokens: int) -> bytes:
    return pack_hashes(block_hashes(pack_tokens(range(num_tokens)), BLOCK_SIZE, SALT))


def test_pinned_blocks_stay_until_they_are_let_go(run: Run, lending: Lending) -> None:
    def body() -> None:
        lending.fill_cache(12)
        pinned = lending.lender.pin(Pin("reader", hashes_of(40), 30.0))
        assert len(pinned.blocks) == 3
        assert lending.engine.load().active_blocks == 3
        assert lending.lender.unpin(pinned.pin).was_held
        assert not lending.lender.unpin(pinned.pin).was_held
        lending.assert_at_rest()

    run(body)


def test_a_pin_that_has_expired_did_not_hold(run: Run, lending: Lending) -> None:
    def body() -> None:
        lending.fill_cache(12)
        pinned = lending.lender.pin(Pin("reader", hashes_of(12), 1e-9))
        lending.lender.expire_pins()
        assert not lending.lender.unpin(pinned.pin).was_held
        lending.assert_at_rest()

    run(body)


def test_the_first_grant_and_pin_after_an_idle_hour_are_as_good_as_any(run: Run, lending: Lending) -> None:
    def body() -> None:
        hashes = pack_hashes(block_hashes(pack_tokens(list(range(8))), BLOCK_SIZE, SALT))
        serve(lending, "before")
        forgotten = lending.lender.pin(Pin("ann", hashes, 20.0))
        assert forgotten.blocks
        lending.slept_s = 3600.0
        lending.lender.expire_pins()
        assert not lending.lender.unpin(forgotten.pin).was_held
        serve(lending, "after", first_token=100)
        pinned = lending.lender.pin(Pin("ann", hashes, 20.0))
        lending.lender.expire_pins()
        assert lending.lender.unpin(pinned.pin).was_held
        lending.assert_at_rest()

    run(body)


def serve(lending: Lending, name: str, first_token: int = 0) -> None:
    """A remote prefill from its offer to its landing, and the answer."""
    owned = lending.offer(name, first_token=first_token)
    granted = lending.lender.grant(ask_of(owned))
    lending.lender.land(Landing(granted.grant, 1))
    lending.lender.close_job(owned)
    lending.step_to_rest()
    assert owned.landed_by == "ann"
    assert lending.listener.ended[name] == "length"


def test_nothing_found_is_no_pin(run: Run, lending: Lending) -> None:
    def body() -> None:
        pinned = lending.lender.pin(Pin("reader", hashes_of(12), 30.0))
        assert (pinned.pin, pinned.blocks) == ("", [])
        lending.assert_at_rest()

    run(body)


@pytest.mark.parametrize("ttl_s", [0.0, -1.0, float("nan")])
def test_a_pin_for_no_time_is_refused(run: Run, lending: Lending, ttl_s: float) -> None:
    def body() -> None:
        lending.fill_cache(12)
        with pytest.raises(InvalidRequest):
            lending.lender.pin(Pin("reader", hashes_of(12), ttl_s))
        lending.assert_at_rest()

    run(body)
