"""One choice of an answer: a request's tokens become text that stops where it should."""

from typing import Literal

import msgspec

from frontend.choice_meter import ChoiceMeter
from frontend.parsing.answer_parser import joined
from frontend.parsing.delta import Delta
from frontend.parsing.speech import Manner
from frontend.requests.stream_hub import LiveRequest, StreamHub
from frontend.shown_prompt import ShownPrompt
from frontend.shown_tokens import ShownToken, ShownTokens
from frontend.text.detokenizer import Detokenizer
from frontend.text.stop_strings import Cut, StopStrings
from frontend.text.tokenizer import TextTokenizer
from frontend.token_scores import TokenScores, read_scores
from proto.errors import KvmeshError
from proto.requests import FinishReason
from proto.streams import End, Prefilled

ShownFinish = FinishReason | Literal["tool_calls"]


class Piece(msgspec.Struct, frozen=True):
    """Text of one choice, with the tokens that are shown with it if they were asked for, and at its end how
    it finished. `delta` is all that is told where that is not just text: reasoning, calls, or nothing."""

    index: int
    text: str
    finish: ShownFinish | None = None
    tokens: list[ShownToken] = []
    delta: Delta | None = None


class ChoiceFacts(msgspec.Struct, frozen=True, omit_defaults=False):
    """What a client may ask to know of a choice. Units: tokens; seconds from the request's arrival."""

    index: int
    worker: str
    attempts: int
    prefill: str
    prefill_worker: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    ttft_s: float
    total_s: float


class ChoiceRules(msgspec.Struct, frozen=True):
    """What a choice shows, and where it ends.

    `num_best` alternatives are told of with each of its tokens, `num_prompt_best` with those of its prompt;
    None: nothing is. `is_silent`: it shows no token of its own.
    """

    stops: tuple[str, ...]
    stop_tokens: frozenset[int]
    min_tokens: int
    num_best: int | None
    num_prompt_best: int | None
    echoes: bool
    is_silent: bool


class TextChoice:
    """Reads one live request. What it gives does not depend on how the tokens were cut into frames.

    Choices of the same prompt have the first of them as their `leader`, which has none.
    """

    def __init__(
        self,
        index: int,
        live: LiveRequest,
        hub: StreamHub,
        tokenizer: TextTokenizer,
        prompt: ShownPrompt,
        rules: ChoiceRules,
        meter: ChoiceMeter,
        leader: "TextChoice | None",
        manner: Manner,
    ) -> None:
        self.index = index
        self.leader = leader
        self.live = live
        self.num_out = 0
        self.num_reasoning = 0
        self.finish: ShownFinish | None = None
        self._hub = hub
        self._tokenizer = tokenizer
        self._prompt = prompt
        self._rules = rules
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopStrings(rules.stops) if rules.stops else None
        self._parser = manner.make_parser()
        self._markers = {} if self._parser is None else manner.marker_tokens
        self._owes_echo = rules.echoes
        num_before = len(prompt.text) if rules.echoes else 0
        self._shown = ShownTokens(num_before) if rules.num_best is not None else None
        self._meter = meter
        # whether the text of a token is all that is to be told of it, at once
        self._is_plain = self._parser is None and self._stops is None and self._shown is None

    @property
    def tells_reasoning(self) -> bool:
        return self._parser is not None and self._parser.tells_reasoning

    @property
    def num_prompt(self) -> int:
        return self._prompt.num_tokens

    @property
    def num_cached(self) -> int:
        """Prompt tokens that were cached; what a later attempt found of its own replay does not count."""
        return min(self._prefilled.cached_tokens, self.num_prompt)

    @property
    def _prefilled(self) -> Prefilled:
        return self.live.state.prefilled or Prefilled()

    def facts(self) -> ChoiceFacts:
        state = self.live.state
        return ChoiceFacts(
            index=self.index,
            worker=state.worker,
            attempts=state.attempt + 1,
            prefill=self._prefilled.place,
            prefill_worker=self._prefilled.worker,
            prompt_tokens=self.num_prompt,
            completion_tokens=self.num_out,
            cached_tokens=self.num_cached,
            ttft_s=self._meter.ttft_s,
            total_s=self._meter.total_s,
        )

    def take(self) -> list[Piece]:
        """What has come since the last time, a piece for each token that shows; none after the finish.

        Raises:
            KvmeshError: the request has failed, and its text has been taken.
        """
        if self.finish is not None:
            return []
        state = self.live.state
        new = state.tokens[self.num_out :]
        if not new and state.outcome is None:
            return []
        if not new and isinstance(state.outcome, KvmeshError):
            raise state.outcome
        if new:
            self._meter.note(len(new), self.num_cached)
        pieces = [*self._take_echo(), *self._take_pieces(new)]
        if self.finish is None and isinstance(state.outcome, End):
            pieces.append(self._end_piece())
            self.finish = self.finish or state.outcome.finish
        pieces = [piece for piece in pieces if piece.text or piece.tokens or piece.delta]
        if self.finish is not None:
            self.close()
            if self.finish == "stop" and self._parser is not None and self._parser.has_called:
                self.finish = "tool_calls"
            pieces.append(Piece(self.index, "", self.finish))
        return pieces

    def close(self) -> None:
        self._meter.end(self.num_cached)
        self._hub.finish(self.live)

    def prompt_scores(self) -> list[TokenScores]:
        """What the tokens of the prompt but the first were worth, if that was asked for."""
        num_best = self._rules.num_prompt_best
        return [] if num_best is None else self._prompt.scores(self._prompt_records, num_best)

    def _take_echo(self) -> list[Piece]:
        """Once, where the answer begins with its prompt."""
        if not self._owes_echo:
            return []
        self._owes_echo = False
        num_best = self._rules.num_best
        tokens = [] if num_best is None else self._prompt.shown_tokens(self._prompt_records, num_best)
        return [Piece(self.index, self._prompt.text, tokens=tokens)]

    @property
    def _prompt_records(self) -> bytes:
        """Those of its leader, which alone is asked for them."""
        return (self.leader or self)._prefilled.prompt_logprobs

    def _take_pieces(self, new: list[int]) -> list[Piece]:
        """The piece of each token, one by one: neither events nor counts depend on how frames were cut."""
        pieces: list[Piece] = []
        if new and self._rules.is_silent:
            self.finish = "length"
            return pieces
        for token in new:
            self.num_out += 1
            if token not in self._rules.stop_tokens:
                pieces.append(self._take_token(token))
            if self.finish is not None:
                break
        return pieces

    def _take_token(self, token: int) -> Piece:
        text = self._detokenizer.push_one(token)
        if self._is_plain:
            return Piece(self.index, text)
        self._push_shown(token, len(text))
        if self._parser is None:
            return self._cut(text)
        was_reasoning, marker = self._parser.is_reasoning, self._markers.get(token)
        piece = self._cut(text) if marker is None else self._mark(marker)
        self.num_reasoning += was_reasoning or self._parser.is_reasoning
        return piece

    def _cut(self, text: str) -> Piece:
        """What of `text`, and of what is held back, may be shown."""
        cut = self._let_through(text)
        if cut.stop is not None:
            return self._stop(cut.text)
        if self._parser is None:
            return Piece(self.index, cut.text, tokens=self._take_shown(len(cut.text)))
        num_held = self._parser.num_held + len(cut.text)
        delta = self._parser.push(cut.text)
        return self._piece(delta, self._take_shown(num_held - self._parser.num_held))

    def _mark(self, marker: str) -> Piece:
        """A special token that says how the text is meant: no stop string goes across it."""
        assert self._parser is not None
        text = "" if self._stops is None else self._stops.flush()
        num_held = self._parser.num_held + len(text)
        delta = joined(self._parser.push(text), self._parser.push_marker(marker))
        return self._piece(delta, self._take_shown(num_held - self._parser.num_held))

    def _end_piece(self) -> Piece:
        cut = self._let_through(self._detokenizer.flush())
        if cut.stop is not None:
            return self._stop(cut.text)
        held = "" if self._stops is None else self._stops.flush()
        delta, num_chars = self._tell_rest(cut.text + held)
        return self._piece(delta, self._take_shown(num_chars))

    def _let_through(self, text: str) -> Cut:
        """No stop string ends the text too early."""
        if self._stops is None or self.num_out <= self._rules.min_tokens:
            return Cut(text)
        return self._stops.push(text)

    def _stop(self, text: str) -> Piece:
        """The last piece, before a stop string."""
        self.finish = "stop"
        delta, num_chars = self._tell_rest(text)
        return self._piece(delta, [] if self._shown is None else self._shown.take_cut(num_chars))

    def _tell_rest(self, text: str) -> tuple[Delta, int]:
        """What is told at the end, and of how many characters."""
        if self._parser is None:
            return Delta(content=text), len(text)
        num_chars = self._parser.num_held + len(text)
        return joined(self._parser.push(text), self._parser.finish()), num_chars

    def _piece(self, delta: Delta, tokens: list[ShownToken]) -> Piece:
        is_more = self._parser is not None and bool(delta.reasoning or delta.calls or not delta.content)
        return Piece(self.index, delta.content, tokens=tokens, delta=delta if is_more else None)

    def _push_shown(self, token: int, num_chars: int) -> None:
        if self._shown is not None:
            scores = read_scores(self._tokenizer, token, self.live.state.records[self.num_out - 1])
            within = self._detokenizer.is_within_character
            self._shown.push(scores.own, scores.best, num_chars, ends_within=within)

    def _take_shown(self, num_chars: int) -> list[ShownToken]:
        return [] if self._shown is None else self._shown.take(num_chars)
