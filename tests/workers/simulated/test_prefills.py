"""Where the prompts of simulated workers are prefilled, among real routers and real queues."""

import asyncio
import dataclasses
from pathlib import Path

import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from proto.control import Done, SetSlowness
from services.admin import AdminSettings
from services.servers import Server, reserve_port
from tests.services.waiting import wait_for
from tests.workers.harness import random_prompt, until
from tests.workers.simulated.scene import FAST, MODEL, Scene, open_scene, settings_of
from workers.roles.prefill_choice import Terms
from workers.simulated.settings import SimulateSettings

BLOCK = 16
PREFIX_BLOCKS = 20
NUM_PAIRS = 8
ENOUGH_IN_A_ROW = 6
"""Prefixes that their holders prefill, one after another. Not all of them: a holder that says nothing for a
second, as on a machine that stands still, is passed over for a while."""

SLOW_TOKEN_S = 0.001
"""A prefix is then worth more than what a busy machine adds to the way to its holder."""

ANSWER_TOKENS = 8
LONG_ANSWER_TOKENS = 600


@pytest.fixture
def settings(nats_server: Server, etcd_server: Server, text_folder: Path) -> SimulateSettings:
    admin = AdminSettings(port=reserve_port())
    settings = settings_of(nats_server, etcd_server, text_folder, workers=2, prefill_workers=2)
    return msgspec.structs.replace(settings, admin=admin)


async def read_samples(admin_port: int, name: str) -> dict[tuple[str, ...], float]:
    """By the values of their labels, in the order of the labels' names."""
    async with httpx.AsyncClient(trust_env=False) as client:
        text = (await client.get(f"http://127.0.0.1:{admin_port}/metrics")).text
    samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for sample in samples
        if sample.name == name
    }


def test_the_prefill_worker_that_has_the_prefix_is_asked_first(settings: SimulateSettings) -> None:
    """What one decode worker has had prefilled is known to the router, which tells the other."""

    async def body() -> None:
        router = AdminSettings(port=reserve_port())
        patient = msgspec.structs.replace(settings.mesh, lost_after_s=10.0)
        slow = msgspec.structs.replace(settings.simulated, prefill_token_s=SLOW_TOKEN_S)
        always = msgspec.structs.replace(settings, mesh=patient, simulated=slow, prefill_choice="threshold")
        async with open_scene(always, admin=router) as scene:
            await scene.wait_reports()
            prefixes = [random_prompt(PREFIX_BLOCKS * BLOCK, seed) for seed in range(2 * NUM_PAIRS)]

            async def holder_of(prefix: list[int]) -> str:
                answer = await scene.client.ask(MODEL, [*prefix, 11], ANSWER_TOKENS, worker="sim-0")
                assert answer.end is not None
                return answer.end.prefill_worker

            holders: list[str] = []
            for pair in zip(prefixes[::2], prefixes[1::2], strict=True):
                holders += await asyncio.gather(*map(holder_of, pair))
            assert len(set(holders)) == 2

            await scene.wait_reports()
            last_events = sum(report.last_event for report in scene.reports.values())

            async def knows_all() -> bool:
                return (await read_samples(router.port, "kvmesh_route_kv_events_total"))[()] >= last_events

            await until("the router's index has what all workers told", knows_all)
            in_a_row: list[str] = []
            for prefix, holder in zip(prefixes, holders, strict=True):
                answer = await scene.client.ask(MODEL, [*prefix, 12], ANSWER_TOKENS, worker="sim-1")
                assert answer.end is not None
                assert answer.end.cached_tokens == 0
                in_a_row = [*in_a_row, holder] if answer.end.prefill_worker == holder else []
                if len(in_a_row) >= ENOUGH_IN_A_ROW and set(in_a_row) == set(holders):
                    break
            else:
                pytest.fail(f"holders were passed over too often; {len(in_a_row)} in a row at the end")

    asyncio.run(body())


def test_a_long_prompt_stays_with_an_idle_worker_and_leaves_one_that_others_stream_from(
    settings: SimulateSettings,
) -> None:
    async def body() -> None:
        async with open_scene(settings) as scene:
            await scene.wait_reports()

            async def place_of(num_tokens: int, seed: int) -> str:
                prompt = random_prompt(num_tokens, seed)
                answer = await scene.client.ask(MODEL, prompt, ANSWER_TOKENS, worker="sim-0")
                assert answer.end is not None
                return answer.end.prefill

            assert await place_of(600, seed=1) == "local"
            async with asyncio.TaskGroup() as tasks:
                streaming = scene.client.ask(MODEL, random_prompt(20, 2), LONG_ANSWER_TOKENS, worker="sim-0")
                tasks.create_task(streaming, name="a stream")
                await wait_for(lambda: scene.reports["sim-0"].num_running == 1)
                assert await place_of(600, seed=3) == "remote"
                assert await place_of(100, seed=4) == "local"
                assert await place_of(600, seed=3) == "local"
            assert await read_samples(settings.admin.port, "kvmesh_prefill_choices_total") == {
                ("slower_there", "local"): 1,
                ("chosen", "remote"): 1,
                ("short", "local"): 2,
                ("warm", "local"): 1,
            }
            counts = await read_samples(settings.admin.port, "kvmesh_prefill_predicted_seconds_count")
            assert counts == {(term.name,): 2 for term in dataclasses.fields(Terms)}, "of the two predicted"
            total_s = await read_samples(settings.admin.port, "kvmesh_prefill_predicted_seconds_sum")
            assert 0 < total_s["harm_s",] < total_s["compute_here_s",], "one of the two harmed one stream"

    asyncio.run(body())


def test_jobs_that_come_together_are_spread_before_any_report_tells_of_them(
    settings: SimulateSettings,
) -> None:
    async def body() -> None:
        slow = msgspec.structs.replace(FAST, prefill_token_s=0.002)
        apart = msgspec.structs.replace(settings, prefill_choice="threshold", simulated=slow)
        async with open_scene(apart) as scene:
            await scene.wait_reports()
            prompts = [random_prompt(300, seed) for seed in range(6)]
            answers = await asyncio.gather(
                *(scene.client.ask(MODEL, prompt, ANSWER_TOKENS, worker="sim-0") for prompt in prompts)
            )
            by_worker = [answer.end.prefill_worker for answer in answers if answer.end is not None]
            assert [by_worker.count(f"sim-prefill-{number}") for number in (0, 1)] == [3, 3]

    asyncio.run(body())


async def slow_down(scene: Scene, factor: float) -> None:
    """Of both prefill workers, from the next step on."""
    for number in (0, 1):
        assert isinstance(await scene.control(f"sim-prefill-{number}", SetSlowness(factor)), Done)


def test_more_jobs_than_prefill_workers_take_wait_in_the_queue_and_new_prompts_stay_meanwhile(
    settings: SimulateSettings,
) -> None:
    """Two take a job each. What they refuse goes to the queue; while that is long, it is quicker here."""

    async def body() -> None:
        slow = msgspec.structs.replace(FAST, prefill_token_s=0.0003)
        busy = msgspec.structs.replace(
            settings, simulated=slow, max_jobs=1, slowdown_weight=8.0, num_blocks=2048
        )
        async with open_scene(busy) as scene, asyncio.TaskGroup() as tasks:
            await scene.wait_reports()
            for name in ("sim-0", "sim-1"):
                streaming = scene.client.ask(MODEL, random_prompt(20, 2), LONG_ANSWER_TOKENS, worker=name)
                tasks.create_task(streaming, name=f"a stream of {name}")
            await wait_for(lambda: all(scene.reports[f"sim-{number}"].num_running for number in (0, 1)))
            prompts = [random_prompt(1500, seed) for seed in range(8)]
            asked = [
                tasks.create_task(
                    scene.client.ask(MODEL, prompt, ANSWER_TOKENS, worker="sim-0"), name="a long prompt"
                )
                for prompt in prompts
            ]

            async def are_chosen() -> bool:
                choices = await read_samples(settings.admin.port, "kvmesh_prefill_choices_total")
                return choices.get(("chosen", "remote"), 0) == len(prompts)

            await until("all long prompts are sent away", are_chosen)
            await slow_down(scene, 5.0)  # the queue does not become shorter meanwhile
            short = await scene.client.ask(MODEL, random_prompt(200, 99), ANSWER_TOKENS, worker="sim-1")
            assert short.end is not None
            assert short.end.prefill == "local"
            await slow_down(scene, 1.0)
            answers = await asyncio.gather(*asked)
            ends = [answer.end for answer in answers if answer.end is not None]
            assert [end.prefill for end in ends] == ["remote"] * len(prompts)
            assert {end.prefill_worker for end in ends} == {"sim-prefill-0", "sim-prefill-1"}

    asyncio.run(body())
