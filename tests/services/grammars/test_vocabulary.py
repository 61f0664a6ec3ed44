"""What a grammar lets a model write is what the constraint says: tried with models of no sense at all."""

import json
import re
from collections.abc import Callable
from random import Random
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from proto.constraints import MAX_CONSTRAINT_BYTES, Constraint, ConstraintKind
from proto.errors import InvalidRequest
from services.grammars.source import MAX_CHOICES, MAX_DEPTH, MAX_SPACES
from services.grammars.vocabulary import check_grammar
from tests.services.grammars.walks import Writer, byte_writer, piece_writer

WRITERS = [byte_writer, piece_writer]
writers = st.sampled_from(WRITERS).map(lambda make: make())
randoms = st.integers(0, 2**32).map(Random)


class Pet(BaseModel):
    kind: Literal["cat", "dog", "안녕"]
    name: str = Field(max_length=8)


class Person(BaseModel):
    name: str = Field(min_length=1, max_length=12)
    age: int = Field(ge=0, le=150)
    height: float | None = Field(ge=0, le=3)
    pets: list[Pet] = Field(max_length=2)


class Tree(BaseModel):
    value: bool
    children: list["Tree"]


def schema_of(model: type[BaseModel]) -> Constraint:
    return Constraint("json_schema", json.dumps(model.model_json_schema()))


def choice_of(choices: list[str]) -> Constraint:
    return Constraint("choice", json.dumps(choices))


@settings(max_examples=30, deadline=None)
@given(writers, randoms, st.sampled_from([Person, Tree]))
def test_whatever_is_written_under_a_schema_is_of_that_schema(
    writer: Writer, random: Random, model: type[BaseModel]
) -> None:
    model.model_validate_json(writer.write(schema_of(model), random), strict=True)


@settings(max_examples=30, deadline=None)
@given(writers, randoms)
def test_whatever_is_written_as_an_object_is_a_json_object(writer: Writer, random: Random) -> None:
    assert isinstance(json.loads(writer.write(Constraint("json_object"), random)), dict)


@settings(max_examples=30, deadline=None)
@given(
    writers,
    randoms,
    st.sampled_from(
        ["[a-f]{2,5}-[0-9][0-9]", r"(foo|bar/baz)+\n?", "[^a]{0,4}é", r"\x41\"'\\", "", r"^[0-9A-Z_]{1,9}$"]
    ),
)
def test_whatever_is_written_under_an_expression_matches_it(
    writer: Writer, random: Random, pattern: str
) -> None:
    assert re.fullmatch(pattern, writer.write(Constraint("regex", pattern), random))


@settings(max_examples=30, deadline=None)
@given(writers, randoms)
@pytest.mark.parametrize(
    "grammar",
    ['start: "<" word "," word ">"\nword: /[a-z]{1,4}/', 'root ::= "<" w "," w ">"\nw ::= [a-z] | [a-z] w'],
    ids=["lark", "gbnf"],
)
def test_whatever_is_written_under_a_grammar_is_of_it_in_either_notation(
    grammar: str, writer: Writer, random: Random
) -> None:
    assert re.fullmatch("<[a-z]+,[a-z]+>", writer.write(Constraint("grammar", grammar), random))


texts = st.text(st.characters(codec="utf-8"), max_size=6)


@settings(max_examples=60, deadline=None)
@given(writers, st.lists(texts, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_exactly_those_tokens_are_allowed_that_keep_a_choice_within_reach(
    writer: Writer, choices: list[str], random: Random
) -> None:
    """Of several tokens that spell the same one is enough; the end spells nothing.

    Where only one character can come, the tokens are those that its text is made of, and no others.
    """
    wanted = [choice.encode() for choice in choices]
    spelt = {token: writer.text.token_bytes(token) for token in range(writer.vocab_size)}
    matcher, written = writer.vocabulary.compile(choice_of(choices)), b""
    while True:
        reach = {
            added
            for added in spelt.values()
            if added and any(choice.startswith(written + added) for choice in wanted)
        }
        allowed = writer.allowed(matcher)
        expected = reach | ({b""} if written in wanted else set())
        assert allowed
        assert {spelt[token] for token in allowed} <= expected
        assert {token for token in allowed if not spelt[token]} <= {writer.end}
        if len({added[:1] for added in expected}) > 1:
            assert {spelt[token] for token in allowed} == expected
        assert matcher.is_accepting == (written in wanted)
        token = random.choice(allowed)
        if token == writer.end:
            return
        matcher.advance([token])
        written += spelt[token]


@settings(max_examples=30, deadline=None)
@given(writers, randoms, st.data())
def test_a_text_that_is_replayed_is_where_it_was_however_it_is_cut(
    writer: Writer, random: Random, data: st.DataObject
) -> None:
    constraint = schema_of(Person)
    stepped, tokens, allowed = writer.vocabulary.compile(constraint), [], []
    for _ in range(40):
        allowed.append(writer.allowed(stepped))
        token = random.choice(allowed[-1])
        if token == writer.end:
            break
        stepped.advance([token])
        tokens.append(token)
    num_replayed = data.draw(st.integers(0, len(tokens) - 1), label="replayed")
    replayed = writer.vocabulary.compile(constraint)
    replayed.advance(tokens[:num_replayed])
    for place in range(num_replayed, len(tokens)):
        assert writer.allowed(replayed) == allowed[place]
        replayed.advance([tokens[place]])


@pytest.mark.parametrize("make", WRITERS)
def test_a_token_that_is_not_allowed_is_refused_by_the_name_of_the_field(make: Callable[[], Writer]) -> None:
    writer = make()
    matcher = writer.vocabulary.compile(Constraint("regex", "[ab]+", field="guided_regex"))
    wrong = next(token for token in range(writer.vocab_size) if token not in writer.allowed(matcher))
    with pytest.raises(InvalidRequest) as caught:
        matcher.advance([wrong])
    assert caught.value.values["field"] == "guided_regex"
    assert writer.allowed(matcher) == []


REFUSED: list[tuple[ConstraintKind, str, str]] = [
    ("json_schema", "{", "not JSON"),
    ("json_schema", "[]", "an object"),
    ("json_schema", '{"type": "objekt"}', "objekt"),
    ("json_schema", '{"type": "array", "uniqueItems": true}', "uniqueItems"),
    ("json_schema", '{"x-guidance": {"lenient": true}, "not": {"type": "null"}}', "not"),
    ("json_schema", '{"$ref": "http://127.0.0.1:1/schema.json"}', "127.0.0.1"),
    ("json_schema", '{"allOf":[' * 40 + "{}" + "]}" * 40, f"more than {MAX_DEPTH} levels"),
    ("json_schema", "[" * 10_000, "levels"),
    ("json_schema", '{"description": "' + "x" * MAX_CONSTRAINT_BYTES + '"}', str(MAX_CONSTRAINT_BYTES)),
    ("regex", "(", "unclosed group"),
    ("regex", "(?=a)b", "look-ahead"),
    ("regex", "\ud83d", "Unicode"),
    ("choice", "[]", f"1 to {MAX_CHOICES} choices"),
    ("choice", '["a", 1]', "list of strings"),
    ("choice", json.dumps([str(number) for number in range(MAX_CHOICES + 1)]), f"1 to {MAX_CHOICES}"),
    ("grammar", "start: x", "unknown name"),
    ("grammar", "", "Empty grammar"),
    ("grammar", "root ::= (", "GBNF"),
]


@pytest.mark.parametrize(("kind", "text", "reason"), REFUSED, ids=lambda value: value[:20])
def test_what_cannot_be_compiled_is_refused_with_its_reason(
    kind: ConstraintKind, text: str, reason: str
) -> None:
    constraint = Constraint(kind, text, field="response_format")
    for compile_it in (check_grammar, byte_writer().vocabulary.compile):
        with pytest.raises(InvalidRequest, match=re.escape(reason)) as caught:
            compile_it(constraint)
        assert caught.value.values["field"] == "response_format"


@pytest.mark.parametrize(
    ("kind", "text"),
    [("json_schema", '{"$ref": "#"}'), ("grammar", "start: x\nx: x"), ("grammar", "start: <|nobody|>")],
)
def test_a_grammar_that_no_token_of_the_model_can_begin_is_refused(kind: ConstraintKind, text: str) -> None:
    with pytest.raises(InvalidRequest):
        byte_writer().vocabulary.compile(Constraint(kind, text))


def test_white_space_in_json_comes_to_an_end() -> None:
    writer = byte_writer()
    matcher = writer.vocabulary.compile(Constraint("json_object"))
    (space,) = writer.text.encode(" ", add_special_tokens=False)
    matcher.advance([*writer.text.encode("{", add_special_tokens=False), *[space] * MAX_SPACES])
    assert space not in writer.allowed(matcher)
    assert writer.allowed(matcher)


def test_many_texts_in_their_grammars_get_their_masks_at_once() -> None:
    writer = byte_writer()
    constraints = [choice_of(["ab", "ac"]), Constraint("json_object"), Constraint("regex", "[x-z]*")]
    alone = [writer.allowed(writer.vocabulary.compile(constraint)) for constraint in constraints]
    together = writer.allowed_of([writer.vocabulary.compile(constraint) for constraint in constraints])
    assert together == alone
