"""What clients ask of each model and what they feel, counted for this frontend's beats."""

from bisect import bisect_left

from proto.traffic import LATENCY_BOUNDS_S, ModelTraffic

_NUM_BUCKETS = len(LATENCY_BOUNDS_S) + 1


class _Counts:
    """One model's."""

    def __init__(self) -> None:
        self.num_begun = self.num_ended = self.num_waiting = 0
        self.prompt_tokens = self.cached_tokens = self.waiting_tokens = 0
        self.output_tokens = self.answer_tokens = 0
        self.ttft_counts = [0] * _NUM_BUCKETS
        self.itl_counts = [0] * _NUM_BUCKETS


class RequestAccount:
    """One choice of an answer, from its sending to its end."""

    def __init__(self, counts: _Counts, prompt_tokens: int) -> None:
        self._counts = counts
        self._prompt_tokens = prompt_tokens
        self._answer_tokens = self._cached_tokens = 0
        self._is_waiting = self._is_open = True
        counts.num_begun += 1
        counts.prompt_tokens += prompt_tokens
        counts.num_waiting += 1
        counts.waiting_tokens += prompt_tokens

    def note_first(self, ttft_s: float, num_tokens: int, cached_tokens: int) -> None:
        """The first tokens, all that came with the first one."""
        self._wait_no_more()
        self._counts.ttft_counts[bisect_left(LATENCY_BOUNDS_S, ttft_s)] += 1
        self._note_cached(cached_tokens)
        self._note_tokens(num_tokens)

    def note_next(self, gap_s: float, num_tokens: int) -> None:
        """Later tokens, with a gap of `gap_s` before each."""
        self._counts.itl_counts[bisect_left(LATENCY_BOUNDS_S, gap_s)] += num_tokens
        self._note_tokens(num_tokens)

    def end(self, cached_tokens: int) -> None:
        """However it ended; again: nothing. How much was cached may be known only now."""
        self._wait_no_more()
        if self._is_open:
            self._note_cached(cached_tokens)
            self._is_open = False
            self._counts.num_ended += 1
            self._counts.answer_tokens += self._answer_tokens

    def _note_cached(self, cached_tokens: int) -> None:
        self._counts.cached_tokens += cached_tokens - self._cached_tokens
        self._cached_tokens = cached_tokens

    def _note_tokens(self, num_tokens: int) -> None:
        self._counts.output_tokens += num_tokens
        self._answer_tokens += num_tokens

    def _wait_no_more(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self._counts.num_waiting -= 1
            self._counts.waiting_tokens -= self._prompt_tokens


class Traffic:
    """Of all models that were asked for here. Belongs to one event loop."""

    def __init__(self) -> None:
        self._models: dict[str, _Counts] = {}

    def begin(self, model: str, prompt_tokens: int) -> RequestAccount:
        """A choice is on its way. `model` is one that is served, so that they are bounded."""
        return RequestAccount(self._models.setdefault(model, _Counts()), prompt_tokens)

    def report(self) -> list[ModelTraffic]:
        return [_report(model, counts) for model, counts in self._models.items()]


def _report(model: str, counts: _Counts) -> ModelTraffic:
    return ModelTraffic(
        model=model,
        num_begun=counts.num_begun,
        num_ended=counts.num_ended,
        prompt_tokens=counts.prompt_tokens,
        cached_tokens=counts.cached_tokens,
        output_tokens=counts.output_tokens,
        answer_tokens=counts.answer_tokens,
        ttft_counts=_trimmed(counts.ttft_counts),
        itl_counts=_trimmed(counts.itl_counts),
        num_waiting=counts.num_waiting,
        waiting_tokens=counts.waiting_tokens,
    )


def _trimmed(counts: list[int]) -> list[int]:
    """Without the zeros at the end."""
    end = len(counts)
    while end and not counts[end - 1]:
        end -= 1
    return counts[:end]
