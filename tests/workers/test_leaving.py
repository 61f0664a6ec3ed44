"""How a worker ends: told to, by its engine, or because it may not serve; its work goes on elsewhere."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proto import keys
from proto.cards import KvClass, ModelCard, TextFiles
from proto.codec import decode, encode
from proto.errors import InvalidSetting
from proto.names import new_id
from proto.requests import Refused
from proto.roles import Role, WorkerState
from services.directory import Changed, Directory, DirectorySettings, Listed, open_directory
from services.process import EXIT_FAILED, EXIT_WRONG_SETTING
from services.servers import Server
from tests.tiny_model import write_tiny
from tests.workers.client_run import run_client
from tests.workers.harness import Client, Fleet, Worker, open_client, random_prompt, until
from workers.engine.simulated_model import SimulatedModel
from workers.guards import guard_model

SLOW = SimulatedModel(step_s=0.01, first_token=10, num_tokens=400)


def start_simulated(fleet: Fleet, model: Path, role: Role = Role.DECODE, **settings: Any) -> Worker:
    common: dict[str, Any] = {"engine": "simulated", "simulated": SLOW, "num_blocks": 128}
    name = settings.pop("name", "") or f"w-{new_id()}"
    return fleet.start(name, role, model, **(common | settings))


def test_a_leaving_worker_ends_what_it_can_and_sends_the_rest_elsewhere(simulated: Fleet, tiny: Path) -> None:
    async def body(client: Client) -> None:
        worker = start_simulated(simulated, tiny)
        await simulated.wait_ready(worker.name)
        short = await client.begin(worker.name, random_prompt(8, 30), max_tokens=40)
        long = await client.begin(worker.name, random_prompt(8, 31), max_tokens=2000)
        worker.process.terminate()
        await client.wait_report(worker.name, lambda report: report.state is WorkerState.LEAVING)
        reply, refused = await client.offer(worker.name, random_prompt(8, 32))
        assert isinstance(reply, Refused)
        assert reply.fault.code == "go_elsewhere"
        assert refused.num_frames == 0
        await client.wait(lambda: long.end is not None)
        assert (short.final.finish, len(short.tokens)) == ("length", 40)
        assert long.final.fault is not None
        assert long.final.fault.code == "go_elsewhere"
        assert long.tokens
        assert await asyncio.to_thread(worker.process.wait, 10) == 0
        await wait_unregistered(simulated, worker)

    run_client(simulated, body)


async def wait_unregistered(fleet: Fleet, worker: Worker) -> None:
    async with open_directory(DirectorySettings(endpoints=[fleet.etcd.url])) as directory:

        async def is_gone() -> bool:
            return await directory.get(keys.worker(fleet.ns, worker.name)) is None

        await until("its card is gone", is_gone)


def test_the_jobs_of_a_leaving_prefill_worker_are_done_by_the_owner(simulated: Fleet, tmp_path: Path) -> None:
    """Of a model of its own, so that no other worker can do them."""

    async def run() -> None:
        other = write_tiny(tmp_path / f"other-{new_id()}")
        slow = SimulatedModel(step_s=0.01, prefill_token_s=0.01, first_token=10, num_tokens=400)
        prefill = start_simulated(simulated, other, Role.PREFILL, simulated=slow)
        decode = start_simulated(simulated, other, remote_min_tokens=24, prefill_choice="threshold")
        await simulated.wait_ready(prefill.name, decode.name)
        async with open_client(simulated, other.name) as client:
            await client.wait_report(prefill.name, lambda report: True)
            stream = await client.begin(decode.name, random_prompt(500, 33))

            async def is_granted() -> bool:
                return bool((await client.holdings(decode.name)).granted)

            await until("the job is granted", is_granted)
            prefill.process.terminate()
            assert await asyncio.to_thread(prefill.process.wait, 10) == 0
            assert (await client.finish(stream)).prefill == "local"
            assert len(stream.tokens) == 8
            await client.wait_rest(decode.name)

    asyncio.run(run())


def test_a_worker_whose_engine_hangs_sends_its_work_elsewhere_and_ends(simulated: Fleet, tiny: Path) -> None:
    async def body(client: Client) -> None:
        stuck = SimulatedModel(step_s=60.0, first_token=10, num_tokens=400)
        worker = start_simulated(simulated, tiny, simulated=stuck, step_stall_s=0.3)
        await simulated.wait_ready(worker.name)
        stream = await client.begin(worker.name, random_prompt(8, 34))
        await client.wait(lambda: stream.end is not None)
        assert stream.final.fault is not None
        assert stream.final.fault.code == "go_elsewhere"
        assert await asyncio.to_thread(worker.process.wait, 10) == EXIT_FAILED

    run_client(simulated, body)


def test_a_second_worker_of_one_name_ends_with_a_sentence_and_the_first_serves_on(
    simulated: Fleet, tiny: Path
) -> None:
    async def body(client: Client) -> None:
        twin = start_simulated(simulated, tiny, name="decode")
        assert await asyncio.to_thread(twin.process.wait, 30) == EXIT_WRONG_SETTING
        assert "another worker named 'decode' is there" in twin.log
        assert len((await client.generate("decode", random_prompt(8, 35))).tokens) == 8

    run_client(simulated, body)


def test_of_two_workers_that_begin_together_under_one_name_one_is_left(simulated: Fleet, tiny: Path) -> None:
    async def body(client: Client) -> None:
        name = f"twin-{new_id()}"
        twins = [start_simulated(simulated, tiny, name=name) for _ in range(2)]

        async def has_one_ended() -> bool:
            return sum(not twin.process.is_running for twin in twins) == 1

        await until("one twin has ended", has_one_ended)
        (ended,) = (twin for twin in twins if not twin.process.is_running)
        assert f"another worker named {name!r} is there" in ended.log
        assert len((await client.generate(name, random_prompt(8, 36))).tokens) == 8

    run_client(simulated, body)


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"block_size": 32}, "block_size 16, not 32"), ({"engine": "torch"}, "weights_digest")],
)
def test_a_worker_that_does_not_fit_the_model_card_ends_with_a_sentence(
    simulated: Fleet, tiny: Path, settings: dict[str, Any], said: str
) -> None:
    worker = start_simulated(simulated, tiny, **settings)
    assert worker.process.wait(30) == EXIT_WRONG_SETTING
    assert f"worker.model: the workers that serve 'tiny' have {said}" in worker.log


def test_a_card_that_changes_under_a_worker_ends_it(simulated: Fleet, namespace: str) -> None:
    """Two that publish at one moment must not both serve."""

    def card(block_size: int) -> ModelCard:
        kv_class = KvClass("digest", "float32", block_size)
        return ModelCard("org/Model-1.5", kv_class, TextFiles("tokenizer"), 64, 100, [0])

    async def run() -> None:
        async with open_directory(DirectorySettings(endpoints=[simulated.etcd.url])) as directory:
            key = keys.model(namespace, "org/Model-1.5")
            await directory.put(key + "-and-a-tail", encode(card(32)))
            await directory.put(key, encode(card(16)))
            guarding = asyncio.ensure_future(guard_model(directory, namespace, card(16)))
            await directory.put(key, encode(card(16)))
            await directory.put(key, encode(card(32)))
            with pytest.raises(InvalidSetting, match="block_size 32, not 16"):
                async with asyncio.timeout(10):
                    await guarding

    asyncio.run(run())


def test_a_card_that_vanishes_with_the_directory_is_put_again(
    make_etcd: Callable[[], Server], namespace: str
) -> None:
    ours = ModelCard("m", KvClass("digest", "float32", 16), TextFiles("tokenizer"), 64, 100, [0])

    async def wait_card(directory: Directory, key: str) -> None:
        async with asyncio.timeout(10), directory.watch(key) as changes:
            async for change in changes:
                if isinstance(change, Changed) or (isinstance(change, Listed) and change.entries):
                    return

    async def run() -> None:
        server = make_etcd()
        async with open_directory(DirectorySettings(endpoints=[server.url])) as directory:
            key = keys.model(namespace, ours.name)
            guarding = asyncio.ensure_future(guard_model(directory, namespace, ours))
            await wait_card(directory, key)
            await directory.delete(key)
            await wait_card(directory, key)
            server.kill()
            server.wipe()
            server.restart()
            await wait_card(directory, key)
            entry = await directory.get(key)
            assert entry is not None and decode(entry.value, ModelCard) == ours
            guarding.cancel()

    asyncio.run(run())


def test_a_second_signal_ends_a_drain(simulated: Fleet, tiny: Path) -> None:
    async def body(client: Client) -> None:
        worker = start_simulated(simulated, tiny)
        await simulated.wait_ready(worker.name)
        await client.begin(worker.name, random_prompt(8, 37), max_tokens=2000)
        worker.process.terminate()
        await client.wait_report(worker.name, lambda report: report.state is WorkerState.LEAVING)
        worker.process.terminate()
        assert await asyncio.to_thread(worker.process.wait, 10) not in (0, -signal.SIGKILL)

    run_client(simulated, body)
