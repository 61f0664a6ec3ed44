"""Whatever order offers, grants, landings, cancels and losses come in, no block is lost or lent twice."""

import asyncio

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from proto.control import Granted
from proto.errors import GrantRefused
from proto.jobs import Landing
from tests.workers.roles.lending import HOLDERS, Lending, ask_of
from workers.roles.owned_job import JobEnd, OwnedJob
from workers.transfer.own_memory import OwnMemory
from workers.transfer.peers import Peers


@pytest.mark.parametrize("strategy", ["direct", "host"])
def test_no_block_is_lost_or_lent_twice(
    runner: asyncio.Runner, strategy: str, request: pytest.FixtureRequest
) -> None:
    holders: tuple[Peers, OwnMemory] = request.getfixturevalue(
        "holders" if strategy == "direct" else "staged_holders"
    )

    class Machine(LendingMachine):
        @initialize()
        def open(self) -> None:
            self.begin(runner, Lending(*holders))

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=30,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


class LendingMachine(RuleBasedStateMachine):
    """`grants` are all that were ever given; `jobs` those whose life goes on."""

    def begin(self, runner: asyncio.Runner, lending: Lending) -> None:
        self.runner = runner
        self.lending = lending
        self.jobs: list[OwnedJob] = []
        self.grants: list[Granted] = []
        self.num_offered = 0

    @rule(num_tokens=st.integers(6, 30), first_token=st.integers(0, 3))
    def offer(self, num_tokens: int, first_token: int) -> None:
        self.num_offered += 1
        name = f"job {self.num_offered}"

        async def on_loop() -> OwnedJob:
            return self.lending.offer(name, num_tokens, first_token)

        if (
            len(self.jobs) < 6
            and self.lending.engine.match(list(range(num_tokens)), b"salt") < num_tokens - 1
        ):
            self.jobs.append(self.runner.run(on_loop()))

    @rule(data=st.data(), holder=st.sampled_from(HOLDERS))
    def grant(self, data: st.DataObject, holder: str) -> None:
        if not self.jobs:
            return
        owned = data.draw(st.sampled_from(self.jobs))
        lent_before = {block for each in self.lending.lender.grants.all() for block in each.granted.blocks}
        known = self.lending.lender.grants.find_asked(owned.job.job, f"life of {holder}")
        try:
            granted = self.lending.lender.grant(ask_of(owned, holder))
        except GrantRefused:
            return
        if known is None:
            assert not lent_before & set(granted.blocks)
        else:
            assert granted == known.granted
        self.grants.append(granted)

    @rule(data=st.data(), is_awaited=st.booleans())
    def land(self, data: st.DataObject, is_awaited: bool) -> None:
        """What is copied out of staging is so before anything else happens, or while it does."""
        if not self.grants:
            return
        granted = data.draw(st.sampled_from(self.grants))

        async def on_loop() -> None:
            self.lending.lender.land(Landing(granted.grant, 1))
            if is_awaited:
                await self.lending.wait_landed()

        self.runner.run(on_loop())

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.grants:
            granted = data.draw(st.sampled_from(self.grants))
            self.lending.lender.end_grant(granted.grant, "given back")

    @rule(data=st.data(), is_cancelled=st.booleans())
    def close(self, data: st.DataObject, is_cancelled: bool) -> None:
        """As the life of a job ends at its owner: cancelled, or settled and scheduled here."""
        if not self.jobs:
            return
        owned = data.draw(st.sampled_from(self.jobs))
        self.jobs.remove(owned)
        if is_cancelled:
            self.lending.engine.cancel(owned.sequence)
        owned.settle(JobEnd.FAILED)
        self.lending.lender.close_job(owned)
        self.lending.engine.recall(owned.sequence)

    @rule(holder=st.sampled_from(HOLDERS))
    def lose(self, holder: str) -> None:
        self.lending.lender.lose(holder)

    @rule()
    def step(self) -> None:
        self.lending.engine.step_once()

    @invariant()
    def is_sound(self) -> None:
        self.lending.check()

    def teardown(self) -> None:
        self.runner.run(self.lending.wait_landed())
        for owned in list(self.jobs):
            self.lending.engine.cancel(owned.sequence)
            owned.settle(JobEnd.CANCELLED)
            self.lending.lender.close_job(owned)
        for granted in self.grants:
            self.lending.lender.end_grant(granted.grant, "its holder is gone")
        self.lending.step_to_rest()
        self.lending.assert_at_rest()
