"""An answer that must be of a schema is, and always the same one, wherever and however it is computed."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field
from tokenizers import Tokenizer

from proto.constraints import Constraint
from proto.hand_over import HandBack, TakenOver, TakeOver
from proto.requests import KvSource, Refused, Sampling
from tests.tiny_model import EOS_TOKEN_IDS
from tests.workers.client_run import run_client
from tests.workers.harness import Client, Fleet, Stream, random_prompt

DRAWN = Sampling(temperature=0.9, top_p=0.95, seed=11)
SAMPLINGS = [
    Sampling(temperature=0.0),
    Sampling(temperature=1.0, seed=5, presence_penalty=0.5, repetition_penalty=1.1, logit_bias={4: 1.0}),
]
MOST_TOKENS = 1500
PATIENT_S = 30.0


class Place(BaseModel, extra="forbid"):
    city: str = Field(min_length=60, max_length=80)
    size: int = Field(ge=0, le=999)
    kinds: list[Literal["old", "new", "grün"]] = Field(max_length=4)


PLACE = Constraint("json_schema", json.dumps(Place.model_json_schema()), "response_format")
LED: dict[str, Any] = {"max_tokens": MOST_TOKENS, "constraint": PLACE}


@pytest.fixture(scope="module")
def text(tiny: Path) -> Callable[[list[int]], str]:
    """What tokens say."""
    tokenizer: Tokenizer = Tokenizer.from_file(str(tiny / "tokenizer.json"))
    return lambda tokens: str(tokenizer.decode(tokens, skip_special_tokens=True))


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "drawn"])
def test_an_answer_of_a_schema_is_the_same_prefilled_anywhere_cold_and_warm(
    computing: Fleet, text: Callable[[list[int]], str], sampling: Sampling
) -> None:
    async def body(client: Client) -> None:
        prompt = random_prompt(90, seed=700 + sampling.seed)
        first = await client.generate("local", prompt, sampling=sampling, **LED)
        assert (first.final.fault, first.final.finish) == (None, "stop")
        assert first.tokens[-1] in EOS_TOKEN_IDS
        Place.model_validate_json(text(first.tokens), strict=True)
        for worker, prefill in (("direct", "remote"), ("direct", "local"), ("queued", "remote")):
            await client.wait_report("prefill", lambda report: report.num_jobs == 0)
            again = await client.generate(worker, prompt, sampling=sampling, **LED)
            assert (again.tokens, again.final.prefill) == (first.tokens, prefill)
        await client.wait_rest("local", "direct", "queued", "prefill")

    run_client(computing, body)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "drawn"])
@pytest.mark.parametrize("has_kv", [True, False], ids=["handed over", "its worker is lost"])
def test_an_answer_of_a_schema_that_moves_in_its_midst_is_the_same(
    computing: Fleet, text: Callable[[list[int]], str], sampling: Sampling, *, has_kv: bool
) -> None:
    async def body(client: Client) -> None:
        prompt = random_prompt(90, seed=(800 if has_kv else 900) + sampling.seed)
        fields = {**LED, "sampling": sampling}
        whole = (await client.generate("local", prompt, **fields)).tokens
        Place.model_validate_json(text(whole), strict=True)
        old = await client.begin("local", prompt, **fields)
        await client.wait(lambda: len(old.tokens) >= 2, PATIENT_S)
        new = await go_on(client, old, prompt, "queued", has_kv=has_kv, **fields)
        assert old.tokens[: new.offset] + new.tokens == whole
        await client.wait_rest("local", "queued", "prefill")

    run_client(computing, body)


async def go_on(
    client: Client, old: Stream, prompt: list[int], worker: str, *, has_kv: bool, **fields: Any
) -> Stream:
    """The rest of `old`, at another worker: as a hand-over, or as if nobody had it any more."""
    await client.wait(lambda: old.worker in client.reports)
    source = KvSource(old.worker, client.reports[old.worker].incarnation, old.attempt) if has_kv else None
    if not has_kv:
        await client.cancel(old)
    generated = [token for token in old.tokens if token not in EOS_TOKEN_IDS]
    new = await client.begin(
        worker,
        prompt,
        request=old.request,
        attempt=old.attempt + 1,
        generated=generated,
        source=source,
        **fields,
    )
    await client.finish(new, PATIENT_S)
    if has_kv:
        await client.cancel(old)
    return new


def test_led_and_free_answers_at_once_are_those_that_each_is_alone(
    computing: Fleet, text: Callable[[list[int]], str]
) -> None:
    async def body(client: Client) -> None:
        prompts = [random_prompt(40, seed=72 + number) for number in range(6)]
        asks: list[dict[str, Any]] = [LED, {"max_tokens": 60, "sampling": DRAWN}] * 3
        alone = [
            (await client.generate("local", prompt, **ask)).tokens
            for prompt, ask in zip(prompts, asks, strict=True)
        ]
        streams = await asyncio.gather(
            *(client.generate("local", prompt, **ask) for prompt, ask in zip(prompts, asks, strict=True))
        )
        assert [stream.tokens for stream in streams] == alone
        for stream in streams[::2]:
            Place.model_validate_json(text(stream.tokens), strict=True)

    run_client(computing, body)


SLOW = {f"is it number {number}": {"type": "boolean"} for number in range(1000)}
"""Some tenths of a second to compile, and as much to try."""


def slow_constraint(seed: int) -> Constraint:
    """One that no worker has tried before."""
    return Constraint(
        "json_schema", json.dumps({"properties": SLOW, "description": str(seed)}), "guided_json"
    )


def test_an_answer_that_moves_before_its_grammar_is_there_is_the_same(computing: Fleet) -> None:
    async def body(client: Client) -> None:
        prompt, fields = random_prompt(60, seed=86), {"max_tokens": 20, "constraint": slow_constraint(1)}
        old = await client.begin("local", prompt, **fields)
        new = await go_on(client, old, prompt, "queued", has_kv=True, **fields)
        whole = (await client.generate("local", prompt, **fields)).tokens
        assert old.tokens[: new.offset] + new.tokens == whole
        await client.wait_rest("local", "queued")

    run_client(computing, body)


def test_an_answer_that_is_handed_back_before_its_grammar_is_there_is_the_same(computing: Fleet) -> None:
    async def body(client: Client) -> None:
        prompt, fields = random_prompt(60, seed=87), {"max_tokens": 20, "constraint": slow_constraint(2)}
        stream = await client.begin("local", prompt, **fields)
        await client.ask("local", TakeOver(stream.request, 0, client.name, 0, 0, PATIENT_S), TakenOver)
        await client.tell("local", HandBack(stream.request, 0))
        await client.finish(stream, PATIENT_S)
        assert stream.tokens == (await client.generate("local", prompt, **fields)).tokens
        await client.wait_rest("local")

    run_client(computing, body)


REFUSED = [
    Constraint("json_schema", '{"type": "objekt"}', "response_format"),
    Constraint("regex", "(", "guided_regex"),
    Constraint("choice", "[]", "guided_choice"),
    Constraint("grammar", "start: <|nobody|>", "guided_grammar"),
    Constraint("json_schema", '{"$ref": "#"}', "guided_json"),
]


def test_what_cannot_be_compiled_ends_its_own_request_by_the_name_of_the_field(computing: Fleet) -> None:
    async def body(client: Client) -> None:
        other = await client.begin("local", random_prompt(30, seed=80), max_tokens=200)
        for constraint in REFUSED:
            stream = await client.generate("local", random_prompt(30, seed=81), constraint=constraint)
            fault = stream.final.fault
            assert fault is not None and not stream.tokens
            assert (fault.code, fault.values["field"]) == ("invalid_request", constraint.field)
        assert (await client.finish(other)).finish == "length"
        await client.wait_rest("local")

    run_client(computing, body)


def test_a_constraint_without_an_end_or_beyond_all_size_is_refused_at_the_door(computing: Fleet) -> None:
    async def body(client: Client) -> None:
        too_long = Constraint("regex", "a" * 70_000, "guided_regex")
        for field, fields in (
            ("ignore_eos", {"constraint": PLACE, "ignore_eos": True}),
            ("guided_regex", {"constraint": too_long}),
        ):
            reply, _ = await client.offer("local", random_prompt(30, seed=82), **fields)
            assert isinstance(reply, Refused)
            assert (reply.fault.code, reply.fault.values["field"]) == ("invalid_request", field)

    run_client(computing, body)


def test_a_simulated_worker_says_that_it_cannot_heed_a_constraint(simulated: Fleet) -> None:
    async def body(client: Client) -> None:
        reply, _ = await client.offer("decode", random_prompt(30, seed=83), constraint=PLACE)
        assert isinstance(reply, Refused)
        assert (reply.fault.code, reply.fault.values["field"]) == ("invalid_request", "response_format")

    run_client(simulated, body)


def test_who_leaves_while_its_grammar_is_compiled_leaves_nothing_behind(computing: Fleet) -> None:
    endless = {"type": "string", "allOf": [{"pattern": f"w{number}"} for number in range(40)]}
    constraint = Constraint("json_schema", json.dumps(endless), "guided_json")

    async def body(client: Client) -> None:
        stream = await client.begin("local", random_prompt(60, seed=84), constraint=constraint)
        await client.wait(lambda: stream.num_frames > 0, PATIENT_S)
        await client.cancel(stream)
        await client.wait_rest("local")
        waits = computing.worker("local").metric("kvmesh_grammar_wait_seconds_count")
        led = await client.begin("local", random_prompt(60, seed=85), **LED)
        assert (await client.finish(led, PATIENT_S)).fault is None
        assert computing.worker("local").metric("kvmesh_grammar_wait_seconds_count") == waits + 1
        assert not stream.tokens

    run_client(computing, body)
