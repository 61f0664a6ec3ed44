"""A worker that lets go of all stops all with the first that is taken, each once, and for a moment."""

import asyncio

from proto.hand_over import PinSequence, TakenOver, TakeOver
from proto.requests import GenerateRequest, Sampling, Stopping
from proto.roles import Role, WorkerState
from proto.tokens import pack_tokens
from tests.services.waiting import wait_for
from tests.workers.roles.lending import Lending
from workers.outbox import Outgoing
from workers.request_spec import sequence_name
from workers.roles.hand_over_giver import HandOverGiver
from workers.roles.term import Term
from workers.served import Served, ServedTable

PATIENT_S = 60.0
MOMENT_S = 0.01
NUM_TOKENS = 40
PROMPT = list(range(6))


class Giving:
    """A giver over an engine whose steps are taken by hand. Belongs to the event loop."""

    def __init__(self, lending: Lending, pause_s: float) -> None:
        self.term = Term("source", "life", Role.DECODE)
        self.served = ServedTable()
        self.lending = lending
        self.giver = HandOverGiver(self.term, lending.engine, lending.lender, self.served, PATIENT_S, pause_s)

    def begin(self, *requests: str, await_kv: bool = False) -> None:
        for request in requests:
            self.lending.add(sequence_name(request, 0), PROMPT, max_tokens=NUM_TOKENS, await_kv=await_kv)
            asked = GenerateRequest(
                request,
                0,
                "model",
                "client",
                pack_tokens(PROMPT),
                Sampling(),
                Stopping(NUM_TOKENS),
                PATIENT_S,
            )
            timer = asyncio.get_running_loop().call_later(PATIENT_S, lambda: None)
            self.served.add(Served(asked, Outgoing(request, 0, "client", 0), 0, timer))

    def step(self) -> bool:
        has_stepped = self.lending.engine.step_once()
        heard, self.lending.listener.heard = self.lending.listener.heard, []
        self.giver.note_step(heard)
        return has_stepped

    async def take(self, request: str) -> TakenOver:
        """As a taker does, while the engine goes on with what it has to do."""
        giving = asyncio.ensure_future(self.giver.give(TakeOver(request, 0, "taker", 0, 0, PATIENT_S)))
        await asyncio.sleep(0)
        self.step()
        return await giving

    @property
    def num_frozen(self) -> int:
        return self.lending.engine.load().num_frozen

    def end(self) -> None:
        """All is cancelled, as frontends do that have the takers' tokens."""
        for served in self.served.all():
            self.lending.engine.cancel(served.sequence)
            self.served.drop(served)
        for held in self.lending.lender.holdings([]).pinned:
            self.lending.lender.unpin(held.name)
        self.lending.assert_at_rest()


def test_where_all_is_let_go_the_first_that_is_taken_stops_all(
    runner: asyncio.Runner, lending: Lending
) -> None:
    async def body() -> None:
        giving = Giving(lending, PATIENT_S)
        giving.begin("a", "b", "c")
        giving.begin("awaits", await_kv=True)
        giving.step()
        giving.term.turn(WorkerState.DRAINING)
        first = await giving.take("a")
        assert giving.num_frozen == 3
        assert not giving.step()
        assert (await giving.take("b")).tokens == first.tokens
        assert giving.num_frozen == 3
        giving.end()

    runner.run(body())


def test_one_that_is_taken_from_a_worker_that_stays_stops_alone(
    runner: asyncio.Runner, lending: Lending
) -> None:
    async def body() -> None:
        giving = Giving(lending, PATIENT_S)
        giving.begin("a", "b")
        giving.step()
        await giving.take("a")
        assert giving.num_frozen == 1
        assert giving.step()
        giving.end()

    runner.run(body())


def test_one_that_is_read_goes_on_until_it_is_taken(runner: asyncio.Runner, lending: Lending) -> None:
    async def body() -> None:
        giving = Giving(lending, PATIENT_S)
        giving.begin("a", "read")
        giving.step()
        giving.term.turn(WorkerState.DRAINING)
        giving.giver.pin(PinSequence("read", 0, "taker", 0, PATIENT_S))
        await giving.take("a")
        assert giving.num_frozen == 1
        assert giving.step()
        await giving.take("read")
        assert giving.num_frozen == 2
        giving.end()

    runner.run(body())


def test_one_that_nobody_takes_goes_on_after_a_moment_and_stops_for_no_other_again(
    runner: asyncio.Runner, lending: Lending
) -> None:
    async def body() -> None:
        giving = Giving(lending, MOMENT_S)
        giving.begin("a", "b", "left")
        giving.step()
        giving.term.turn(WorkerState.DRAINING)
        await giving.take("a")
        await wait_for(lambda: giving.num_frozen == 1)
        assert giving.step()
        await giving.take("b")
        assert giving.num_frozen == 2
        lending.step_to_rest()
        assert lending.listener.ended == {sequence_name("left", 0): "length"}
        giving.served.drop(giving.served.all()[-1])
        giving.end()

    runner.run(body())
