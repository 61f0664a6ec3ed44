"""What is asked: one row for each kind of request."""

import json
from dataclasses import dataclass
from enum import Enum
from typing import Literal

import msgspec

from proto.constraints import Constraint

BLOCK = 8
CONTEXT = 256
NUM_TOKENS = 16
VOCAB = 512

Tokens = tuple[int, ...]
Endpoint = Literal["chat/completions", "completions"]


class Asks(msgspec.Struct, frozen=True, omit_defaults=True):
    """The fields of a body that decide its answer, named as there; what is default is left out."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: list[str] = []
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    min_tokens: int = 0
    logprobs: bool | int | None = None
    top_logprobs: int = 0
    prompt_logprobs: int | None = None
    response_format: dict[str, object] | None = None
    guided_json: dict[str, object] | None = None
    guided_choice: list[str] | None = None
    n: int = 1
    echo: bool = False

    @property
    def constraint(self) -> Constraint | None:
        """What the answer must be, as a worker hears it."""
        if self.guided_json is not None:
            return Constraint("json_schema", json.dumps(self.guided_json))
        if self.response_format is not None:
            return Constraint("json_schema", json.dumps(SCHEMA))
        return None if self.guided_choice is None else Constraint("choice", json.dumps(self.guided_choice))

    @property
    def num_best(self) -> int | None:
        """Alternatives that are told of each token; the two endpoints ask for them differently."""
        return self.top_logprobs if self.logprobs is True else self.logprobs


class StopAt(Enum):
    """Where an answer shall be stopped, by a field that only the model's undisturbed answer tells."""

    FIRST_TOKEN = "stop_token_ids holds the first token"
    LATER_TOKEN = "stop_token_ids holds a token from the middle"
    FIRST_STRING = "stop holds the text of the first token"
    SPLIT_STRING = "stop holds the end of one token's text and the beginning of the next one's"


@dataclass(frozen=True)
class Row:
    """One request. `prompts` are several only where the endpoint takes several; each has `asks.n` choices."""

    name: str
    prompts: list[str] | list[Tokens] | list[list[dict[str, str]]]
    asks: Asks
    stop_at: StopAt | None = None
    endpoint: Endpoint = "completions"

    def body(self, asks: Asks) -> dict[str, object]:
        """Everything but the model, the salt and how the answer is sent."""
        fields: dict[str, object] = msgspec.to_builtins(asks)
        if self.endpoint == "chat/completions":
            return {**fields, "messages": self.prompts[0]}
        return {**fields, "prompt": self.prompts if len(self.prompts) > 1 else self.prompts[0]}


def some_tokens(count: int, start: int) -> Tokens:
    """Tokens without order, none of them special; another `start` gives others."""
    return tuple(3 + (start * 7919 + place * place * 31 + place * 17) % (VOCAB - 3) for place in range(count))


EOS_PROMPT = some_tokens(33, 12)
"""The model under test is told that what it says first to this ends an answer."""

GREEDY = Asks(max_tokens=NUM_TOKENS, temperature=0)
ONE_TOKEN = Asks(max_tokens=1, temperature=0)
SEEDED = Asks(max_tokens=NUM_TOKENS, temperature=0.8, seed=7)
NARROWED = Asks(max_tokens=NUM_TOKENS, temperature=1.2, top_k=20, top_p=0.9, seed=2**40 + 5)
NEGATIVE_SEED = Asks(max_tokens=NUM_TOKENS, temperature=1.0, seed=-5, ignore_eos=True)
PENALISED = Asks(12, temperature=0, presence_penalty=1.5, frequency_penalty=0.5, repetition_penalty=1.3)
ALL_AT_ONCE = Asks(
    10,
    temperature=0.9,
    min_p=0.02,
    top_p=0.95,
    seed=9,
    presence_penalty=-0.5,
    frequency_penalty=0.7,
    repetition_penalty=1.2,
    logit_bias={50: 2.0, 60: -100.0},
    min_tokens=4,
    logprobs=True,
    top_logprobs=2,
)
BETWEEN_TWO = Asks(16, 0.9, seed=6, logit_bias={50: 100.0, 60: 100.0}, frequency_penalty=0.1, logprobs=1)
"""What was said guesses well what is drawn next, and never surely."""
SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {
        "size": {"type": "integer", "minimum": 0, "maximum": 999},
        "kind": {"enum": ["old", "new"]},
    },
    "required": ["size", "kind"],
    "additionalProperties": False,
}
OF_SCHEMA: dict[str, object] = {
    "type": "json_schema",
    "json_schema": {"name": "place", "schema": SCHEMA, "strict": True},
}
NO_SPACES = dict.fromkeys((200, 201, 204, 223), -100.0)
"""Against the tokens of white space, of which a model of no sense has much to say."""
GREEDY_OF_SCHEMA = Asks(40, 0, logit_bias=NO_SPACES, response_format=OF_SCHEMA, logprobs=1)
DRAWN_OF_SCHEMA = Asks(
    40, 0.9, seed=12, frequency_penalty=0.3, logit_bias=NO_SPACES, response_format=OF_SCHEMA
)
QUESTION = [{"role": "user", "content": "What is the capital of Italy?"}]
TALK = [
    {"role": "system", "content": "You answer in one short sentence."},
    {"role": "user", "content": "Where did the small fox live?"},
    {"role": "assistant", "content": "Beside a quiet river, under tall trees."},
    {"role": "user", "content": "And what did it look for, every morning?"},
]

TWO = [some_tokens(17, 39), some_tokens(26, 44)]
CROWD = Row("crowd", 28 * [some_tokens(5, 23)], Asks(136, temperature=0, ignore_eos=True))
"""Sequences that are let in with a block each, and then grow beyond the pool: they share no full block."""

ROWS = [
    Row("chat", [QUESTION], GREEDY, endpoint="chat/completions"),
    Row("longer chat", [TALK], GREEDY, endpoint="chat/completions"),
    Row("seeded chat", [TALK], SEEDED, endpoint="chat/completions"),
    Row("chat of one token", [QUESTION], ONE_TOKEN, endpoint="chat/completions"),
    Row("chat with a split stop string", [TALK], GREEDY, StopAt.SPLIT_STRING, "chat/completions"),
    Row("string", ["Once upon a time a small fox lived beside a quiet river"], GREEDY),
    Row("prompt of one token", [some_tokens(1, 4)], GREEDY),
    Row("one block", [some_tokens(BLOCK, 5)], GREEDY),
    Row("one block and a token", [some_tokens(BLOCK + 1, 6)], GREEDY),
    Row("five blocks", [some_tokens(5 * BLOCK, 7)], GREEDY),
    Row("long", [some_tokens(100, 8)], GREEDY),
    Row("long answer", [some_tokens(98, 24)], Asks(48, temperature=0, ignore_eos=True)),
    Row("the limit", [some_tokens(CONTEXT - 1, 9)], GREEDY),
    Row("up to the limit", [some_tokens(CONTEXT - 11, 10)], Asks(temperature=0)),
    Row("one token", [some_tokens(50, 11)], ONE_TOKEN),
    Row("first token ends it", [EOS_PROMPT], GREEDY),
    Row("one token, which ends it", [EOS_PROMPT], ONE_TOKEN),
    Row("first token is no end", [EOS_PROMPT], Asks(NUM_TOKENS, temperature=0, ignore_eos=True)),
    Row("first token is the stop", [some_tokens(34, 13)], GREEDY, StopAt.FIRST_TOKEN),
    Row("later token is the stop", [some_tokens(35, 14)], GREEDY, StopAt.LATER_TOKEN),
    Row("first string is the stop", [some_tokens(36, 15)], GREEDY, StopAt.FIRST_STRING),
    Row("one token, whose string is the stop", [some_tokens(36, 15)], ONE_TOKEN, StopAt.FIRST_STRING),
    Row("split stop string", [some_tokens(37, 16)], GREEDY, StopAt.SPLIT_STRING),
    Row("seeded", [some_tokens(60, 17)], SEEDED),
    Row("seeded, narrowed", [some_tokens(61, 18)], NARROWED),
    Row("seeded, one token", [some_tokens(62, 19)], Asks(1, temperature=0.8, seed=7)),
    Row("negative seed", [some_tokens(63, 20)], NEGATIVE_SEED),
    Row("two choices", [some_tokens(24, 38)], Asks(10, 0.8, seed=11, n=2)),
    Row("two choices in a chat", [TALK], Asks(6, 1.0, seed=12, n=2), endpoint="chat/completions"),
    Row("two choices of each of two prompts, of one token", TWO, Asks(1, 0.9, seed=13, n=2)),
    Row("echo", ["Once upon a time a small fox lived beside a quiet river"], Asks(6, 0, echo=True)),
    Row("two prompts", [some_tokens(20, 21), some_tokens(45, 22)], GREEDY),
    Row("penalised", [some_tokens(20, 25)], PENALISED),
    Row("penalised, one token", [some_tokens(21, 26)], msgspec.structs.replace(PENALISED, max_tokens=1)),
    Row("biased to one token, also at first", [some_tokens(18, 27)], Asks(3, 0, logit_bias={50: 100.0})),
    Row("an end is first, but too early", [EOS_PROMPT], Asks(8, 0, min_tokens=3)),
    Row("one token, no end", [EOS_PROMPT], Asks(1, 0, min_tokens=1)),
    Row("stop string, but too early", [some_tokens(36, 15)], Asks(9, 0, min_tokens=2), StopAt.FIRST_STRING),
    Row("min-p", [some_tokens(22, 28)], Asks(8, 1.2, min_p=0.1, seed=3)),
    Row("log-probabilities", [some_tokens(19, 29)], Asks(8, 0, logprobs=3)),
    Row("those of one token", [some_tokens(23, 31)], Asks(1, 0.8, seed=5, logprobs=0)),
    Row("those before a stop", [some_tokens(37, 16)], Asks(16, 0, logprobs=1), StopAt.SPLIT_STRING),
    Row("all at once, in a chat", [TALK], ALL_AT_ONCE, endpoint="chat/completions"),
    Row("those of the prompt", [some_tokens(28, 32)], Asks(3, 0, prompt_logprobs=2)),
    Row("goes round", [some_tokens(14, 36)], Asks(14, 0, logit_bias={50: 100.0})),
    Row("between two", [some_tokens(15, 37)], BETWEEN_TWO),
    Row("of a schema", [some_tokens(29, 33)], GREEDY_OF_SCHEMA),
    Row("of a schema, cut", [some_tokens(31, 34)], Asks(5, 0, response_format=OF_SCHEMA)),
    Row("of a schema, drawn in a chat", [TALK], DRAWN_OF_SCHEMA, endpoint="chat/completions"),
    Row("one of three", [some_tokens(32, 35)], Asks(8, 1.0, seed=4, guided_choice=["red", "green", "rot"])),
]
