"""Prefill on one host and decode on another, over TCP, while the link between them is slow, or cut.

Every request is answered, rightly and in bounded time; every block comes back; and when the link is there
again, prefills go over it again.
"""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from proto.names import new_id
from proto.roles import Role
from services.servers import Server, plan_etcd, plan_nats
from tests.workers import client_run
from tests.workers.client_run import Body
from tests.workers.harness import Client, Fleet, Stream, Worker, random_prompt, until
from tests.workers.hosts import KV_LINK, LEFT, OUR_ADDRESS, RIGHT, Hosts, NoRights, open_hosts
from workers.transfer.nixl_agent import QUIET_S
from workers.transfer.transfer_settings import TransferSettings

PROMPT_TOKENS = 1500
SLOW_KBIT = 4_000  # a prompt's KV takes about three seconds
LANDING_WAIT_S = 1.5
RESUME_S = 15.0
STALL_S = 2.0
NEAR_STALL_S = 12.0
"""Until what is stuck has been told of, with air; a landing that nobody gives up is awaited for longer."""
PATIENT_S = 60.0
SETTINGS: dict[str, Any] = {
    "num_blocks": 600,
    "step_tokens": 128,
    "push_kib": 1,
    "remote_min_tokens": 24,
    "prefill_choice": "threshold",
    "grant_wait_s": 1.0,
    "landing_wait_s": LANDING_WAIT_S,
    "transfer": TransferSettings(interfaces=[KV_LINK], transports=["tcp"], stall_s=STALL_S),
}
PATIENT: dict[str, Any] = {**SETTINGS, "landing_wait_s": PATIENT_S}


@dataclass(frozen=True)
class Across:
    hosts: Hosts
    fleet: Fleet


@pytest.fixture(scope="module")
def across(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Across]:
    """`prefill` on the left host; on the right one `decode`, `patient`, which waits long for a landing, and
    `local`, which sends nothing away."""
    folder = tmp_path_factory.mktemp("across")
    try:
        opened = open_hosts()
        hosts = opened.__enter__()
    except NoRights as error:
        pytest.skip(f"no network namespaces here: {error}")
    nats = Server(plan_nats(folder / "nats", host=OUR_ADDRESS))
    etcd = Server(plan_etcd(folder / "etcd", host=OUR_ADDRESS))
    fleet = Fleet(nats, etcd, f"test-{new_id()}", folder)
    try:
        for server in (nats, etcd):
            server.spawn()
            server.wait_ready()
        fleet.start("decode", Role.DECODE, tiny, host=RIGHT, **SETTINGS)
        fleet.start("prefill", Role.PREFILL, tiny, host=LEFT, **SETTINGS)
        fleet.start("local", Role.DECODE, tiny, host=RIGHT, **{**SETTINGS, "remote_min_tokens": 10**9})
        fleet.start("patient", Role.DECODE, tiny, host=RIGHT, **PATIENT)
        asyncio.run(fleet.wait_ready("decode", "prefill", "local", "patient"))
        yield Across(hosts, fleet)
    finally:
        fleet.close()
        nats.stop()
        etcd.stop()
        opened.__exit__(None, None, None)


def run_client(across: Across, body: Body) -> None:
    try:
        client_run.run_client(across.fleet, body, idle=("prefill",))
    finally:
        across.hosts.restore()


async def assert_right(client: Client, stream: Stream, seed: int, num_tokens: int = PROMPT_TOKENS) -> None:
    expected = await client.generate("local", random_prompt(num_tokens, seed))
    assert stream.tokens == expected.tokens


async def wait_resumed(client: Client, seed: int, decode: str = "decode") -> None:
    """Until a prefill goes over the link again."""
    seeds = iter(range(seed, seed + 1000))

    async def is_remote() -> bool:
        stream = await client.generate(decode, random_prompt(100, next(seeds)))
        return stream.final.prefill == "remote"

    await until("prefills go to the other host", is_remote, RESUME_S)


async def begin_granted(client: Client, seed: int, decode: str = "decode") -> Stream:
    stream = await client.begin(decode, random_prompt(PROMPT_TOKENS, seed))

    async def is_granted() -> bool:
        return bool((await client.holdings(decode)).granted)

    await until("a grant is open", is_granted)
    return stream


def test_a_prompt_is_prefilled_on_another_host(across: Across) -> None:
    async def body(client: Client) -> None:
        stream = await client.generate("decode", random_prompt(PROMPT_TOKENS, 1))
        assert (stream.final.prefill, stream.final.prefill_worker) == ("remote", "prefill")
        await assert_right(client, stream, 1)
        await client.wait_rest("decode", "prefill")

    run_client(across, body)


def test_a_slow_link_costs_a_bounded_wait_and_no_token(across: Across) -> None:
    async def body(client: Client) -> None:
        across.hosts.throttle(SLOW_KBIT)
        streams = [await client.begin("decode", random_prompt(PROMPT_TOKENS, seed)) for seed in (10, 11)]
        for stream in streams:
            assert (await client.finish(stream)).prefill == "local"
        across.hosts.unthrottle()
        for seed, stream in zip((10, 11), streams, strict=True):
            await assert_right(client, stream, seed)
        await client.wait_rest("decode", "prefill")
        await wait_resumed(client, 1000)

    run_client(across, body)


def test_a_link_that_is_cut_in_a_push_costs_a_local_prefill_and_comes_back(across: Across) -> None:
    async def body(client: Client) -> None:
        across.hosts.throttle(SLOW_KBIT)
        victim = await begin_granted(client, 20)
        across.hosts.cut()
        during = [await client.begin("decode", random_prompt(200, seed)) for seed in range(21, 25)]
        for stream in (victim, *during):
            assert (await client.finish(stream)).prefill == "local"
        across.hosts.unthrottle()
        across.hosts.mend()
        await assert_right(client, victim, 20)
        for seed, stream in enumerate(during, 21):
            await assert_right(client, stream, seed, 200)
        await client.wait_rest("decode", "prefill")
        await wait_resumed(client, 2000)
        await client.wait_rest("decode", "prefill")

    run_client(across, body)


async def wait_said(worker: Worker, text: str) -> None:
    async def is_said() -> bool:
        return text in worker.log

    await until(f"{worker.name} says {text!r}", is_said, NEAR_STALL_S)


async def wait_health(worker: Worker, *, is_well: bool) -> None:
    async def is_so() -> bool:
        ailments = await asyncio.to_thread(lambda: worker.ailments)
        return ("transfers" not in ailments) == is_well

    await until("health has changed", is_so)


@pytest.mark.slow
def test_a_write_that_is_stuck_is_given_up_to_its_owner_whose_answer_is_whole(across: Across) -> None:
    prefill = across.fleet.worker("prefill")

    async def body(client: Client) -> None:
        across.hosts.throttle(SLOW_KBIT // 8)
        victim = await begin_granted(client, 40, "patient")
        across.hosts.cut()
        end = await client.finish(victim, NEAR_STALL_S)
        assert (end.prefill, end.finish) == ("local", "length")
        assert "a write is stuck" in across.fleet.worker("patient").log
        await wait_health(prefill, is_well=False)
        across.hosts.unthrottle()
        across.hosts.mend()
        await assert_right(client, victim, 40)
        await wait_health(prefill, is_well=True)
        await client.wait_rest("patient", "prefill")
        await wait_resumed(client, 5000, "patient")

    run_client(across, body)


@pytest.mark.slow
def test_a_read_that_is_stuck_makes_the_holder_compute_instead(across: Across) -> None:
    """It is of the prompt's beginning, which the owner has; the link is back before the rest is pushed."""
    prefill = across.fleet.worker("prefill")

    async def body(client: Client) -> None:
        prompt = random_prompt(PROMPT_TOKENS, 50)
        for end in range(16, 129, 16):  # too little each for it to be prefilled elsewhere
            await client.generate("patient", prompt[:end], max_tokens=1)
        computed = await asyncio.to_thread(prefill.metric, "kvmesh_computed_tokens")
        across.hosts.cut()
        stream = await client.begin("patient", prompt)
        await wait_said(prefill, "a pull failed; computing instead")
        across.hosts.mend()
        assert (await client.finish(stream, PATIENT_S)).finish == "length"
        await assert_right(client, stream, 50)
        computed = await asyncio.to_thread(prefill.metric, "kvmesh_computed_tokens") - computed
        assert computed > PROMPT_TOKENS - 128, "what the owner has was not computed"
        await wait_health(prefill, is_well=True)
        await client.wait_rest("patient", "prefill")

    run_client(across, body)


@pytest.mark.slow
def test_connections_that_have_died_cost_a_local_prefill_and_are_made_anew(
    across: Across, tiny: Path
) -> None:
    """Nothing was on its way when they died, those of the other owners among them: no block stays behind."""
    cut_off = across.fleet.start("cut-off", Role.DECODE, tiny, host=RIGHT, **SETTINGS)

    async def body(client: Client) -> None:
        await across.fleet.wait_ready("cut-off")
        await wait_resumed(client, 3000, "cut-off")
        await asyncio.sleep(QUIET_S)  # they die while nothing moves
        try:
            across.hosts.drop_connections()
        except NoRights as error:
            pytest.skip(f"connections cannot be dropped here: {error}")
        stream = await client.generate("cut-off", random_prompt(PROMPT_TOKENS, 30))
        assert stream.final.prefill == "local"
        await assert_right(client, stream, 30)
        await wait_resumed(client, 4000, "cut-off")
        await wait_resumed(client, 4500)
        await client.wait_rest("cut-off", "decode", "patient", "prefill")

    try:
        run_client(across, body)
    finally:
        cut_off.process.kill()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_link_that_comes_and_goes_loses_nothing(across: Across) -> None:
    """Cuts of up to ten seconds and slow spells, under a stream of prompts of all lengths."""
    chosen = random.Random(5)

    async def body(client: Client) -> None:
        for number in range(12):
            across.hosts.throttle(chosen.choice((1_000, SLOW_KBIT, 50_000)))
            lengths = [chosen.randrange(20, PROMPT_TOKENS) for _ in range(8)]
            seeds = range(10_000 + 10 * number, 10_000 + 10 * number + 8)
            streams = [
                await client.begin("decode", random_prompt(length, seed))
                for length, seed in zip(lengths, seeds, strict=True)
            ]
            across.hosts.cut()
            for stream in streams[: chosen.randrange(9)]:
                await client.finish(stream)
            across.hosts.mend()
            across.hosts.unthrottle()
            for length, seed, stream in zip(lengths, seeds, streams, strict=True):
                if stream.end is None:
                    await client.finish(stream)
                await assert_right(client, stream, seed, length)
            await client.wait_rest("decode", "prefill", limit_s=60.0)
            await wait_resumed(client, 20_000 + 1000 * number)

    run_client(across, body)
