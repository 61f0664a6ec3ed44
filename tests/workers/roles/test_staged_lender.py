"""An owner whose pool is hidden: others write into staging blocks and read from them, never its own."""

import asyncio

import pytest

from proto.blockhash import block_hashes
from proto.control import Pin
from proto.errors import GrantRefused
from proto.events import pack_hashes
from proto.jobs import Landing
from proto.tokens import pack_tokens
from tests.workers.roles.conftest import NUM_STAGING_BLOCKS
from tests.workers.roles.lending import BLOCK_SIZE, NUM_BLOCKS, SALT, Lending, ask_of
from workers.roles.owned_job import JobEnd


def test_what_landed_in_staging_is_the_sequences_once_it_is_copied(
    runner: asyncio.Runner, staged_lending: Lending
) -> None:
    async def body() -> None:
        lending = staged_lending
        owned = lending.offer("landed")
        granted = lending.lender.grant(ask_of(owned))
        assert set(granted.blocks) <= set(range(NUM_STAGING_BLOCKS))
        for _ in range(2):
            lending.lender.land(Landing(granted.grant, 1))
        assert owned.is_open
        with pytest.raises(GrantRefused):
            lending.lender.grant(ask_of(owned))
        lending.lender.end_grant(granted.grant, "nobody holds it")  # as the patrol hears by now
        assert await owned.wait_ended() is JobEnd.LANDED
        lending.lender.close_job(owned)
        lending.step_to_rest()
        lending.assert_at_rest()

    runner.run(body())


def test_a_job_that_ends_leaves_staging_blocks_in_quarantine_and_none_of_the_pool(
    runner: asyncio.Runner, staged_lending: Lending
) -> None:
    async def body() -> None:
        lending = staged_lending
        owned = lending.offer("cancelled")
        granted = lending.lender.grant(ask_of(owned))
        lending.engine.cancel("cancelled")
        lending.lender.close_job(owned)
        load = lending.engine.load()
        assert load.free_blocks == load.total_blocks == NUM_BLOCKS
        assert lending.lender.lent.num_free == NUM_STAGING_BLOCKS - len(granted.blocks)
        (quarantined,) = lending.lender.holdings([]).quarantined
        assert quarantined.num_blocks == len(granted.blocks)
        lending.lender.land(Landing(granted.grant, 1))  # the holder had not heard
        lending.assert_at_rest()

    runner.run(body())


def test_a_job_that_ends_while_its_kv_is_copied_gives_everything_back(
    runner: asyncio.Runner, staged_lending: Lending
) -> None:
    async def body() -> None:
        lending = staged_lending
        owned = lending.offer("too late")
        granted = lending.lender.grant(ask_of(owned))
        lending.lender.land(Landing(granted.grant, 1))
        lending.engine.cancel("too late")
        owned.settle(JobEnd.CANCELLED)
        lending.lender.close_job(owned)
        await lending.wait_landed()
        lending.assert_at_rest()

    runner.run(body())


def test_without_staging_blocks_a_grant_is_refused_though_the_pool_has_room(
    runner: asyncio.Runner, staged_lending: Lending
) -> None:
    async def body() -> None:
        lending = staged_lending
        jobs = [lending.offer(name, 4 * BLOCK_SIZE + 1) for name in ("first", "second", "third")]
        granted = [lending.lender.grant(ask_of(owned)) for owned in jobs[:2]]
        assert not lending.lender.can_lend(4 * BLOCK_SIZE)
        with pytest.raises(GrantRefused):
            lending.lender.grant(ask_of(jobs[2]))
        assert await jobs[2].wait_ended() is JobEnd.FAILED
        for owned in jobs:
            lending.engine.cancel(owned.sequence)
            owned.settle(JobEnd.CANCELLED)
            lending.lender.close_job(owned)
        for each in granted:
            lending.lender.end_grant(each.grant, "given back")
        lending.assert_at_rest()

    runner.run(body())


def test_a_pin_names_staging_blocks_until_its_end_and_none_where_there_is_no_room(
    runner: asyncio.Runner, staged_lending: Lending
) -> None:
    async def body() -> None:
        lending = staged_lending
        lending.fill_cache(7 * BLOCK_SIZE)
        hashes = block_hashes(pack_tokens(list(range(7 * BLOCK_SIZE))), BLOCK_SIZE, SALT)
        ask = Pin("reader", pack_hashes(hashes), 30.0)
        pinned = lending.lender.pin(ask)
        await lending.lender.show(pinned.pin)
        assert pinned.blocks == list(range(7))
        refused = lending.lender.pin(ask)
        assert (refused.pin, refused.blocks) == ("", [])
        assert lending.lender.unpin(pinned.pin).was_held
        lending.assert_at_rest()

    runner.run(body())
