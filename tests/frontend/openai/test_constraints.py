"""Every field that says what an answer must be comes to the same few constraints, and never to two."""

import json
from typing import Any

import msgspec
import pytest

from frontend.openai.chat_body import read_chat
from frontend.openai.completion_body import read_completion
from frontend.openai.constraints import read_constraint, schema_constraint
from proto.constraints import Constraint
from proto.errors import InvalidRequest

SCHEMA = {"type": "object", "properties": {"straße": {"type": "number", "maximum": 0.1}}}
TEXT = '{"type":"object","properties":{"straße":{"type":"number","maximum":0.1}}}'


def named(**fields: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "answer", **fields}}


SAID: list[tuple[dict[str, Any], Constraint | None]] = [
    ({}, None),
    ({"response_format": None, "guided_json": None, "guided_choice": None}, None),
    ({"response_format": {"type": "text"}}, None),
    ({"structured_outputs": {}}, None),
    ({"structured_outputs": {"json_object": False, "json": None}}, None),
    ({"response_format": {"type": "json_object"}}, Constraint("json_object", "", "response_format")),
    ({"response_format": named()}, Constraint("json_object", "", "response_format")),
    ({"response_format": named(schema=None)}, Constraint("json_object", "", "response_format")),
    (
        {"response_format": named(schema=SCHEMA, strict=True, description="an answer")},
        Constraint("json_schema", TEXT, "response_format"),
    ),
    ({"guided_json": SCHEMA}, Constraint("json_schema", TEXT, "guided_json")),
    ({"guided_json": TEXT}, Constraint("json_schema", TEXT, "guided_json")),
    ({"guided_json": True}, Constraint("json_schema", "true", "guided_json")),
    ({"guided_regex": ""}, Constraint("regex", "", "guided_regex")),
    ({"guided_choice": ["ja", "né"]}, Constraint("choice", '["ja","né"]', "guided_choice")),
    ({"guided_grammar": "root ::= x"}, Constraint("grammar", "root ::= x", "guided_grammar")),
    ({"structured_outputs": {"json": SCHEMA}}, Constraint("json_schema", TEXT, "structured_outputs")),
    ({"structured_outputs": {"regex": "a+"}}, Constraint("regex", "a+", "structured_outputs")),
    ({"structured_outputs": {"choice": ["a"]}}, Constraint("choice", '["a"]', "structured_outputs")),
    ({"structured_outputs": {"grammar": "g"}}, Constraint("grammar", "g", "structured_outputs")),
    ({"structured_outputs": {"json_object": True}}, Constraint("json_object", "", "structured_outputs")),
]


@pytest.mark.parametrize(("fields", "constraint"), SAID, ids=[json.dumps(fields)[:40] for fields, _ in SAID])
def test_each_way_to_say_it_is_one_constraint_at_both_endpoints(
    fields: dict[str, Any], constraint: Constraint | None
) -> None:
    chat = {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}
    completion = {"model": "m", "prompt": "x", **fields}
    found = [
        read_constraint(read_chat(msgspec.json.encode(chat))),
        read_constraint(read_completion(msgspec.json.encode(completion))),
    ]
    assert found == [constraint, constraint]


@pytest.mark.parametrize(
    ("fields", "second"),
    [
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"guided_choice": ["a"], "guided_grammar": "b"}, "guided_grammar"),
        ({"guided_json": {}, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"choice": ["a"], "json_object": True}}, "structured_outputs"),
    ],
)
def test_who_says_it_twice_is_refused_by_the_name_of_the_second(fields: dict[str, Any], second: str) -> None:
    body = read_completion(msgspec.json.encode({"model": "m", "prompt": "x", **fields}))
    with pytest.raises(InvalidRequest) as caught:
        read_constraint(body)
    assert caught.value.values["field"] == second


def test_the_name_of_a_schema_is_one_line() -> None:
    format_ = {"type": "json_schema", "json_schema": {"name": "place\n", "schema": True}}
    with pytest.raises(InvalidRequest, match=r"response_format\.json_schema\.name"):
        read_chat(json.dumps({"model": "m", "messages": [{}], "response_format": format_}).encode())


def test_a_schema_from_elsewhere_is_the_same_constraint_as_one_that_a_client_gives() -> None:
    assert schema_constraint(SCHEMA, "tool_choice") == Constraint("json_schema", TEXT, "tool_choice")
