"""Running sequences go from one decode worker to another with their KV, and nobody can tell by the tokens."""

import asyncio
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from proto.hand_over import HandBack, PinSequence, SequencePinned, TakenOver, TakeOver
from proto.logprobs import record_bytes
from proto.names import new_id
from proto.requests import KvSource, Refused, Sampling
from proto.roles import Role, WorkerState
from proto.tokens import count_tokens
from services.servers import Server
from tests.workers.client_run import run_client
from tests.workers.harness import Client, Fleet, Stream, Worker, random_prompt, until
from tests.workers.near_records import assert_near
from workers.engine.simulated_model import SimulatedModel

DRAWN = Sampling(0.9, top_p=0.95, seed=11, repetition_penalty=1.1, frequency_penalty=0.2, logprobs=2)
STEP_S = 0.01
WAIT_S = 1.0
PATIENT_S = 30.0


@dataclass
class Pair:
    """Two decode workers of one model, and who goes on with what the other lets go."""

    fleet: Fleet
    source: Worker
    taker: Worker

    async def source_of(self, client: Client, stream: Stream) -> KvSource:
        await client.wait(lambda: self.source.name in client.reports)
        incarnation = client.reports[self.source.name].incarnation
        return KvSource(self.source.name, incarnation, stream.attempt)

    async def move(self, client: Client, stream: Stream, prompt: list[int], **fields: Any) -> Stream:
        """The successor of `stream` at the taker, beginning at the tokens so far."""
        source = await self.source_of(client, stream)
        return await client.begin(
            self.taker.name,
            prompt,
            request=stream.request,
            attempt=stream.attempt + 1,
            generated=list(stream.tokens),
            source=source,
            **fields,
        )


@pytest.fixture(scope="module")
def torch_pair(computing: Fleet) -> Pair:
    return Pair(computing, computing.worker("local"), computing.worker("queued"))


@pytest.fixture(scope="module")
def pair(
    nats_server: Server, etcd_server: Server, tiny: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    """Simulated: two sequences at once, blocks for few, and no prefill worker."""
    fleet = Fleet(nats_server, etcd_server, f"test-{new_id()}", tmp_path_factory.mktemp("pair"))
    try:
        yield Pair(fleet, start(fleet, tiny, "source"), start(fleet, tiny, "taker"))
    finally:
        fleet.close()


@pytest.fixture(scope="module")
def slow_pair(pair: Pair, tiny: Path) -> Pair:
    """The source takes nine seconds for 900 tokens, so that whoever is late finds it in their midst."""
    slow = SimulatedModel(step_s=STEP_S, prefill_token_s=0.01, first_token=10, num_tokens=400)
    return Pair(pair.fleet, start(pair.fleet, tiny, "slow", simulated=slow), pair.taker)


def start(fleet: Fleet, model: Path, name: str, **settings: Any) -> Worker:
    timed = SimulatedModel(step_s=STEP_S, prefill_token_s=0.001, first_token=10, num_tokens=400)
    common: dict[str, Any] = {
        "engine": "simulated",
        "simulated": timed,
        "num_blocks": 64,
        "step_tokens": 32,
        "max_sequences": 2,
        "hand_over_wait_s": WAIT_S,
        "bulk_pull_mib": 0,
    }
    worker = fleet.start(name, Role.DECODE, model, **(common | settings))
    asyncio.run(fleet.wait_ready(name))
    return worker


async def wait_tokens(client: Client, stream: Stream, num_tokens: int) -> None:
    await client.wait(lambda: len(stream.tokens) >= num_tokens, PATIENT_S)


async def relieve(client: Client, old: Stream, new: Stream) -> list[int]:
    """As a frontend does: once the successor's tokens are here, the old attempt is cancelled."""
    await client.wait(lambda: new.offset + len(new.tokens) >= old.offset + len(old.tokens) > 0, PATIENT_S)
    await client.cancel(old)
    await client.finish(new, PATIENT_S)
    return old.tokens[: new.offset - old.offset] + new.tokens


@pytest.mark.parametrize("sampling", [Sampling(temperature=0.0), DRAWN], ids=["greedy", "drawn"])
def test_a_running_sequence_moves_with_its_kv_and_its_tokens_are_those_of_one_worker(
    torch_pair: Pair, sampling: Sampling
) -> None:
    async def body(client: Client) -> None:
        prompt, fields = random_prompt(800, 60), {"max_tokens": 300, "sampling": sampling}
        alone = await client.generate("local", prompt, **fields)
        stream = await client.begin("local", prompt, **fields)
        await wait_tokens(client, stream, 20)
        taker = torch_pair.taker
        computed, pulled = (
            taker.metric("kvmesh_computed_tokens"),
            taker.metric("kvmesh_kv_bytes_pulled_total"),
        )
        moved = await torch_pair.move(client, stream, prompt, **fields)
        assert await relieve(client, stream, moved) == alone.tokens
        assert_near(moved.records, alone.records[moved.offset :])
        assert taker.metric("kvmesh_kv_bytes_pulled_total") > pulled
        assert taker.metric("kvmesh_computed_tokens") - computed < 300, "the prompt was computed again"
        await client.wait_rest("local", taker.name)

    run_client(torch_pair.fleet, body)


def test_a_sequence_in_mid_prefill_moves_with_what_is_computed(slow_pair: Pair) -> None:
    async def body(client: Client) -> None:
        prompt = random_prompt(900, 61)
        stream = await client.begin("slow", prompt, max_tokens=30)
        await client.wait_report("slow", lambda _: is_in_mid_prefill(client))
        before = slow_pair.taker.metric("kvmesh_computed_tokens")
        moved = await slow_pair.move(client, stream, prompt, max_tokens=30)
        assert moved.offset == 0
        tokens = await relieve_first(client, stream, moved)
        assert slow_pair.taker.metric("kvmesh_computed_tokens") - before < 900 + 30 - 100
        assert tokens == (await client.generate("taker", prompt, max_tokens=30)).tokens
        await client.wait_rest("slow", "taker")

    run_client(slow_pair.fleet, body)


SCORED = Sampling(temperature=0.0, logprobs=1, prompt_logprobs=1)


def test_a_prompt_whose_tokens_are_to_be_told_of_moves_in_its_middle_and_they_are(slow_pair: Pair) -> None:
    """Its KV is not enough: the taker computes all of it, to have the logits."""

    async def body(client: Client) -> None:
        prompt, fields = random_prompt(900, 68), {"max_tokens": 10, "sampling": SCORED}
        stream = await client.begin("slow", prompt, **fields)
        await client.wait(lambda: bool(stream.tokens) or is_in_mid_prefill(client), PATIENT_S)
        moved = await slow_pair.move(client, dataclasses.replace(stream, tokens=[]), prompt, **fields)
        await client.wait(lambda: moved.taken_over_at is not None or bool(moved.tokens), PATIENT_S)
        await client.cancel(stream)
        await client.finish(moved, PATIENT_S)
        alone = await client.generate("taker", prompt, **fields)
        assert (moved.tokens, moved.records) == (alone.tokens, alone.records)
        assert moved.prefilled == alone.prefilled
        assert alone.prefilled is not None
        assert len(alone.prefilled.prompt_logprobs) == 899 * record_bytes(1)
        await client.wait_rest("slow", "taker")

    run_client(slow_pair.fleet, body)


def is_in_mid_prefill(client: Client) -> bool:
    """Of 900 tokens."""
    report = client.reports.get("slow")
    return report is not None and 0 < report.waiting_tokens < 800


def test_what_a_source_has_told_comes_along_for_a_reader_that_lacks_it(pair: Pair) -> None:
    """Its frames were lost: its successor begins at the beginning, and takes over more than it has."""

    async def body(client: Client) -> None:
        prompt, fields = random_prompt(60, 69), {"max_tokens": 900, "sampling": SCORED}
        stream = await client.begin("source", prompt, **fields)
        await wait_tokens(client, stream, 5)
        moved = await pair.move(client, dataclasses.replace(stream, tokens=[]), prompt, **fields)
        await client.wait(lambda: bool(moved.taken_over_at), PATIENT_S)
        assert moved.offset == 0
        assert moved.tokens[:5] == stream.tokens[:5]
        assert moved.records[:5] == stream.records[:5]
        assert all(moved.records)
        assert moved.prefilled == stream.prefilled
        assert moved.prefilled is not None
        assert len(moved.prefilled.prompt_logprobs) == 59 * record_bytes(1)
        for each in (stream, moved):
            await client.cancel(each)
        await client.wait_rest("source", "taker")

    run_client(pair.fleet, body)


async def relieve_first(client: Client, old: Stream, new: Stream) -> list[int]:
    """As `relieve`, of one that had no token yet: it does not wait for the first."""
    await client.wait(lambda: new.taken_over_at is not None, PATIENT_S)
    assert new.taken_over_at == 0
    await client.cancel(old)
    await client.finish(new, PATIENT_S)
    return new.tokens


def test_a_sequence_that_waits_for_its_turn_moves(pair: Pair) -> None:
    async def body(client: Client) -> None:
        busy = [await client.begin("source", random_prompt(8, 62 + n), max_tokens=1200) for n in range(2)]
        for stream in busy:
            await wait_tokens(client, stream, 1)
        waiting = await client.begin("source", random_prompt(40, 64), max_tokens=30)
        await client.wait_report("source", lambda report: report.num_waiting == 1)
        moved = await pair.move(client, waiting, random_prompt(40, 64), max_tokens=30)
        tokens = await relieve_first(client, waiting, moved)
        assert not waiting.tokens
        assert tokens == (await client.generate("taker", random_prompt(40, 64), max_tokens=30)).tokens
        for stream in busy:
            await client.cancel(stream)
        await client.wait_rest("source", "taker")

    run_client(pair.fleet, body)


def test_a_preempted_sequence_moves(pair: Pair) -> None:
    """Two that outgrow the pool together: the second yields, with the tokens it has."""

    async def body(client: Client) -> None:
        prompts = [random_prompt(480, 65), random_prompt(480, 66)]
        streams = [await client.begin("source", prompt, max_tokens=100) for prompt in prompts]
        preempted = pair.source.metric("kvmesh_preemptions")
        await until("one was preempted", lambda: has_risen(pair.source, "kvmesh_preemptions", preempted))
        moved = await pair.move(client, streams[1], prompts[1], max_tokens=100)
        tokens = await relieve(client, streams[1], moved)
        await client.finish(streams[0], PATIENT_S)
        assert tokens == (await client.generate("taker", prompts[1], max_tokens=100)).tokens
        await client.wait_rest("source", "taker")

    run_client(pair.fleet, body)


async def has_risen(worker: Worker, name: str, above: float) -> bool:
    return await asyncio.to_thread(worker.metric, name) > above


def test_a_sequence_that_awaits_a_remote_prefill_moves(computing: Fleet) -> None:
    """Its prefill worker stands still: nothing of its KV is there to be pulled."""

    async def body(client: Client) -> None:
        prompt = random_prompt(300, 67)
        pair = Pair(computing, computing.worker("direct"), computing.worker("local"))
        prefill = computing.worker("prefill").process
        await client.wait_report("prefill", lambda report: True)
        prefill.suspend()
        try:
            stream = await client.begin("direct", prompt)
            await client.wait_report("direct", lambda report: report.num_waiting == 1)
            moved = await pair.move(client, stream, prompt)
            tokens = await relieve_first(client, stream, moved)
        finally:
            prefill.resume()
        assert tokens == (await client.generate("queued", prompt)).tokens
        await client.wait_rest("direct", "local", "prefill")

    run_client(computing, body)


def test_a_taker_that_goes_silent_or_hands_it_back_leaves_the_sequence_where_it_was(pair: Pair) -> None:
    async def body(client: Client) -> None:
        prompt = random_prompt(100, 68)
        alone = await client.generate("source", prompt, max_tokens=120)
        stream = await client.begin("source", prompt, max_tokens=120)
        await wait_tokens(client, stream, 20)
        ask = TakeOver(stream.request, 0, client.name, 0, 0, PATIENT_S)
        over = await client.ask("source", ask, TakenOver)
        again = await client.ask("source", ask, TakenOver)
        assert (again.tokens, again.num_computed, again.blocks) == (
            over.tokens,
            over.num_computed,
            over.blocks,
        )
        assert over.num_computed == len(prompt) + count_tokens(over.tokens) - 1
        await client.tell("source", HandBack(stream.request, 0))
        await wait_tokens(client, stream, count_tokens(over.tokens) + 5)
        silent = await client.ask("source", ask, TakenOver)
        await client.finish(stream, PATIENT_S)
        assert stream.tokens == alone.tokens
        assert count_tokens(silent.tokens) < 120

    run_client(pair.fleet, body)


def test_what_is_not_served_is_not_handed_over(pair: Pair) -> None:
    async def body(client: Client) -> None:
        for ask in (TakeOver("none", 0, "me", 0, 0, 1.0), PinSequence("none", 0, "me", 0, 1.0)):
            reply = await client.control("source", ask)
            assert isinstance(reply, Refused)
            assert reply.fault.code == "invalid_request"

    run_client(pair.fleet, body)


def test_a_sequence_whose_source_is_gone_is_computed_from_its_tokens(pair: Pair, tiny: Path) -> None:
    async def body(client: Client) -> None:
        prompt = random_prompt(100, 69)
        alone = await client.generate("taker", prompt, max_tokens=120)
        mortal = await asyncio.to_thread(start_beside, pair, tiny, "mortal")
        stream = await client.begin("mortal", prompt, max_tokens=120)
        await wait_tokens(client, stream, 20)
        dying = Pair(pair.fleet, mortal, pair.taker)
        source = await dying.source_of(client, stream)
        mortal.process.kill()
        moved = await client.begin(
            "taker",
            prompt,
            max_tokens=120,
            request=stream.request,
            attempt=1,
            generated=list(stream.tokens),
            source=source,
        )
        await client.finish(moved, PATIENT_S)
        assert stream.tokens[: moved.offset] + moved.tokens == alone.tokens
        await client.wait_rest("taker")

    run_client(pair.fleet, body)


def start_beside(pair: Pair, model: Path, name: str, **settings: Any) -> Worker:
    return start(pair.fleet, model, name, **settings)


def test_a_sequence_is_pinned_while_it_runs_and_after_it_has_ended(pair: Pair) -> None:
    async def body(client: Client) -> None:
        stream = await client.begin("source", random_prompt(100, 70), max_tokens=1200)
        await wait_tokens(client, stream, 1)
        ask = PinSequence(stream.request, 0, client.name, 2, 0.5)
        pinned = await client.ask("source", ask, SequencePinned)
        assert len(pinned.blocks) >= 100 // 16 - 2
        await client.cancel(stream)
        held = await client.holdings("source")
        assert [(each.holder, each.num_blocks) for each in held.pinned] == [(client.name, len(pinned.blocks))]
        await client.wait_rest("source")

    run_client(pair.fleet, body)


@pytest.mark.parametrize("num_taken", [0, 1], ids=["at once", "with tokens"])
def test_a_client_that_cancels_in_mid_move_leaves_nothing_behind(torch_pair: Pair, num_taken: int) -> None:
    async def body(client: Client) -> None:
        prompt = random_prompt(800, 71)
        stream = await client.begin("local", prompt, max_tokens=1000)
        await wait_tokens(client, stream, 5)
        moved = await torch_pair.move(client, stream, prompt, max_tokens=1000)
        await client.wait(lambda: len(moved.tokens) >= num_taken, PATIENT_S)
        await client.cancel(moved)
        if num_taken == 0:
            await wait_tokens(client, stream, len(stream.tokens) + 5)
        await client.cancel(stream)
        await client.wait_rest("local", torch_pair.taker.name)

    run_client(torch_pair.fleet, body)


def test_a_taker_that_dies_in_mid_move_leaves_the_sequence_with_its_source(pair: Pair, tiny: Path) -> None:
    async def body(client: Client) -> None:
        prompt = random_prompt(100, 72)
        alone = await client.generate("source", prompt, max_tokens=150)
        mortal = await asyncio.to_thread(start_beside, pair, tiny, "heir", step_stall_s=60.0)
        stream = await client.begin("source", prompt, max_tokens=150)
        await wait_tokens(client, stream, 20)
        await Pair(pair.fleet, pair.source, mortal).move(client, stream, prompt, max_tokens=150)
        mortal.process.kill()
        await client.finish(stream, PATIENT_S)
        assert stream.tokens == alone.tokens
        await client.wait_rest("source", limit_s=PATIENT_S)

    run_client(pair.fleet, body)


def test_a_worker_that_is_told_to_end_hands_over_what_runs_and_is_gone_in_seconds(
    pair: Pair, tiny: Path
) -> None:
    async def body(client: Client) -> None:
        prompt = random_prompt(100, 73)
        leaver = await asyncio.to_thread(start_beside, pair, tiny, "leaver", drain_limit_s=20.0)
        stream = await client.begin("leaver", prompt, max_tokens=150)
        await wait_tokens(client, stream, 20)
        leaver.process.terminate()
        await client.wait(lambda: "leaver" in client.wishes)
        assert client.wishes["leaver"].attempts == [(stream.request, 0)]
        moved = await Pair(pair.fleet, leaver, pair.taker).move(client, stream, prompt, max_tokens=150)
        await client.wait(
            lambda: bool(moved.tokens) and moved.offset + len(moved.tokens) >= len(stream.tokens), PATIENT_S
        )
        await client.cancel(stream)
        assert await asyncio.to_thread(leaver.process.wait, 10) == 0
        assert moved.end is None
        assert client.reports["leaver"].state is WorkerState.LEAVING
        await client.finish(moved, PATIENT_S)
        tokens = stream.tokens[: moved.offset] + moved.tokens
        assert tokens == (await client.generate("taker", prompt, max_tokens=150)).tokens

    run_client(pair.fleet, body)
