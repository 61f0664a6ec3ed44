"""Templating and tokenising, at once what is short, the rest in few threads with a bounded queue before them.

A few hundred tokens take less than handing them to a thread and back does beside others that want the
interpreter. Long prompts have threads of their own: a prompt of 100,000 tokens takes a fifth of a second, and
nobody with a short one waits behind it. Each of these threads has the tokens computed in a process that
yields the cores to all others (`tokenize_process`).
"""

import asyncio
import os
import queue
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec

from frontend.text.chat_messages import Chat
from frontend.text.chat_template import RENDER_LIMIT_S, ChatTemplate
from frontend.text.segments import TokenArray
from frontend.text.tokenize_process import TokenizeProcess
from frontend.text.tokenizer import Compute, TextTokenizer, compute_here
from proto.errors import DeadlineExceeded, InvalidRequest, Overloaded

_T = TypeVar("_T")
_WHAT = "tokenising the prompt"
_MOMENT_S = 0.02
"""What a template may take on the event loop; one that takes longer is rendered in a thread."""
_GROWTH = 4
"""By how much a template may lengthen a chat there."""


class TokenizeLimits(msgspec.Struct, frozen=True):
    """No thread for prompts below `short_chars`, `num_threads` for those below `long_chars`,
    `num_long_threads` for the others, with a process each that keeps `kept_models` tokenizers; at most
    `max_waiting` of each kind are with the pool at once."""

    short_chars: int = 2048
    num_threads: int = 2
    num_long_threads: int = 1
    long_chars: int = 32_768
    max_waiting: int = 256
    kept_models: int = 64


class Lane:
    """Threads and how much may wait for them: running work counts, and work whose caller has left counts
    until its thread is done with it. `compute` has the work's tokens computed. Belongs to one event loop."""

    def __init__(
        self, threads: ThreadPoolExecutor, max_waiting: int, compute: Compute = compute_here
    ) -> None:
        self.compute = compute
        self._threads = threads
        self._max_waiting = max_waiting
        self._waiting: set[Future[Any]] = set()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    async def run(self, work: Callable[[float], _T], limit_s: float) -> _T:
        """`work` with the seconds that it has left.

        Cancel: work that no thread has begun is dropped, other work's result is.

        Raises:
            Overloaded: too much is waiting.
            DeadlineExceeded: no result after `limit_s`.
        """
        if len(self._waiting) >= self._max_waiting:
            raise Overloaded(reason=f"{len(self._waiting)} prompts wait to be tokenised", retry_after_s=1)
        deadline = time.monotonic() + limit_s

        def work_in_time() -> _T:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise DeadlineExceeded(what=_WHAT, limit_s=limit_s)
            return work(left_s)

        future = self._threads.submit(work_in_time)
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.wrap_future(future)
        except TimeoutError as error:
            raise DeadlineExceeded(what=_WHAT, limit_s=limit_s) from error


class TokenizePool:
    """Made by `open_tokenize_pool`. Belongs to one event loop."""

    def __init__(self, medium: Lane, long: Lane, short_chars: int, long_chars: int) -> None:
        self._medium = medium
        self._long = long
        self._short_chars = short_chars
        self._long_chars = long_chars

    async def encode(
        self, tokenizer: TextTokenizer, text: str, add_special_tokens: bool, limit_s: float
    ) -> TokenArray:
        """The tokens of a bare prompt; as `Lane.run`.

        Raises:
            InvalidRequest: no text.
        """
        lane = self._lane(len(text))
        compute = compute_here if lane is None else lane.compute

        def work(left_s: float) -> TokenArray:
            return _encode(tokenizer, text, add_special_tokens, compute, left_s)

        return await _run(lane, work, limit_s)

    async def encode_chat(
        self, template: ChatTemplate, tokenizer: TextTokenizer, chat: Chat, limit_s: float
    ) -> TokenArray:
        """The tokens of a chat; as `encode`, and what `ChatTemplate.render` raises."""

        num_chars = _num_chars(chat.messages) + _num_chars(chat.tools)
        if num_chars < self._short_chars:
            text = _try_render(template, chat, self._short_chars * _GROWTH)
            if text is not None:
                return _encode(tokenizer, text, False, compute_here, limit_s)
        lane = self._lane(num_chars) or self._medium

        def work(left_s: float) -> TokenArray:
            text = template.render(chat, min(left_s, RENDER_LIMIT_S))
            return _encode(tokenizer, text, False, lane.compute, left_s)

        return await lane.run(work, limit_s)

    async def run(self, num_chars: int, work: Callable[[float], _T], limit_s: float) -> _T:
        """`work` beside what takes as long; as `Lane.run`."""
        return await _run(self._lane(num_chars), work, limit_s)

    def _lane(self, num_chars: int) -> Lane | None:
        """None: it is short."""
        if num_chars < self._short_chars:
            return None
        return self._medium if num_chars < self._long_chars else self._long


@asynccontextmanager
async def open_tokenize_pool(limits: TokenizeLimits) -> AsyncIterator[TokenizePool]:
    """A pool whose life is the body, on the loop of the main thread. At the end waiting prompts are dropped
    and running ones waited for."""
    # else tokenizers has threads of its own for all of ours to queue at, short prompts behind long ones
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    medium = ThreadPoolExecutor(limits.num_threads, "tokenize")
    long = ThreadPoolExecutor(limits.num_long_threads, "tokenize-long")
    processes = [TokenizeProcess(limits.kept_models) for _ in range(limits.num_long_threads)]
    try:
        for process in processes:
            process.start()
        lanes = (
            Lane(medium, limits.max_waiting),
            Lane(long, limits.max_waiting, _compute_in(processes)),
        )
        yield TokenizePool(*lanes, limits.short_chars, limits.long_chars)
    finally:
        for process in processes:
            process.kill()
        for threads in (medium, long):
            await asyncio.to_thread(threads.shutdown, cancel_futures=True)
        for process in processes:
            process.end()


def _compute_in(processes: Sequence[TokenizeProcess]) -> Compute:
    """For no more threads than there are processes."""
    free: queue.SimpleQueue[TokenizeProcess] = queue.SimpleQueue()
    for process in processes:
        free.put(process)

    def compute(
        tokenizer: TextTokenizer, texts: list[str], add_special_tokens: bool, limit_s: float
    ) -> list[TokenArray]:
        process = free.get_nowait()
        try:
            return process.encode(tokenizer, texts, add_special_tokens, limit_s)
        finally:
            free.put(process)

    return compute


def _encode(
    tokenizer: TextTokenizer, text: str, add_special_tokens: bool, compute: Compute, limit_s: float
) -> TokenArray:
    return tokenizer.encode_array(
        text, add_special_tokens, lambda texts: compute(tokenizer, texts, add_special_tokens, limit_s)
    )


async def _run(lane: Lane | None, work: Callable[[float], _T], limit_s: float) -> _T:
    return work(limit_s) if lane is None else await lane.run(work, limit_s)


def _try_render(template: ChatTemplate, chat: Chat, max_chars: int) -> str | None:
    """None: it is not the work of a moment, or it fails, as a thread with more time finds out again."""
    try:
        return template.render(chat, _MOMENT_S, max_chars)
    except (DeadlineExceeded, InvalidRequest):
        return None


def _num_chars(value: object) -> int:
    """Of all texts in `value`, as decoded from JSON."""
    num_chars, rest = 0, [value]
    while rest:
        match rest.pop():
            case str(text):
                num_chars += len(text)
            case Mapping() as mapping:
                rest += mapping.values()
            case [*items]:
                rest += items
    return num_chars
