"""One choice of an answer: a request's tokens become text that stops where it should."""

import time

import msgspec

from frontend.requests.stream_hub import LiveRequest, StreamHub
from frontend.text.detokenizer import Detokenizer
from frontend.text.stop_strings import StopStrings
from frontend.text.tokenizer import TextTokenizer
from frontend.traffic import RequestAccount
from proto.errors import KvmeshError
from proto.requests import FinishReason
from proto.streams import End, Prefilled
from services.metrics import FrontendMetrics


class Piece(msgspec.Struct, frozen=True):
    """Text of one choice, and at its end how it finished."""

    index: int
    text: str
    finish: FinishReason | None = None


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
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopStrings(stops) if stops else None
        self._stop_tokens = stop_tokens
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
        pieces = [Piece(self.index, text) for text in self._take_texts(new) if text]
        if self.finish is None and isinstance(state.outcome, End):
            if rest := self._end_text():
                pieces.append(Piece(self.index, rest))
            self.finish = self.finish or state.outcome.finish
        if self.finish is not None:
            self.close()
            pieces.append(Piece(self.index, "", self.finish))
        return pieces

    def close(self) -> None:
        self._account.end(self.num_cached)
        self._hub.finish(self._live)

    def _take_texts(self, new: list[int]) -> list[str]:
        """The text of each token, one by one: neither events nor counts depend on how frames were cut."""
        texts = []
        for token in new:
            self.num_out += 1
            if token not in self._stop_tokens:
                text = self._detokenizer.push((token,))
                texts.append(text if self._stops is None else self._cut(text))
            if self.finish is not None:
                break
        return texts

    def _end_text(self) -> str:
        rest = self._detokenizer.flush()
        if self._stops is None:
            return rest
        shown = self._cut(rest)
        return shown if self.finish is not None else shown + self._stops.flush()

    def _cut(self, text: str) -> str:
        assert self._stops is not None
        cut = self._stops.push(text)
        if cut.stop is not None:
            self.finish = "stop"
        return cut.text

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
