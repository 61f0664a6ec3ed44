"""An engine that computes: what a request draws depends on nobody else, and no field hurts a step."""

from collections.abc import Sequence

import hypothesis
import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from proto.cards import KvClass, ModelCard, TextFiles
from proto.errors import KvmeshError
from proto.logprobs import split_records, unpack_logprobs
from proto.requests import GenerateRequest, Sampling, Stopping
from proto.tokens import pack_tokens
from tests.tiny_model import write_tiny_llama
from tests.workers.engine.drafters import drafting_of
from tests.workers.engine.engine_desk import Record
from tests.workers.engine.tiny_torch import TINY_TORCH
from tests.workers.near_records import assert_near
from workers.engine.engine import Engine
from workers.engine.engine_settings import EngineSettings
from workers.engine.runner import Runner
from workers.engine.sequence import SequenceSpec
from workers.engine.speculation import Drafting
from workers.engine.torch_loading import load_torch_runner
from workers.engine.torch_runner import TorchRunner
from workers.engine.torch_settings import PoolSize
from workers.model.batch import build_batch
from workers.model.chunk import Chunk
from workers.request_spec import plan_sequence

BLOCK = 8
CONTEXT = 96
VOCAB = 512
NUM_BLOCKS = 24
CARD = ModelCard("tiny", KvClass("digest", "float32", BLOCK), TextFiles(""), CONTEXT, VOCAB, [2])
PROMPT = [5, 90, 17, 300, 41, 41, 8, 77, 210, 3, 19, 450, 33, 64, 128, 255, 5, 90, 17, 300, 7]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> TorchRunner:
    settings = msgspec.structs.replace(TINY_TORCH, block_size=BLOCK, pool=PoolSize(num_blocks=NUM_BLOCKS))
    return load_torch_runner(write_tiny_llama(tmp_path_factory.mktemp("tiny"), layers=2), settings)


class Foreknown:
    """A drafter that knows what follows, but for every fourth token of it."""

    def __init__(self, whole: list[int]) -> None:
        self._whole = [token if place % 4 else (token + 1) % VOCAB for place, token in enumerate(whole)]

    def propose(self, tokens: Sequence[int], most: int) -> list[int]:
        return self._whole[len(tokens) :][:most]


class Serving:
    """A new engine over the runner of the module: nothing is cached."""

    def __init__(self, runner: Runner, drafting: Drafting | None = None) -> None:
        self.record = Record()
        rules = EngineSettings(
            num_blocks=NUM_BLOCKS,
            block_size=BLOCK,
            context_tokens=CONTEXT,
            vocab_size=VOCAB,
            step_tokens=32,
            max_sequences=8,
        )
        self.engine = Engine(runner, rules, self.record, drafting)

    def records(self, name: str) -> list[bytes]:
        return split_records(self.record.logprobs[name], len(self.record.tokens[name]))

    def finish(self, *specs: SequenceSpec) -> None:
        for spec in specs:
            self.engine.add(spec)
        while self.engine.step_once():
            pass


def request_of(
    name: str,
    sampling: Sampling,
    stopping: Stopping,
    prompt: list[int] = PROMPT,
    generated: list[int] = [],  # noqa: B006 - nobody changes it
) -> GenerateRequest:
    return GenerateRequest(
        request=name,
        attempt=0,
        model=CARD.name,
        client="c",
        prompt=pack_tokens(prompt),
        sampling=sampling,
        stopping=stopping,
        deadline_s=60.0,
        offset=len(generated),
        generated=pack_tokens(generated),
    )


def spec_of(name: str, sampling: Sampling, stopping: Stopping, generated: list[int]) -> SequenceSpec:
    return plan_sequence(request_of(name, sampling, stopping, generated=generated), CARD)


GREEDY = Sampling(temperature=0.0)
SAMPLINGS = {
    "greedy": GREEDY,
    "penalised": Sampling(0.0, presence_penalty=0.7, frequency_penalty=0.3, repetition_penalty=1.4),
    "drawn": Sampling(1.1, top_p=0.95, top_k=60, seed=4, min_p=0.01, repetition_penalty=1.2),
    "drawn, penalised": Sampling(0.9, seed=6, frequency_penalty=1.5, logit_bias={41: 3.0, 8: -50.0}),
    "told": Sampling(0.8, seed=8, presence_penalty=-0.5, logprobs=3),
}
STOPPING = Stopping(14, stop_tokens=list(range(300, 500)), min_tokens=14)


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
def test_an_attempt_goes_on_with_the_tokens_and_records_of_one_that_was_not_disturbed(
    runner: TorchRunner, sampling: Sampling
) -> None:
    alone = Serving(runner)
    alone.finish(spec_of("r", sampling, STOPPING, []))
    tokens = alone.record.tokens["r/0"]
    assert len(tokens) == 14
    assert not set(tokens[:13]) & set(range(300, 500)), "an end came too early"
    for offset in (1, 5, 13):
        later = Serving(runner)
        later.finish(spec_of("r", sampling, STOPPING, tokens[:offset]))
        assert later.record.tokens["r/0"] == tokens[offset:]
        assert_near(later.records("r/0"), alone.records("r/0")[offset:])


@pytest.mark.parametrize("num_others", [0, 2])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
def test_drafts_change_no_token_and_no_record_whatever_way_a_sequence_is_drawn(
    runner: TorchRunner, sampling: Sampling, num_others: int
) -> None:
    alone = Serving(runner)
    alone.finish(spec_of("r", sampling, STOPPING, []))
    tokens = alone.record.tokens["r/0"]
    others = [spec_of(f"other{number}", GREEDY, STOPPING, []) for number in range(num_others)]
    speculating = Serving(runner, drafting_of(lambda: Foreknown(PROMPT + tokens), most_drafts=5))
    speculating.finish(spec_of("r", sampling, STOPPING, []), *others)
    load = speculating.engine.load()
    assert load.accepted_tokens >= len(tokens) // 2
    assert load.drafted_tokens > load.accepted_tokens
    assert speculating.record.tokens["r/0"] == tokens
    assert speculating.record.finishes == alone.record.finishes | {
        other.sequence: "length" for other in others
    }
    assert_near(speculating.records("r/0"), alone.records("r/0"))
    assert load.free_blocks == load.total_blocks


def test_all_kinds_at_once_in_a_pool_too_small_draw_as_each_alone(runner: TorchRunner) -> None:
    long = Stopping(48, ignore_eos=True)
    specs = [spec_of(name, sampling, long, []) for name, sampling in SAMPLINGS.items()]
    together = Serving(runner)
    together.finish(*specs)
    assert together.engine.load().num_preemptions > 0
    for spec in specs:
        alone = Serving(runner)
        alone.finish(spec)
        name = spec.sequence
        assert together.record.tokens[name] == alone.record.tokens[name], name
        assert_near(together.records(name), alone.records(name))


@pytest.mark.parametrize("length", [1, 2, BLOCK, BLOCK + 1, 70])
def test_a_prompts_tokens_are_told_what_the_model_thinks_of_them(runner: TorchRunner, length: int) -> None:
    """In chunks of a step, beside another request, and though all of it is cached."""
    prompt = [(place * 131 + 7) % VOCAB for place in range(length)]
    serving = Serving(runner)
    serving.finish(plan_sequence(request_of("warms", GREEDY, Stopping(1), prompt), CARD))
    scored = msgspec.structs.replace(GREEDY, prompt_logprobs=2)
    serving.finish(
        plan_sequence(request_of("scored", scored, Stopping(2), prompt), CARD),
        spec_of("other", GREEDY, Stopping(9, ignore_eos=True), []),
    )
    expected_TV = logits_of(runner, prompt).double().log_softmax(-1)
    records = split_records(serving.record.prompt_logprobs["scored/0"], length - 1)
    for record, logprobs_V, token in zip(records, expected_TV, prompt[1:], strict=True):
        told = unpack_logprobs(record)
        assert told.logprob == pytest.approx(float(logprobs_V[token]), abs=1e-4)
        likeliest = logprobs_V.topk(2)
        assert [best for best, _ in told.best] == likeliest.indices.tolist()
        assert [best for _, best in told.best] == pytest.approx(likeliest.values.tolist(), abs=1e-4)
        assert told.rank == 1 + int((logprobs_V > logprobs_V[token]).sum())


def logits_of(runner: TorchRunner, tokens: list[int]) -> torch.Tensor:
    """Of all but the last, in one pass over a pool of its own."""
    blocks = list(range(-(-len(tokens) // BLOCK)))
    chunk = Chunk(tokens, 0, blocks, len(tokens))
    pool_NIGLKPD = torch.zeros_like(runner.pool_NIGLKPD)
    batch = build_batch([chunk], BLOCK, pool_NIGLKPD.device)
    logits_TV: torch.Tensor = runner._decoder._decoder.forward(batch, pool_NIGLKPD, None)
    return logits_TV[:-1]


WILD_FLOATS = st.floats() | st.sampled_from([0.0, 1.0, -0.0, 1e-320, 1e38, 0.5, 2.0, 100.0])
WILD_INTS = st.integers(-(2**63), 2**64 - 1) | st.integers(-2, 25) | st.integers(500, 520)


SAMPLING_FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": WILD_FLOATS,
        "top_p": WILD_FLOATS,
        "top_k": WILD_INTS,
        "seed": WILD_INTS,
        "min_p": WILD_FLOATS,
        "presence_penalty": WILD_FLOATS,
        "frequency_penalty": WILD_FLOATS,
        "repetition_penalty": WILD_FLOATS,
        "logit_bias": st.dictionaries(WILD_INTS, WILD_FLOATS, max_size=3),
        "logprobs": st.none() | WILD_INTS,
        "prompt_logprobs": st.none() | WILD_INTS,
    },
)
STOPPING_FIELDS = st.fixed_dictionaries(
    {"max_tokens": st.integers(1, 6) | WILD_INTS},
    optional={
        "stop_tokens": st.lists(WILD_INTS, max_size=4),
        "ignore_eos": st.booleans(),
        "min_tokens": WILD_INTS,
    },
)


@hypothesis.settings(max_examples=50, deadline=None)
@given(asked=st.lists(st.tuples(SAMPLING_FIELDS, STOPPING_FIELDS), min_size=1, max_size=4))
def test_wild_fields_are_refused_by_name_or_served_and_hurt_nobody_else(
    runner: TorchRunner, asked: list[tuple[dict[str, object], dict[str, object]]]
) -> None:
    innocent = spec_of("innocent", SAMPLINGS["told"], Stopping(6, ignore_eos=True), [])
    alone = Serving(runner)
    alone.finish(innocent)
    serving = Serving(runner)
    serving.engine.add(innocent)
    accepted = []
    for number, (sampling, stopping) in enumerate(asked):
        request = request_of(f"wild{number}", Sampling(**sampling), Stopping(**stopping))  # type: ignore[arg-type]
        try:
            spec = plan_sequence(request, CARD)
            serving.engine.add(spec)
        except KvmeshError as error:
            assert error.status == 400
            assert str(error.values["field"]) in {*sampling, *stopping}
        else:
            accepted.append(spec.sequence)
    serving.finish()
    assert serving.record.finishes.keys() == {innocent.sequence, *accepted}
    assert not serving.record.faults
    assert serving.record.tokens["innocent/0"] == alone.record.tokens["innocent/0"]
