"""What the answer must be: computed by `transformers`, the whole text anew for each token, nothing cached.

Sampling, stops and limits are said here a second time, as plainly as possible.
"""

from collections.abc import Set
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import torch
from pytest import approx
from transformers import AutoModelForCausalLM, AutoTokenizer

from frontend.choices import seed_of
from proto.requests import MAX_SEED
from services.grammars.vocabulary import Masks, Vocabulary
from tests.mesh.equality.asking import Answer, Heard, Text, Worth
from tests.mesh.equality.rows import Asks, Row, StopAt, Tokens
from tests.services.grammars.walks import tokens_in
from tests.workers.engine.naive_sampler import Asked, naive_tokens
from workers.engine.runner import SampleParams

LOGPROB_ROUNDING = 1e-3
ROUNDING = 1e-4
"""What another order of additions may change in a logit, and more."""
NUM_SHAKES = 8
UNFINISHED = "\ufffd"


@dataclass(frozen=True)
class Course:
    """One choice: its tokens in full, and those of them that rounding cannot change.

    `num_firm` is None while no token was a near-tie. `worths` are those of the tokens that are shown. `said`
    is what is shown before them.
    """

    tokens: list[int]
    text: str
    finish: str
    num_firm: int | None
    worths: list[Worth]
    said: str = ""


@dataclass(frozen=True)
class Expected:
    """The answer to `row`, asked as `asks`. From a near-tie on, only the `firm_texts` before it must hold."""

    row: Row
    asks: Asks
    prompts: list[Tokens]
    answer: Answer
    firm_texts: list[str] | None
    worths: list[list[Worth]]
    prompt_worths: list[tuple[int, Worth]]

    @property
    def is_near_tie(self) -> bool:
        return self.firm_texts is not None

    def check(self, heard: Heard) -> None:
        """
        Raises:
            AssertionError: another answer.
        """
        if self.firm_texts is not None:
            assert heard.answer.num_prompt == self.answer.num_prompt, self.row.name
            for choice, firm in zip(heard.answer.choices, self.firm_texts, strict=True):
                assert choice.text.startswith(firm), f"{self.row.name}, before a near-tie"
            return
        assert heard.answer == self.answer, self.row.name
        for found, expected in zip(heard.worths, self.worths, strict=True):
            assert_near(found, expected, self.row.name)
        told = [
            Worth(worth.name, place[token], sorted(place.values(), reverse=True))
            for (token, worth), place in zip(self.prompt_worths, heard.prompt, strict=True)
        ]
        assert_near(told, [worth for _, worth in self.prompt_worths], self.row.name)


def assert_near(found: list[Worth], expected: list[Worth], row: str) -> None:
    """A completion names the token itself beside the likeliest: one more than was asked for."""
    assert len(found) == len(expected), row
    for one, other in zip(found, expected, strict=True):
        assert not other.name.isascii() or one.name == other.name, row
        assert one.logprob == approx(other.logprob, abs=LOGPROB_ROUNDING), row
        count = len(other.best)
        assert one.best[:count] == approx(other.best, abs=LOGPROB_ROUNDING), row
        assert len(one.best) <= count + 1, row


class Recompute:
    """Answers rows from a model folder."""

    def __init__(self, folder: Path, context: int) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._eos = self._model.generation_config.eos_token_id
        self._context = context
        self._vocabulary = Vocabulary(folder / "tokenizer.json", self._model.config.vocab_size, self._eos)
        self._masks = Masks(num_threads=1)

    def expect(self, row: Row) -> Expected:
        prompts = [self._encode(prompt) for prompt in row.prompts]
        asks = row.asks
        if row.stop_at is not None:
            asks = self._stop(asks, self._run(prompts[0], asks).tokens, row.stop_at)
        by_prompt = {prompt: self._run_each(prompt, asks) for prompt in dict.fromkeys(prompts)}
        courses = [course for prompt in prompts for course in by_prompt[prompt]]
        answer = Answer(
            [Text(course.said + course.text, course.finish) for course in courses],
            sum(map(len, prompts)),
            sum(len(course.tokens) for course in courses),
        )
        is_firm = all(course.num_firm is None for course in courses)
        firm_texts = None if is_firm else [self._firm_text(course) for course in courses]
        worths = [course.worths for course in courses]
        return Expected(row, asks, prompts, answer, firm_texts, worths, self._prompt_worths(prompts[0], asks))

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

    def _run_each(self, prompt: Tokens, asks: Asks) -> list[Course]:
        """The choices of a prompt: each by a seed of its own, and after the prompt where that is wanted."""
        seeds = [seed_of((asks.seed or 0) & MAX_SEED, number) for number in range(asks.n)]
        courses = [self._run(prompt, msgspec.structs.replace(asks, seed=seed)) for seed in seeds]
        said = self._text(list(prompt)) if asks.echo else ""
        return [replace(course, said=said) for course in courses]

    def _run(self, prompt: Tokens, asks: Asks) -> Course:
        tokens: list[int] = []
        worths: list[Worth] = []
        num_firm = None
        room = self._context - len(prompt)
        limit = min(asks.max_tokens or room, room)
        ends = {*asks.stop_token_ids, *(() if asks.ignore_eos else self._eos)}
        while True:
            logits_V = self._logits([*prompt, *tokens])
            banned = frozenset(ends) if len(tokens) < asks.min_tokens else frozenset()
            place = Place(prompt, tuple(tokens), asks, banned, self._allowed(asks, tokens, ends))
            token = place.draw(logits_V)
            if num_firm is None and place.is_near_tie(logits_V, token):
                num_firm = len(tokens)
            tokens.append(token)
            if token in ends:
                return Course(tokens, self._text(tokens[:-1]), "stop", num_firm, worths)
            worths += self._worths(logits_V, token, asks.num_best)
            text = self._text(tokens)
            first = len(self._text(tokens[: asks.min_tokens]))
            cuts = [text.index(stop, first) for stop in asks.stop if stop in text[first:]]
            if cuts:
                shown = self._num_shown(tokens, min(cuts))
                return Course(tokens, text[: min(cuts)], "stop", num_firm, worths[:shown])
            if len(tokens) == limit:
                return Course(tokens, text, "length", num_firm, worths)

    def _allowed(self, asks: Asks, tokens: list[int], ends: Set[int]) -> frozenset[int] | None:
        """What a grammar allows next, followed anew from its beginning; None without one."""
        constraint = asks.constraint
        if constraint is None:
            return None
        matcher = self._vocabulary.compile(constraint)
        matcher.advance(tokens)
        (mask,) = self._masks.fill([matcher])
        return frozenset(tokens_in(mask)).union(ends if matcher.is_accepting else ())

    def _num_shown(self, tokens: list[int], num_chars: int) -> int:
        """Tokens that begin before the text is cut."""
        return sum(
            len(self._text(tokens[:place]).rstrip(UNFINISHED)) < num_chars for place in range(len(tokens))
        )

    def _worths(self, logits_V: torch.Tensor, token: int, num_best: int | None) -> list[Worth]:
        """What is told of `token`: nothing, or one."""
        if num_best is None:
            return []
        logprobs_V = logits_V.double().log_softmax(-1)
        best = logprobs_V.topk(num_best).values.tolist()
        return [Worth(str(self._tokenizer.decode([token])), float(logprobs_V[token]), best)]

    def _prompt_worths(self, prompt: Tokens, asks: Asks) -> list[tuple[int, Worth]]:
        if asks.prompt_logprobs is None:
            return []
        logits_TV = self._all_logits(list(prompt))
        return [
            (token, worth)
            for logits_V, token in zip(logits_TV, prompt[1:], strict=False)  # the last says what comes next
            for worth in self._worths(logits_V, token, asks.prompt_logprobs)
        ]

    def _logits(self, tokens: list[int]) -> torch.Tensor:
        return self._all_logits(tokens)[-1]

    def _all_logits(self, tokens: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            logits_1TV: torch.Tensor = self._model(torch.tensor([tokens]), use_cache=False).logits
        return logits_1TV[0]

    def _text(self, tokens: list[int]) -> str:
        decode = self._tokenizer.decode
        return str(decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def _firm_text(self, course: Course) -> str:
        if course.num_firm is None:
            return course.said + course.text
        firm = self._text(course.tokens[: course.num_firm]).rstrip(UNFINISHED)
        return course.said + firm[: len(course.text)]

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


@dataclass(frozen=True)
class Place:
    """Where a token is to be drawn: all that is before it, and what was asked."""

    prompt: Tokens
    generated: Tokens
    asks: Asks
    banned: frozenset[int]
    allowed: frozenset[int] | None

    def draw(self, logits_V: torch.Tensor) -> int:
        """One token, for one row and without care for speed."""
        asks = self.asks
        params = SampleParams(
            temperature=asks.temperature or 0.0,
            top_k=asks.top_k,
            top_p=asks.top_p,
            seed=(asks.seed or 0) & MAX_SEED,
            min_p=asks.min_p,
            presence=asks.presence_penalty,
            frequency=asks.frequency_penalty,
            repetition=asks.repetition_penalty,
            bias=asks.logit_bias,
        )
        asked = Asked(
            logits_V.double().tolist(),
            params,
            list(self.prompt),
            list(self.generated),
            self.banned,
            self.allowed,
        )
        return naive_tokens(asked)[0]

    def is_near_tie(self, logits_V: torch.Tensor, token: int) -> bool:
        """Whether logits that differ by no more than rounding could give another token than `token`."""
        shaker = torch.Generator().manual_seed(len(self.prompt) + len(self.generated))
        shakes = [ROUNDING * torch.randn(logits_V.shape, generator=shaker) for _ in range(NUM_SHAKES)]
        return any(self.draw(logits_V + shake) != token for shake in shakes)
