"""What the answer must be: computed by `transformers`, the whole text anew for each token, nothing cached.

Sampling, stops and limits are said here a second time, as plainly as possible.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from proto.requests import MAX_SEED
from tests.mesh.equality.asking import Answer, Text
from tests.mesh.equality.rows import Asks, Row, StopAt, Tokens
from workers.engine.sampler import uniform

ROUNDING = 1e-4
"""What another order of additions may change in a logit, and more."""
NUM_SHAKES = 8
UNFINISHED = "\ufffd"


@dataclass(frozen=True)
class Course:
    """One choice: its tokens in full, and those of them that rounding cannot change.

    `num_firm` is None while no token was a near-tie.
    """

    tokens: list[int]
    text: str
    finish: str
    num_firm: int | None


@dataclass(frozen=True)
class Expected:
    """The answer to `row`, asked as `asks`. From a near-tie on, only the `firm_texts` before it must hold."""

    row: Row
    asks: Asks
    prompts: list[Tokens]
    answer: Answer
    firm_texts: list[str] | None

    @property
    def is_near_tie(self) -> bool:
        return self.firm_texts is not None

    def check(self, found: Answer) -> None:
        """
        Raises:
            AssertionError: another answer.
        """
        if self.firm_texts is None:
            assert found == self.answer, self.row.name
            return
        assert found.num_prompt == self.answer.num_prompt, self.row.name
        for choice, firm in zip(found.choices, self.firm_texts, strict=True):
            assert choice.text.startswith(firm), f"{self.row.name}, before a near-tie"


class Recompute:
    """Answers rows from a model folder."""

    def __init__(self, folder: Path, context: int) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._eos = self._model.generation_config.eos_token_id
        self._context = context

    def expect(self, row: Row) -> Expected:
        prompts = [self._encode(prompt) for prompt in row.prompts]
        asks = row.asks
        if row.stop_at is not None:
            asks = self._stop(asks, self._run(prompts[0], asks).tokens, row.stop_at)
        by_prompt = {prompt: self._run(prompt, asks) for prompt in dict.fromkeys(prompts)}
        courses = [by_prompt[prompt] for prompt in prompts]
        answer = Answer(
            [Text(course.text, course.finish) for course in courses],
            sum(map(len, prompts)),
            sum(len(course.tokens) for course in courses),
        )
        is_firm = all(course.num_firm is None for course in courses)
        firm_texts = None if is_firm else [self._firm_text(course) for course in courses]
        return Expected(row, asks, prompts, answer, firm_texts)

    def first_token(self, prompt: Tokens) -> int:
        """What a greedy answer begins with."""
        return int(self._logits(list(prompt)).argmax())

    def _encode(self, prompt: str | Tokens | list[dict[str, str]]) -> Tokens:
        if isinstance(prompt, tuple):
            return prompt
        return tuple(self._tokenizer.encode(self._prompt_text(prompt), add_special_tokens=False))

    def _prompt_text(self, prompt: str | list[dict[str, str]]) -> str:
        if isinstance(prompt, str):
            return prompt
        return str(self._tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False))

    def _run(self, prompt: Tokens, asks: Asks) -> Course:
        tokens: list[int] = []
        num_firm = None
        room = self._context - len(prompt)
        limit = min(asks.max_tokens or room, room)
        ends = {*asks.stop_token_ids, *(() if asks.ignore_eos else self._eos)}
        while True:
            logits_V = self._logits([*prompt, *tokens])
            position = len(prompt) + len(tokens)
            token = draw(logits_V, asks, position)
            if num_firm is None and is_near_tie(logits_V, asks, position, token):
                num_firm = len(tokens)
            tokens.append(token)
            if token in ends:
                return Course(tokens, self._text(tokens[:-1]), "stop", num_firm)
            text = self._text(tokens)
            cuts = [text.index(stop) for stop in asks.stop if stop in text]
            if cuts:
                return Course(tokens, text[: min(cuts)], "stop", num_firm)
            if len(tokens) == limit:
                return Course(tokens, text, "length", num_firm)

    def _logits(self, tokens: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            logits_1TV: torch.Tensor = self._model(torch.tensor([tokens]), use_cache=False).logits
        return logits_1TV[0, -1]

    def _text(self, tokens: list[int]) -> str:
        decode = self._tokenizer.decode
        return str(decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def _firm_text(self, course: Course) -> str:
        if course.num_firm is None:
            return course.text
        firm = self._text(course.tokens[: course.num_firm]).rstrip(UNFINISHED)
        return firm[: len(course.text)]

    def _stop(self, asks: Asks, tokens: list[int], where: StopAt) -> Asks:
        """`asks` with the field that stops the answer `tokens` there."""
        match where:
            case StopAt.FIRST_TOKEN:
                return msgspec.structs.replace(asks, stop_token_ids=tokens[:1])
            case StopAt.LATER_TOKEN:
                later = next(token for token in tokens[5:] if token not in tokens[:5])
                return msgspec.structs.replace(asks, stop_token_ids=[later])
            case StopAt.FIRST_STRING:
                return msgspec.structs.replace(asks, stop=[self._plain(tokens[0])])
            case StopAt.SPLIT_STRING:
                return msgspec.structs.replace(asks, stop=[self._split_string(tokens)])

    def _plain(self, token: int) -> str:
        text = self._text([token])
        assert text.isascii(), "this answer begins with half a character: choose another prompt"
        return text

    def _split_string(self, tokens: list[int]) -> str:
        """Two characters of two tokens in the middle of the answer, and nowhere before."""
        for place in range(4, len(tokens) - 1):
            left, right = (self._text([token]) for token in tokens[place : place + 2])
            both = left[-1:] + right[:1]
            is_first = both in self._text(tokens[: place + 2]) and both not in self._text(tokens[: place + 1])
            if len(both) == 2 and both.isascii() and is_first:
                return both
        raise AssertionError("no two tokens of this answer are plain text: choose another prompt")


def draw(logits_V: torch.Tensor, asks: Asks, position: int) -> int:
    """One token, as `workers/engine/sampler.py` says it, for one row and without care for speed."""
    if not asks.temperature:
        return int(logits_V.argmax())
    weights = (logits_V.double() / asks.temperature).softmax(-1).tolist()
    kept = sorted(range(len(weights)), key=lambda token: -weights[token])[: asks.top_k or None]
    wanted = asks.top_p * sum(weights[token] for token in kept)
    num_kept, held = 0, 0.0
    while num_kept < len(kept) and held < wanted:
        held += weights[kept[num_kept]]
        num_kept += 1
    assert asks.seed is not None
    target = uniform(asks.seed & MAX_SEED, position) * held
    for token in sorted(kept[:num_kept]):
        target -= weights[token]
        if target < 0:
            return token
    return max(kept[:num_kept])


def is_near_tie(logits_V: torch.Tensor, asks: Asks, position: int, token: int) -> bool:
    """Whether logits that differ by no more than rounding could give another token than `token`."""
    shaker = torch.Generator().manual_seed(position)
    shakes = [ROUNDING * torch.randn(logits_V.shape, generator=shaker) for _ in range(NUM_SHAKES)]
    return any(draw(logits_V + shake, asks, position) != token for shake in shakes)
