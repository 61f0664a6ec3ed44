"""Whatever stands in a body is refused by the name of its field, or is what every worker takes."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.openai.chat_body import read_chat
from frontend.openai.chat_plan import plan_chat
from frontend.openai.completion_body import read_completion
from frontend.openai.completion_plan import plan_completion
from frontend.plan import Plan
from proto.cards import KvClass, ModelCard, TextFiles
from proto.errors import InvalidRequest
from proto.requests import GenerateRequest, Stopping
from proto.tokens import pack_tokens
from workers.request_spec import plan_sequence

CARD = ModelCard("m", KvClass("digest", "float32", 16), TextFiles(""), 4096, 1 << 32, [2])
CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
COMPLETION = {"model": "m", "prompt": "x"}

NUMBERS = st.integers(-(2**70), 2**70) | st.integers(-3, 25) | st.floats() | st.floats(-3, 3)
PLAIN = st.none() | st.booleans() | NUMBERS | st.text(max_size=3)
KEYS = st.integers(-2, 600).map(str) | st.text(max_size=3)
VALUES = PLAIN | st.lists(PLAIN, max_size=3) | st.dictionaries(KEYS, PLAIN, max_size=3)
FIELDS = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "seed",
    "stop_token_ids",
    "ignore_eos",
    "max_tokens",
    "min_tokens",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "stream",
]
BODIES = st.dictionaries(st.sampled_from(FIELDS), VALUES, min_size=1, max_size=5)


def plan_of(fields: dict[str, Any], *, is_chat: bool) -> Plan:
    if is_chat:
        return plan_chat(read_chat(json.dumps({**CHAT, **fields}).encode()))
    return plan_completion(read_completion(json.dumps({**COMPLETION, **fields}).encode()))


def ask_worker(plan: Plan) -> None:
    """Raises what a worker says to it."""
    seed = (plan.seed or 0) & (2**63 - 1)
    request = GenerateRequest(
        request="r",
        attempt=0,
        model="m",
        client="c",
        prompt=pack_tokens([1, 2, 3]),
        sampling=msgspec.structs.replace(plan.sampling, seed=seed),
        stopping=Stopping(plan.max_tokens or 9, list(plan.stop_tokens), plan.ignore_eos, plan.min_tokens),
        deadline_s=1.0,
    )
    plan_sequence(request, CARD)


@settings(max_examples=100, deadline=None)
@given(fields=BODIES, is_chat=st.booleans())
def test_a_wild_body_is_refused_by_a_fields_name_or_taken_by_every_worker(
    fields: dict[str, Any], is_chat: bool
) -> None:
    try:
        plan = plan_of(fields, is_chat=is_chat)
    except InvalidRequest as error:
        named = str(error.values["field"])
        assert named.split("[", maxsplit=1)[0] in {*fields, "body"}, error
        if named == "body":  # JSON has no such number
            assert any(text in json.dumps(fields) for text in ("NaN", "Infinity"))
    else:
        ask_worker(plan)


@pytest.mark.parametrize(
    "fields",
    [
        {"repetition_penalty": 0.01, "presence_penalty": -2, "frequency_penalty": 2, "min_p": 1},
        {"repetition_penalty": 100, "logit_bias": {"0": -100, "4294967295": 100}},
        {"logprobs": True, "top_logprobs": 20, "prompt_logprobs": 20, "min_tokens": 5, "max_tokens": 5},
        {"temperature": 0, "top_p": 0, "top_k": -1},
    ],
)
def test_the_widest_values_are_taken_at_the_door_and_by_every_worker(fields: dict[str, Any]) -> None:
    ask_worker(plan_of(fields, is_chat=True))
