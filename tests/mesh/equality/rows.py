"""What is asked: one row for each kind of request."""

from dataclasses import dataclass
from enum import Enum
from typing import Literal

import msgspec

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


class StopAt(Enum):
    """Where an answer shall be stopped, by a field that only the model's undisturbed answer tells."""

    FIRST_TOKEN = "stop_token_ids holds the first token"
    LATER_TOKEN = "stop_token_ids holds a token from the middle"
    FIRST_STRING = "stop holds the text of the first token"
    SPLIT_STRING = "stop holds the end of one token's text and the beginning of the next one's"


@dataclass(frozen=True)
class Row:
    """One request. `prompts` are several only where the endpoint takes several: they are its choices."""

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
QUESTION = [{"role": "user", "content": "What is the capital of Italy?"}]
TALK = [
    {"role": "system", "content": "You answer in one short sentence."},
    {"role": "user", "content": "Where did the small fox live?"},
    {"role": "assistant", "content": "Beside a quiet river, under tall trees."},
    {"role": "user", "content": "And what did it look for, every morning?"},
]

CROWD = Row("crowd", 20 * [some_tokens(5, 23)], Asks(136, temperature=0, ignore_eos=True))
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
    Row("two prompts", [some_tokens(20, 21), some_tokens(45, 22)], GREEDY),
]
