"""Simulated workers among real parts: what routers, clients and operators see of them is as of any worker."""

import asyncio
import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from proto import keys, subjects
from proto.cards import AgentCard, ModelCard, WorkerCard
from proto.codec import decode
from proto.control import (
    AskAdmitted,
    AskHoldings,
    Done,
    Holdings,
    SetSlowness,
    Snapshot,
    TakeJob,
    TakeSnapshot,
)
from proto.errors import InvalidSetting
from proto.events import BlocksStored, KvEvents, unpack_hashes
from proto.jobs import PrefillJob
from proto.names import new_id
from proto.reports import BEATS, LoadReport
from proto.requests import Refused
from proto.roles import Role, WorkerState
from router.settings import RouterSettings
from services.admin import AdminSettings
from services.bus import Delivery, open_bus
from services.servers import Server, reserve_port
from tests.mesh.token_client import TokenAnswer
from tests.router.scene import running_router
from tests.services.waiting import wait_for
from tests.workers.harness import is_at_rest, random_prompt, until
from tests.workers.simulated.scene import FAST, MODEL, Scene, open_scene, settings_of
from workers.simulated.process import open_simulation
from workers.simulated.settings import SimulateSettings


async def ask_many(scene: Scene, prompts: list[list[int]], num_tokens: int = 8) -> list[TokenAnswer]:
    return await asyncio.gather(*(scene.client.ask(MODEL, prompt, num_tokens) for prompt in prompts))


@dataclass
class Cache:
    """What a router would know of one worker."""

    hashes: set[bytes] = field(default_factory=set)
    last: int = 0
    num_removed: int = 0

    def apply(self, batch: KvEvents) -> None:
        assert batch.first == self.last + 1
        self.last = batch.last
        for event in batch.events:
            hashes = unpack_hashes(event.hashes)
            if isinstance(event, BlocksStored):
                self.hashes.update(hashes)
            else:
                self.hashes.difference_update(hashes)
                self.num_removed += len(hashes)


async def read_metric(admin_port: int, name: str) -> float:
    async with httpx.AsyncClient(trust_env=False) as client:
        text = (await client.get(f"http://127.0.0.1:{admin_port}/metrics")).text
    families = text_string_to_metric_families(text)
    return next(sample.value for family in families for sample in family.samples if sample.name == name)


async def wait_rest(scene: Scene) -> None:
    """Until every block of every worker is free, and none lent."""
    for worker in scene.crowd.workers:
        while True:
            holdings = await scene.control(worker, AskHoldings())
            assert isinstance(holdings, Holdings)
            if is_at_rest(holdings):
                break


@pytest.fixture
def settings(nats_server: Server, etcd_server: Server, text_folder: Path) -> SimulateSettings:
    return settings_of(nats_server, etcd_server, text_folder, workers=4)


def test_each_is_a_worker_of_its_own_to_the_directory(settings: SimulateSettings) -> None:
    async def body() -> None:
        async with open_scene(settings) as scene:
            names = {f"sim-{number}" for number in range(4)}
            assert await scene.listed() == names
            entries = await scene.directory.list(keys.workers(scene.ns))
            cards = [decode(entry.value, WorkerCard) for entry in entries]
            assert len({card.incarnation for card in cards}) == 4
            assert {(card.role, card.state, card.num_blocks) for card in cards} == {
                (Role.DECODE, WorkerState.READY, 256)
            }
            agents = await scene.directory.list(keys.agents(scene.ns))
            assert {decode(entry.value, AgentCard).worker for entry in agents} == names
            model = await scene.directory.get(keys.model(scene.ns, MODEL))
            assert model is not None
            assert decode(model.value, ModelCard).context_tokens == 4096
            await scene.wait_reports()

    asyncio.run(body())


def test_who_is_listed_beats_for_those_that_began_to_listen_after_its_first_beat(
    settings: SimulateSettings,
) -> None:
    """They looked before it was listed, and would know nothing of it until the next beat, a minute later."""

    async def body() -> None:
        rare = msgspec.structs.replace(settings.mesh, beat_s=60.0, lost_after_s=180.0)
        heard: Counter[str] = Counter()
        async with open_bus(settings.bus, "test") as bus:
            await bus.subscribe(
                subjects.beat_any(rare.ns), lambda delivery: heard.update([read_worker(delivery)])
            )
            async with open_simulation(msgspec.structs.replace(settings, mesh=rare)) as crowd:
                await wait_for(lambda: all(heard[worker] == 2 for worker in crowd.workers))

    asyncio.run(body())


def read_worker(delivery: Delivery) -> str:
    beat = BEATS.decode(delivery.payload)
    return beat.worker if isinstance(beat, LoadReport) else ""


def test_requests_flow_through_a_router_and_any_worker_says_the_same(settings: SimulateSettings) -> None:
    async def body() -> None:
        async with open_scene(settings, policy="round_robin") as scene:
            prompts = [random_prompt(60, seed) for seed in range(12)]
            first, again = await ask_many(scene, prompts), await ask_many(scene, prompts)
            assert {answer.worker for answer in first} == set(scene.crowd.workers)
            assert [answer.tokens for answer in first] == [answer.tokens for answer in again]
            assert all(10 <= token < 410 for answer in first for token in answer.tokens)
            await wait_rest(scene)

    asyncio.run(body())


def test_what_they_say_of_their_caches_is_true_and_the_router_sends_a_prefix_to_its_holder(
    settings: SimulateSettings,
) -> None:
    async def body() -> None:
        admin = AdminSettings(port=reserve_port())
        caches: dict[str, Cache] = defaultdict(Cache)

        def take(delivery: Delivery) -> None:
            batch = decode(delivery.payload, KvEvents)
            caches[batch.worker].apply(batch)

        async with open_scene(settings, admin=admin) as scene:
            await scene.bus.subscribe(subjects.kv_any(scene.ns), take)
            prompts = [random_prompt(400, seed) for seed in range(60)]  # more than all pools hold
            await ask_many(scene, prompts)
            await scene.wait_reports()
            await wait_for(
                lambda: all(caches[name].last == each.last_event for name, each in scene.reports.items())
            )
            assert sum(cache.num_removed for cache in caches.values()) > 0
            for name in scene.crowd.workers:
                snapshot = await scene.control(name, TakeSnapshot())
                assert isinstance(snapshot, Snapshot)
                assert set(unpack_hashes(snapshot.page.hashes)) == caches[name].hashes
                assert scene.reports[name].cached_blocks == len(caches[name].hashes)
            num_blocks = sum(len(cache.hashes) for cache in caches.values())
            assert await read_metric(admin.port, "kvmesh_route_index_blocks") == num_blocks
            repeated = await scene.client.ask(MODEL, prompts[-1], 8)
            assert repeated.end is not None
            assert repeated.end.cached_tokens == 384

    asyncio.run(body())


def test_a_worker_slowed_five_fold_reports_it_and_loses_its_share(settings: SimulateSettings) -> None:
    async def body() -> None:
        slow = msgspec.structs.replace(FAST, step_s=0.01, prefill_token_s=0.0002)
        async with open_scene(msgspec.structs.replace(settings, simulated=slow)) as scene:
            await ask_many(scene, [random_prompt(200, seed) for seed in range(8)], num_tokens=20)
            await scene.wait_reports()
            before = dict(scene.reports)
            assert isinstance(await scene.control("sim-0", SetSlowness(5.0)), Done)
            for seed in (100, 200):
                await ask_many(scene, [random_prompt(200, seed + each) for each in range(8)], 20)
            await scene.wait_reports()
            after = scene.reports
            assert 3.5 < after["sim-0"].decode_step_s / before["sim-0"].decode_step_s < 6.5
            assert after["sim-1"].decode_step_s < 2 * before["sim-1"].decode_step_s
            shares = []
            for first in (5000, 6000, 7000):
                prompts = [random_prompt(200, seed) for seed in range(first, first + 40)]
                answers = await ask_many(scene, prompts, 20)
                shares.append(sum(answer.worker == "sim-0" for answer in answers) / len(answers))
            assert statistics.median(shares) < 0.18  # one of the waves may meet a pause of the machine

    asyncio.run(body())


def test_no_factor_of_time_is_taken_that_is_none(settings: SimulateSettings) -> None:
    async def body() -> None:
        async with open_scene(settings) as scene:
            for wrong in (0.0, -1.0, float("nan"), float("inf")):
                assert isinstance(await scene.control("sim-0", SetSlowness(wrong)), Refused)

    asyncio.run(body())


def test_what_is_not_for_a_worker_and_a_job_of_no_worker_are_refused_by_name(
    settings: SimulateSettings,
) -> None:
    async def body() -> None:
        async with open_scene(msgspec.structs.replace(settings, workers=1, prefill_workers=1)) as scene:
            refused = await scene.control("sim-0", AskAdmitted("sim-0", "life"))
            assert isinstance(refused, Refused)
            assert refused.fault.values["reason"] == "AskAdmitted is not for a worker"
            job = PrefillJob("job", "request", settings.model, "a b\r\nPING", "life", b"", 5.0)
            refused = await scene.control("sim-prefill-0", TakeJob(job))
            assert isinstance(refused, Refused)
            assert refused.fault.values["field"] == "owner"

    asyncio.run(body())


def test_long_prompts_are_prefilled_by_prefill_workers_of_the_process(settings: SimulateSettings) -> None:
    async def body() -> None:
        wished = msgspec.structs.replace(settings, workers=2, prefill_workers=2)
        async with open_scene(wished) as scene:
            await scene.wait_reports()
            prompts = [random_prompt(300, seed) for seed in range(8)]
            answers = await ask_many(scene, prompts)
            ends = [answer.end for answer in answers]
            assert all(end is not None and end.finish == "length" for end in ends)
            remote = [end for end in ends if end is not None and end.prefill == "remote"]
            assert remote
            assert {end.prefill_worker for end in remote} <= {"sim-prefill-0", "sim-prefill-1"}
            short = await scene.client.ask(MODEL, random_prompt(20, 99), 8)
            assert short.end is not None
            assert short.end.prefill == "local"
            await wait_rest(scene)

    asyncio.run(body())


def test_one_that_leaves_hands_over_its_work_and_its_keys_and_the_others_go_on(
    settings: SimulateSettings,
) -> None:
    async def body() -> None:
        async with open_scene(settings) as scene:
            worker = scene.crowd.workers["sim-0"]
            worker.leave.set()
            await scene.wait_withdrawn(keys.worker(scene.ns, "sim-0"))
            answers = await ask_many(scene, [random_prompt(60, seed) for seed in range(12)])
            assert {answer.worker for answer in answers} <= {"sim-1", "sim-2", "sim-3"}
            await scene.wait_withdrawn(keys.agent(scene.ns, "sim-0"))
            assert not worker.ready.is_set()
            assert len(await scene.directory.list(keys.agents(scene.ns))) == 3

    asyncio.run(body())


def test_at_the_end_nothing_of_them_is_left_in_the_directory(settings: SimulateSettings) -> None:
    async def body() -> None:
        async with open_scene(settings) as scene:
            directory, ns = scene.directory, scene.ns
            for worker in scene.crowd.workers.values():
                worker.leave.set()
            await wait_for(lambda: not any(each.ready.is_set() for each in scene.crowd.workers.values()))
            assert await directory.list(keys.workers(ns)) == []
            for name in scene.crowd.workers:
                await scene.wait_withdrawn(keys.agent(ns, name))

    asyncio.run(body())


def test_a_name_that_is_there_already_is_refused(settings: SimulateSettings) -> None:
    async def body() -> None:
        async with open_simulation(settings):
            with pytest.raises(InvalidSetting, match="sim-0"):
                async with open_simulation(settings):
                    raise AssertionError("two of one name")

    asyncio.run(body())


def test_what_cannot_be_simulated_is_told_at_the_start(settings: SimulateSettings) -> None:
    async def body() -> None:
        beyond = msgspec.structs.replace(FAST, num_tokens=100_000)
        for wrong, named in (
            (msgspec.structs.replace(settings, simulated=beyond), "num_tokens"),
            (msgspec.structs.replace(settings, context_tokens=0), "config.json"),
        ):
            with pytest.raises(InvalidSetting, match=named):
                async with open_simulation(wrong):
                    raise AssertionError("it has begun")

    asyncio.run(body())


def test_the_process_is_ready_once_a_router_would_choose_every_worker(settings: SimulateSettings) -> None:
    told = msgspec.structs.replace(settings, admin=AdminSettings(port=reserve_port()))

    async def body() -> None:
        url = f"http://127.0.0.1:{told.admin.port}/readyz"
        async with httpx.AsyncClient(trust_env=False) as client, open_simulation(told):
            answer = await client.get(url)
            assert answer.status_code == 503
            assert "router" in answer.text
            routing = RouterSettings(mesh=told.mesh, bus=told.bus, directory=told.directory)
            async with running_router(routing, f"router-{new_id()}"):

                async def is_ready() -> bool:
                    return (await client.get(url)).status_code == 200

                await until("the process is ready", is_ready)

    asyncio.run(body())
