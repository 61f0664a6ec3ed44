"""What a led model can say: its own syntax of calls, which its parsers read back."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer

from frontend.parsing.answer_grammar import AnswerGrammar, ThoughtState
from frontend.parsing.answer_parser import AnswerParser
from frontend.parsing.call_parser import CallParser
from frontend.parsing.formats import REASONING_MARKS, Formats
from frontend.parsing.hermes import HermesParser
from frontend.parsing.llama3 import Llama3Parser
from frontend.parsing.mistral import MistralParser
from frontend.parsing.reasoning import ReasoningMarks, ReasoningParser
from frontend.parsing.tools import ToolFunction, Tools
from frontend.text.tokenizer import TextTokenizer, load_tokenizer
from proto.constraints import Constraint
from proto.errors import InvalidRequest
from services.grammars.vocabulary import Masks, Vocabulary, check_grammar
from tests.frontend.parsing.cutting import Said
from tests.tiny_model import write_tiny

EOS = 2
COLOURS = ["red", 'blue "\n']
PAINT = {
    "type": "object",
    "properties": {
        "colour": {"$ref": "#/$defs/Colour"},
        "layers": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["colour"],
    "additionalProperties": False,
    "$defs": {"Colour": {"enum": COLOURS}},
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
FUNCTIONS = (ToolFunction("paint", PAINT), ToolFunction("stop-it", NOTHING, is_strict=True))
MARKERS = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<think>", "</think>"]
FORMATS: list[type[CallParser]] = [HermesParser, Llama3Parser, MistralParser]


class Model:
    """A tokenizer with its vocabulary; `special` ones of its markers are special tokens."""

    def __init__(self, folder: Path, special: list[str]) -> None:
        write_tiny(folder, heads=2, kv_heads=1, layers=1, hidden=16)
        path = folder / "tokenizer.json"
        raw = Tokenizer.from_file(str(path))
        raw.add_special_tokens([AddedToken(marker, special=True) for marker in special])
        raw.save(str(path))
        self.numbers = {marker: raw.encode(marker).ids[0] for marker in special}
        self.tokenizer: TextTokenizer = load_tokenizer(path.read_bytes())
        self.size = self.tokenizer.vocab_size
        self.vocabulary = Vocabulary(path, self.size, [EOS])

    def tokens_of(self, parts: Sequence[str]) -> list[int]:
        """Markers that are special tokens stand alone."""
        tokens: list[int] = []
        for part in parts:
            own = self.numbers.get(part)
            tokens += self.tokenizer.encode(part, add_special_tokens=False) if own is None else [own]
        return tokens

    def say(
        self, constraint: Constraint, parser: AnswerParser, first: Sequence[str], chance: random.Random
    ) -> Said:
        """`first`, and then anything that `constraint` allows, read by `parser`; ends as soon as it may."""
        matcher, masks, said = self.vocabulary.compile(constraint), Masks(1), Said()
        markers = {number: marker for marker, number in self.numbers.items()}
        forced = self.tokens_of(first)
        for turn in range(400):
            [mask] = masks.fill([matcher])
            allowed = [token for token in range(self.size) if mask[token // 8] >> token % 8 & 1]
            if EOS in allowed:
                break
            token = forced[turn] if turn < len(forced) else chance.choice(allowed)
            matcher.advance([token])
            text = self.tokenizer.token_bytes(token).decode()
            said.add(parser.push_marker(markers[token]) if token in markers else parser.push(text))
        said.add(parser.finish())
        return said


@pytest.fixture(scope="module", params=[[], MARKERS], ids=["text", "special"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("tiny"), request.param)


THOUGHTS: list[tuple[ThoughtState | None, list[str]]] = [
    (None, []),
    ("closed", []),
    ("unsaid", ["<think>", "Hm, {", "</think>"]),
    ("open", ["Hm, {", "</think>", "\n\n"]),
]


@pytest.mark.parametrize("calls", FORMATS)
@pytest.mark.parametrize(("thought", "first"), THOUGHTS)
def test_who_must_call_says_calls_and_its_own_parser_reads_them(
    model: Model, calls: type[CallParser], thought: ThoughtState | None, first: list[str]
) -> None:
    marks = REASONING_MARKS["think"] if thought else None
    tools = Tools(FUNCTIONS, must_call=True)
    grammar = AnswerGrammar(Formats(calls, marks), model.numbers, thought or "closed")
    constraint = grammar.constraint(tools, None)
    assert constraint is not None
    check_grammar(constraint)
    for seed in range(2):
        thinker = None if marks is None else ReasoningParser(marks, is_open=thought == "open")
        parser = AnswerParser(thinker, calls(tools.names))
        said = model.say(constraint, parser, first, random.Random(seed))
        assert (said.reasoning, said.content) == ("Hm, {" if first else "", "")
        assert said.calls
        for name, arguments in said.calls:
            _check_arguments(name, json.loads(arguments))


def _check_arguments(name: str, arguments: dict[str, Any]) -> None:
    if name == "stop-it":
        assert arguments == {}
        return
    assert arguments.pop("colour") in COLOURS
    assert arguments in ({}, {"layers": arguments.get("layers")})
    assert 1 <= arguments.get("layers", 1) <= 9


def allows(model: Model, constraint: Constraint | None, *parts: str) -> bool:
    """Whether an answer may be this; markers that are special tokens stand alone."""
    assert constraint is not None
    matcher = model.vocabulary.compile(constraint)
    try:
        matcher.advance(model.tokens_of(parts))
    except InvalidRequest:
        return False
    return matcher.is_accepting


OPEN, CLOSE = "<tool_call>", "</tool_call>"
GOOD = '\n{"name": "stop-it", "arguments": {}}\n'
LOOSE = '\n{"name": "paint", "arguments": {"colour": 7}}\n'
BAD = '\n{"name": "stop-it", "arguments": {"a": 1}}\n'


def grammar(model: Model, marks: ReasoningMarks | None = None) -> AnswerGrammar:
    return AnswerGrammar(Formats(HermesParser, marks), model.numbers, "unsaid")


def test_a_strict_function_is_held_to_its_schema_wherever_it_is_called(model: Model) -> None:
    strict = ToolFunction("stop-it", FUNCTIONS[1].parameters, is_strict=True)
    loose = ToolFunction("paint", {"type": "object"})
    constraint = grammar(model).constraint(Tools((strict, loose)), None)

    assert allows(model, constraint, "Let me see.", OPEN, GOOD, CLOSE)
    assert allows(model, constraint, OPEN, LOOSE, CLOSE, "\n", OPEN, GOOD, CLOSE)
    assert allows(model, constraint, "I call nothing < at all.")
    assert allows(model, constraint, "")
    assert not allows(model, constraint, OPEN, BAD, CLOSE)
    assert not allows(model, constraint, OPEN, "\nwhat")
    assert grammar(model).constraint(Tools((loose,)), None) is None


def test_what_is_not_known_of_a_schema_is_let_be_unless_it_is_strict(model: Model) -> None:
    odd = {"properties": {"a": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}}}
    call = ('\n{"name": "f", "arguments": {"a": [1, 1]}}\n', CLOSE)

    loose = grammar(model).constraint(Tools((ToolFunction("f", odd),), must_call=True), None)
    assert allows(model, loose, OPEN, *call)
    strict = grammar(model).constraint(Tools((ToolFunction("f", odd, is_strict=True),), must_call=True), None)
    assert strict is not None
    with pytest.raises(InvalidRequest, match=r"tools: .*uniqueItems"):
        check_grammar(strict)


def test_without_parallel_calls_there_is_one(model: Model) -> None:
    for tools in (Tools(FUNCTIONS, must_call=True), Tools(FUNCTIONS)):
        two = (OPEN, GOOD, CLOSE, "\n", OPEN, GOOD, CLOSE)
        one = Tools(FUNCTIONS, tools.must_call, is_parallel=False)
        assert allows(model, grammar(model).constraint(tools, None), *two)
        assert allows(model, grammar(model).constraint(one, None), *two[:3])
        assert not allows(model, grammar(model).constraint(one, None), *two)


ANSWERS = [
    (Constraint("json_object", field="response_format"), '{"a": 1}', "[1]"),
    (Constraint("json_schema", '{"type": "integer"}', "response_format"), "17", '"x"'),
    (Constraint("choice", '["yes", "no"]', "guided_choice"), "no", "maybe"),
]


@pytest.mark.parametrize(("answer", "good", "bad"), ANSWERS)
def test_an_answer_may_be_of_a_form_or_a_call(model: Model, answer: Constraint, good: str, bad: str) -> None:
    loose = Tools((ToolFunction("stop-it", {"type": "object"}),))
    constraint = grammar(model).constraint(loose, answer)

    assert allows(model, constraint, good)
    assert allows(model, constraint, OPEN, GOOD, CLOSE)
    assert not allows(model, constraint, bad)
    assert not allows(model, constraint, good, OPEN)


@pytest.mark.parametrize(("answer", "good", "bad"), ANSWERS)
def test_an_answer_of_a_form_follows_the_thought(
    model: Model, answer: Constraint, good: str, bad: str
) -> None:
    constraint = grammar(model, REASONING_MARKS["think"]).constraint(None, answer)

    assert allows(model, constraint, good)
    assert allows(model, constraint, "<think>", "Hm, { or no?", "</think>", "\n\n", good)
    assert not allows(model, constraint, "<think>", "Hm", "</think>", bad)
    assert not allows(model, constraint, "Hm")


def test_what_is_all_of_an_answer_stays_so_and_cannot_stand_beside_calls() -> None:
    whole = Constraint("regex", "[ab]+", "guided_regex")
    formats = Formats(HermesParser, REASONING_MARKS["think"])

    assert AnswerGrammar(formats, {}, "open").constraint(None, whole) is whole
    with pytest.raises(InvalidRequest, match="guided_regex"):
        AnswerGrammar(formats, {}, "open").constraint(Tools(FUNCTIONS), whole)
