"""Three times more than the workers can do: who is accepted waits no longer, who is refused knows at once.

Full load is as many clients as the workers have places for, each of which waits for its answer.
"""

from statistics import median

import msgspec
import pytest

from proto.errors import Overloaded
from proto.requests import GenerateRequest, Stopping
from tests.router.load import Load, p99
from tests.router.scene import Mesh, Play, a_request
from tests.router.scripted_worker import prompt_of
from tests.router.timed_engine import TimedEngine
from tests.services.waiting import wait_for

SEATS, STEP_S, PREFILL_RATE = 8, 0.02, 20_000.0
PROMPT_TOKENS, ANSWER_TOKENS = 64, 32
REFUSAL_S = 0.05  # beside the trips that question and answer take on a machine as busy as this one is
ANSWER_S = PROMPT_TOKENS / PREFILL_RATE + ANSWER_TOKENS * STEP_S


def make_request(number: int) -> GenerateRequest:
    """Answers from half to one and a half times the usual length."""
    num_tokens = ANSWER_TOKENS // 2 + number * 37 % (ANSWER_TOKENS + 1)
    request = a_request(prompt_of(number % 90, PROMPT_TOKENS))
    return msgspec.structs.replace(request, stopping=Stopping(num_tokens))


def overload(play: Play, duration_s: float) -> Load:
    """The load at three times what the workers can do, held against that of as many clients as fill them."""
    loads: list[Load] = []

    async def scene(mesh: Mesh) -> None:
        engines = [TimedEngine(seats=SEATS, prefill_rate=PREFILL_RATE, step_s=STEP_S) for _ in range(4)]
        for number, engine in enumerate(engines):
            await mesh.timed_worker(f"w{number}", engine)
        await mesh.router(queue_wait_s=ANSWER_S / 4)
        num_seats = SEATS * len(engines)
        full = Load(mesh, engines)
        await full.play_from(int(num_seats * mesh.settings.fill_limit), duration_s, make_request)
        await wait_for(lambda: full.is_served)
        over = Load(mesh, engines)
        await over.play_at(3 * num_seats / ANSWER_S, duration_s, make_request)
        await wait_for(lambda: over.is_served)
        assert p99(over.first_s) <= 1.5 * p99(full.first_s)
        assert over.num_accepted >= 0.9 * full.num_accepted
        for refusal in over.refusals:
            assert isinstance(refusal, Overloaded)
            assert float(refusal.values["retry_after_s"]) >= 1.0
        loads.append(over)

    play(scene, limit_s=10.0 + 4 * duration_s)
    return loads[0]


def test_under_threefold_overload_accepted_requests_wait_no_longer_and_refused_ones_know(play: Play) -> None:
    load = overload(play, duration_s=3.0)
    assert median(load.refused_s) <= REFUSAL_S + 3 * median(load.trip_s)


@pytest.mark.slow
def test_under_a_long_threefold_overload_hardly_a_refusal_takes_longer_than_an_instant(play: Play) -> None:
    load = overload(play, duration_s=12.0)
    assert p99(load.refused_s) <= REFUSAL_S + 3 * p99(load.trip_s)
