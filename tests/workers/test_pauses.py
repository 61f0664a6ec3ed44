"""A prefill worker that is stopped again and again, for times around every bound, under requests."""

import asyncio
import random

import pytest

from tests.workers.harness import Client, Fleet, Stream, open_client, random_prompt
from tests.workers.test_deaths import expected_tokens, mortal

__all__ = ["mortal"]

NUM_ROUNDS = 40
NUM_PROMPTS = 60


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_pauses_of_any_length_change_no_token_and_lose_no_block(mortal: Fleet, computing: Fleet) -> None:
    chosen = random.Random(1)
    prompts = [random_prompt(chosen.choice((30, 200, 700, 1500)), seed=index) for index in range(NUM_PROMPTS)]
    found: list[tuple[int, Stream]] = []

    async def serve(client: Client, index: int) -> None:
        prompt = prompts[index % NUM_PROMPTS] if index % 3 else random_prompt(1200, seed=10_000 + index)
        stream = await client.begin("decode", prompt)
        if index % 5 == 0:
            await asyncio.sleep(chosen.random() / 4)
            await client.cancel(stream)
        else:
            await client.finish(stream, limit_s=60)
            if index % 3:
                found.append((index % NUM_PROMPTS, stream))

    async def pause(round_number: int) -> None:
        await asyncio.sleep(chosen.random() / 3)
        mortal.worker("prefill").process.suspend()
        await asyncio.sleep(chosen.choice((0.01, 0.3, 0.9, 1.1, 1.6, 2.2, 3.2)))
        mortal.worker("prefill").process.resume()

    async def run() -> None:
        async with open_client(mortal, "tiny") as client:
            for round_number in range(NUM_ROUNDS):
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(pause(round_number))
                    for index in range(3):
                        tasks.create_task(serve(client, 3 * round_number + index))
            await client.wait_rest("decode", "prefill", limit_s=60)
        expected = await expected_tokens(computing, prompts)
        assert all(stream.tokens == expected[index] for index, stream in found)
        assert sum(stream.final.prefill == "remote" for _, stream in found) > 0

    asyncio.run(run())
