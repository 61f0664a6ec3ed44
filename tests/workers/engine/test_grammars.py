"""A sequence that is led by a grammar writes what that takes, whatever becomes of it, and hurts no other."""

import json
import re
import threading
from pathlib import Path

import msgspec
import pytest
from tokenizers import Tokenizer

from proto.constraints import Constraint
from services.grammars.vocabulary import Vocabulary
from tests.tiny_model import EOS_TOKEN_IDS, write_tiny_llama
from tests.workers.engine.engine_desk import GREEDY, Record, spec_of
from tests.workers.engine.tiny_torch import TINY_TORCH
from workers.engine.engine import Engine
from workers.engine.engine_settings import EngineSettings
from workers.engine.grammar_state import GrammarState
from workers.engine.runner import SampleParams
from workers.engine.sequence import SequenceSpec
from workers.engine.torch_loading import load_torch_runner
from workers.engine.torch_runner import TorchRunner
from workers.engine.torch_settings import PoolSize

BLOCK_SIZE = 8
NUM_BLOCKS = 96
CONTEXT = 400
VOCAB = 512
ENDS = frozenset(EOS_TOKEN_IDS)
PROMPT = [40, 41, 42, 43, 44]
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 6},
        "size": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["old", "new"]},
    },
    "required": ["city", "size", "kind"],
    "additionalProperties": False,
}
PLACE = Constraint("json_schema", json.dumps(SCHEMA), field="guided_json")
WORD = Constraint("regex", "[a-z]{3,6}")
COLOUR = Constraint("choice", '["red", "green", "blue"]')
SEEDED = SampleParams(temperature=1.0, seed=3)
DRAWS = {
    "greedy": GREEDY,
    "seeded": SEEDED,
    "narrowed": SampleParams(temperature=0.7, seed=4, top_k=20, top_p=0.9, min_p=0.01),
    "penalised": SampleParams(temperature=1.0, seed=5, presence=1.5, frequency=0.5, repetition=1.3),
    "biased": SampleParams(bias={7: 100.0, 2: -100.0}),
}


class Model:
    """A tiny model with its tokens."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.vocabulary = Vocabulary(folder / "tokenizer.json", VOCAB, EOS_TOKEN_IDS)
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def text(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=True)

    def runner(self, num_blocks: int) -> TorchRunner:
        settings = msgspec.structs.replace(
            TINY_TORCH, block_size=BLOCK_SIZE, pool=PoolSize(num_blocks=num_blocks)
        )
        return load_torch_runner(self.folder, settings)

    def grammar(self, constraint: Constraint) -> GrammarState:
        state = GrammarState(constraint)
        state.load(self.vocabulary.compile(constraint))
        return state

    def led(
        self,
        name: str,
        constraint: Constraint,
        sample: SampleParams = SEEDED,
        *,
        tokens: list[int] = PROMPT,
        max_tokens: int = 300,
        stop_tokens: frozenset[int] = ENDS,
        min_tokens: int = 0,
    ) -> SequenceSpec:
        """A sequence; what `tokens` are more than the prompt was generated before."""
        spec = spec_of(
            name,
            tokens,
            num_prompt=len(PROMPT),
            max_tokens=max_tokens,
            stop_tokens=stop_tokens,
            sample=sample,
            min_tokens=min_tokens,
        )
        return msgspec.structs.replace(spec, grammar=self.grammar(constraint))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(write_tiny_llama(tmp_path_factory.mktemp("led"), layers=1, hidden=32, vocab=VOCAB))


@pytest.fixture(scope="module")
def runner(model: Model) -> TorchRunner:
    return model.runner(NUM_BLOCKS)


def make_engine(runner: TorchRunner, record: Record) -> Engine:
    settings = EngineSettings(
        num_blocks=runner.num_blocks, context_tokens=CONTEXT, block_size=BLOCK_SIZE, vocab_size=VOCAB
    )
    return Engine(runner, settings, record)


def run(runner: TorchRunner, specs: list[SequenceSpec]) -> Record:
    """All of them at once, to their ends."""
    record = Record()
    engine = make_engine(runner, record)
    for spec in specs:
        engine.add(spec)
    while engine.step_once():
        pass
    assert engine.load().free_blocks == runner.num_blocks
    return record


def check_place(text: str) -> None:
    place = json.loads(text)
    assert list(place) == ["city", "size", "kind"]
    assert len(place["city"]) <= 6
    assert place["size"] in range(100)
    assert place["kind"] in ("old", "new")


def test_led_and_free_sequences_in_one_batch_each_get_their_own_whatever_way_they_are_drawn(
    model: Model, runner: TorchRunner
) -> None:
    led = [model.led(f"place, {name}", PLACE, sample) for name, sample in DRAWS.items()]
    led += [model.led(f"word, {name}", WORD, sample) for name, sample in DRAWS.items()]
    led += [model.led(f"colour, {name}", COLOUR, sample) for name, sample in DRAWS.items()]
    free = [spec_of(f"free, {name}", PROMPT, max_tokens=30, sample=sample) for name, sample in DRAWS.items()]
    record = run(runner, [*led, *free])
    assert set(record.finishes.values()) == {"stop", "length"}
    for name, tokens in record.tokens.items():
        kind, _ = name.split(", ")
        assert record.finishes[name] == ("length" if kind == "free" else "stop")
        match kind:
            case "place":
                check_place(model.text(tokens))
            case "word":
                assert re.fullmatch("[a-z]{3,6}", model.text(tokens))
            case "colour":
                assert model.text(tokens) in ("red", "green", "blue")
    assert {name: record.tokens[name] for name in run(runner, free).tokens} == run(runner, free).tokens


@pytest.mark.parametrize("sample", DRAWS.values(), ids=DRAWS)
def test_a_text_goes_on_from_any_of_its_tokens_as_if_it_had_never_moved(
    model: Model, runner: TorchRunner, sample: SampleParams
) -> None:
    whole = run(runner, [model.led("whole", PLACE, sample)]).tokens["whole"]
    moved = [
        model.led(f"moved at {place}", PLACE, sample, tokens=[*PROMPT, *whole[:place]])
        for place in range(0, len(whole), 1 + len(whole) // 12)
    ]
    for name, tokens in run(runner, moved).tokens.items():
        place = int(name.removeprefix("moved at "))
        assert tokens == whole[place:], name


def test_a_preempted_text_is_the_same(model: Model, runner: TorchRunner) -> None:
    specs = [model.led(f"{number}", PLACE, SampleParams(1.0, seed=number)) for number in range(6)]
    alone = run(runner, specs).tokens
    again = [msgspec.structs.replace(spec, grammar=model.grammar(PLACE)) for spec in specs]
    record = Record()
    longest = max(len(tokens) for tokens in alone.values())
    engine = make_engine(model.runner((len(PROMPT) + 2 * longest) // BLOCK_SIZE + 1), record)
    for spec in again:
        engine.add(spec)
    while engine.step_once():
        pass
    assert engine.load().num_preemptions > 0
    assert record.tokens == alone


def test_once_a_text_is_complete_only_what_ends_it_may_come(model: Model, runner: TorchRunner) -> None:
    other_end = 300
    word = Constraint("regex", "[ab]{3}")
    pushed = SampleParams(bias={other_end: 100.0})
    record = run(
        runner,
        [
            model.led("one's own end", word, pushed, stop_tokens=ENDS | {other_end}),
            model.led("the model's end", word, pushed),
            model.led("not before so many", word, pushed, min_tokens=50),
        ],
    )
    assert set(record.finishes.values()) == {"stop"}
    assert record.tokens["one's own end"][-1] == other_end
    assert record.tokens["the model's end"][-1] in ENDS
    assert record.tokens["not before so many"] == record.tokens["the model's end"], "there is nothing else"
    for tokens in record.tokens.values():
        assert re.fullmatch("[ab]{3}", model.text(tokens[:-1]))


def test_a_text_that_is_cut_by_its_length_says_so(model: Model, runner: TorchRunner) -> None:
    whole = run(runner, [model.led("whole", PLACE)]).tokens["whole"]
    record = run(runner, [model.led("cut", PLACE, max_tokens=len(whole) // 2)])
    assert record.finishes["cut"] == "length"
    assert record.tokens["cut"] == whole[: len(whole) // 2]


def test_who_comes_to_a_dead_end_fails_alone_and_by_the_name_of_its_field(
    model: Model, runner: TorchRunner
) -> None:
    dead_end = Constraint("grammar", 'start: "ab" x\nx: x', field="guided_grammar")
    record = run(
        runner,
        [
            model.led("dead end", dead_end, max_tokens=20),
            model.led("sound", PLACE),
            spec_of("free", PROMPT, max_tokens=30, sample=SEEDED),
        ],
    )
    assert record.finishes["free"] == "length"
    check_place(model.text(record.tokens["sound"]))
    assert model.text(record.tokens["dead end"]) == "ab"
    fault = record.faults["dead end"]
    assert (fault.code, fault.values["field"]) == ("invalid_request", "guided_grammar")


def test_tokens_that_the_grammar_never_allowed_fail_their_own_request(
    model: Model, runner: TorchRunner
) -> None:
    forged = model.led("forged", PLACE, tokens=[*PROMPT, 300, 301])
    record = run(runner, [forged, model.led("sound", PLACE)])
    check_place(model.text(record.tokens["sound"]))
    fault = record.faults["forged"]
    assert (fault.code, fault.values["field"]) == ("invalid_request", "guided_json")


def test_a_sequence_whose_grammar_is_not_there_yet_is_waited_for(model: Model, runner: TorchRunner) -> None:
    """So far it comes only back from a hand-over that came to nothing."""
    whole = run(runner, [model.led("led", PLACE)]).tokens["led"]
    state = GrammarState(PLACE)
    record = Record()
    engine = make_engine(runner, record)
    engine.add(msgspec.structs.replace(model.led("led", PLACE), grammar=state))
    stepping = threading.Thread(target=engine.step_once)
    stepping.start()
    state.load(model.vocabulary.compile(PLACE))
    stepping.join(30)
    assert not stepping.is_alive()
    while engine.step_once():
        pass
    assert record.tokens["led"] == whole
