"""A frontend's beats: what clients asked of each model and what they felt, however it ended."""

import asyncio

import uvloop

from proto.errors import NoWorker
from proto.reports import BEATS, Beat
from proto.subjects import beat_any
from proto.traffic import ModelTraffic
from services.bus import Delivery
from tests.frontend.conftest import MODEL, Serve
from tests.frontend.http.test_lives import begin
from tests.frontend.scripted_mesh import Script

ANSWER = [*range(100, 140), 2]


class BeatReader:
    """The last that a frontend's beats said of the model."""

    def __init__(self) -> None:
        self.last = ModelTraffic(MODEL)
        self.came = asyncio.Event()

    def hear(self, delivery: Delivery) -> None:
        beat = BEATS.decode(delivery.payload)
        if isinstance(beat, Beat) and beat.traffic:
            (self.last,) = beat.traffic
            self.came.set()

    async def wait_ended(self, num: int) -> ModelTraffic:
        async with asyncio.timeout(15):
            while self.last.num_ended < num:
                self.came.clear()
                await self.came.wait()
        return self.last


def test_beats_say_what_was_asked_and_felt_and_all_that_begins_ends(serve: Serve) -> None:
    async def body() -> None:
        async with serve({"w0": Script(lambda _: ANSWER)}) as served:
            mesh, reader = served.mesh, BeatReader()
            subscription = await mesh.bus.subscribe(beat_any(mesh.ns), reader.hear)
            usage = (await served.chat()).json()["usage"]
            answered = await reader.wait_ended(1)
            assert (answered.num_begun, answered.prompt_tokens) == (1, usage["prompt_tokens"])
            assert answered.output_tokens == answered.answer_tokens == usage["completion_tokens"]
            assert answered.cached_tokens == usage["prompt_tokens_details"]["cached_tokens"] == 3
            assert sum(answered.ttft_counts) == 1
            assert sum(answered.itl_counts) == usage["completion_tokens"] - 1

            mesh.workers["w0"].script.step_s = 0.2
            (await begin(served)).cancel()
            mesh.refusal = NoWorker(model=MODEL)
            assert (await served.chat()).status_code == 503
            last = await reader.wait_ended(3)
            assert (last.num_begun, last.num_ended) == (3, 3)
            assert (last.num_waiting, last.waiting_tokens) == (0, 0)
            assert sum(last.ttft_counts) == 2
            await subscription.close()

    uvloop.run(body())
