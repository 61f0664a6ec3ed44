"""One choice of an answer: a request's tokens become text that stops where it should."""

import time

import msgspec

from frontend.requests.stream_hub import LiveRequest, StreamHub
from frontend.shown_tokens import ShownToken, ShownTokens, TokenScore
from frontend.text.detokenizer import Detokenizer
from frontend.text.stop_strings import StopStrings
from frontend.text.tokenizer import TextTokenizer
from frontend.traffic import RequestAccount
from proto.errors import InternalFault, InvalidRequest, KvmeshError
from proto.logprobs import split_records, unpack_logprobs
from proto.requests import FinishReason
from proto.streams import End, Prefilled
from proto.tokens import unpack_tokens
from services.metrics import FrontendMetrics


class Piece(msgspec.Struct, frozen=True):
    """Text of one choice, with the tokens that are shown with it if they were asked for, and at its end how
    it finished."""

    index: int
    text: str
    finish: FinishReason | None = None
    tokens: list[ShownToken] = []


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


class TextChoice:
    """Reads one live request. What it gives does not depend on how the tokens were cut into frames."""

    def __init__(
        self,
        index: int,
        live: LiveRequest,
        hub: StreamHub,
        tokenizer: TextTokenizer,
        stops: tuple[str, ...],
        stop_tokens: frozenset[int],
        num_prompt: int,
        arrived_s: float,
        metrics: FrontendMetrics,
        account: RequestAccount,
    ) -> None:
        self.index = index
        self.num_prompt = num_prompt
        self.num_out = 0
        self.finish: FinishReason | None = None
        self._live = live
        self._hub = hub
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopStrings(stops) if stops else None
        self._stop_tokens = stop_tokens
        self._min_tokens = live.request.stopping.min_tokens
        self._shown = ShownTokens() if live.request.sampling.logprobs is not None else None
        self._arrived_s = arrived_s
        self._first_s = self._last_s = 0.0
        self._metrics = metrics
        self._account = account

    @property
    def num_cached(self) -> int:
        """Prompt tokens that were cached; what a later attempt found of its own replay does not count."""
        return min(self._prefilled.cached_tokens, self.num_prompt)

    @property
    def _prefilled(self) -> Prefilled:
        return self._live.state.prefilled or Prefilled()

    def facts(self) -> ChoiceFacts:
        state = self._live.state
        return ChoiceFacts(
            index=self.index,
            worker=state.worker,
            attempts=state.attempt + 1,
            prefill=self._prefilled.place,
            prefill_worker=self._prefilled.worker,
            prompt_tokens=self.num_prompt,
            completion_tokens=self.num_out,
            cached_tokens=self.num_cached,
            ttft_s=round(self._first_s - self._arrived_s, 6) if self._first_s else 0.0,
            total_s=round(self._last_s - self._arrived_s, 6) if self._last_s else 0.0,
        )

    def take(self) -> list[Piece]:
        """What has come since the last time, a piece for each token that shows; none after the finish.

        Raises:
            KvmeshError: the request has failed, and its text has been taken.
        """
        if self.finish is not None:
            return []
        state = self._live.state
        new = state.tokens[self.num_out :]
        if not new and state.outcome is None:
            return []
        if not new and isinstance(state.outcome, KvmeshError):
            raise state.outcome
        if new:
            self._measure(len(new))
        pieces = [piece for piece in self._take_pieces(new) if piece.text or piece.tokens]
        if self.finish is None and isinstance(state.outcome, End):
            rest = self._end_piece()
            pieces += [rest] if rest.text or rest.tokens else []
            self.finish = self.finish or state.outcome.finish
        if self.finish is not None:
            self.close()
            pieces.append(Piece(self.index, "", self.finish))
        return pieces

    def close(self) -> None:
        self._account.end(self.num_cached)
        self._hub.finish(self._live)

    def prompt_scores(self) -> list[ShownToken]:
        """What the tokens of the prompt but the first were worth, if that was asked for."""
        num_best = self._live.request.sampling.prompt_logprobs
        if num_best is None or self.num_prompt < 2:
            return []
        tokens = unpack_tokens(self._live.request.prompt)[1:]
        records = split_records(self._prefilled.prompt_logprobs, len(tokens))
        return [ShownToken(0, *self._scores(*each)) for each in zip(tokens, records, strict=True)]

    def _take_pieces(self, new: list[int]) -> list[Piece]:
        """The piece of each token, one by one: neither events nor counts depend on how frames were cut."""
        pieces = []
        for token in new:
            self.num_out += 1
            if token not in self._stop_tokens:
                text = self._detokenizer.push((token,))
                self._push_shown(token, len(text))
                pieces.append(self._cut(text))
            if self.finish is not None:
                break
        return pieces

    def _end_piece(self) -> Piece:
        piece = self._cut(self._detokenizer.flush())
        if self._stops is None or self.finish is not None:
            return piece
        held = self._stops.flush()
        return Piece(self.index, piece.text + held, tokens=piece.tokens + self._take_shown(len(held)))

    def _cut(self, text: str) -> Piece:
        """What of `text`, and of what is held back, may be shown. No stop string ends the text too early."""
        if self._stops is None or self.num_out <= self._min_tokens:
            return Piece(self.index, text, tokens=self._take_shown(len(text)))
        cut = self._stops.push(text)
        if cut.stop is None:
            return Piece(self.index, cut.text, tokens=self._take_shown(len(cut.text)))
        self.finish = "stop"
        tokens = [] if self._shown is None else self._shown.take_cut(len(cut.text))
        return Piece(self.index, cut.text, tokens=tokens)

    def _push_shown(self, token: int, num_chars: int) -> None:
        if self._shown is not None:
            own, best = self._scores(token, self._live.state.records[self.num_out - 1])
            within = self._detokenizer.is_within_character
            self._shown.push(own, best, num_chars, ends_within=within)

    def _take_shown(self, num_chars: int) -> list[ShownToken]:
        return [] if self._shown is None else self._shown.take(num_chars)

    def _scores(self, token: int, record: bytes) -> tuple[TokenScore, list[TokenScore]]:
        """
        Raises:
            InternalFault: there is no record, though it was asked for.
        """
        try:
            found = unpack_logprobs(record)
        except InvalidRequest as error:
            raise InternalFault(reason=f"a worker gave no log-probability: {error}") from error
        own = TokenScore(token, self._tokenizer.spelling(token), found.logprob, found.rank)
        ranked = enumerate(found.best, start=1)
        return own, [TokenScore(one, self._tokenizer.spelling(one), lp, rank) for rank, (one, lp) in ranked]

    def _measure(self, num_new: int) -> None:
        now_s = time.monotonic()
        if not self._first_s:
            self._first_s = now_s
            self._metrics.ttft_s.observe(now_s - self._arrived_s)
            self._account.note_first(now_s - self._arrived_s, num_new, self.num_cached)
        else:
            gap_s = (now_s - self._last_s) / num_new
            for _ in range(num_new):
                self._metrics.itl_s.observe(gap_s)
            self._account.note_next(gap_s, num_new)
        self._last_s = now_s
        self._metrics.tokens_out.inc(num_new)
