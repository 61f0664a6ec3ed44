"""Templating and tokenising off the event loop, in few threads and with a bounded queue before them."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from frontend.text.chat_messages import Chat
from frontend.text.chat_template import RENDER_LIMIT_S, ChatTemplate
from frontend.text.tokenizer import TextTokenizer
from proto.errors import DeadlineExceeded, Overloaded

_T = TypeVar("_T")
_WHAT = "tokenising the prompt"


class TokenizePool:
    """Made by `open_tokenize_pool`. Belongs to one event loop.

    At most `max_waiting` prompts are with the pool at once, running ones included; one whose caller has left
    counts until its thread is done with it.
    """

    def __init__(self, threads: ThreadPoolExecutor, max_waiting: int) -> None:
        self._threads = threads
        self._max_waiting = max_waiting
        self._waiting: set[Future[Any]] = set()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    async def encode(
        self, tokenizer: TextTokenizer, text: str, add_special_tokens: bool, limit_s: float
    ) -> list[int]:
        """The tokens of a bare prompt.

        Cancel: a prompt that no thread has begun is dropped, another one's result is.

        Raises:
            Overloaded: too many prompts are waiting.
            DeadlineExceeded: no tokens after `limit_s`.
            InvalidRequest: no text.
        """
        return await self._run(lambda _: tokenizer.encode(text, add_special_tokens), limit_s)

    async def encode_chat(
        self, template: ChatTemplate, tokenizer: TextTokenizer, chat: Chat, limit_s: float
    ) -> list[int]:
        """The tokens of a chat; as `encode`, and what `ChatTemplate.render` raises."""

        def work(left_s: float) -> list[int]:
            text = template.render(chat, min(left_s, RENDER_LIMIT_S))
            return tokenizer.encode(text, add_special_tokens=False)

        return await self._run(work, limit_s)

    async def _run(self, work: Callable[[float], _T], limit_s: float) -> _T:
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


@asynccontextmanager
async def open_tokenize_pool(num_threads: int, max_waiting: int) -> AsyncIterator[TokenizePool]:
    """A pool whose life is the body. At the end waiting prompts are dropped and running ones waited for."""
    threads = ThreadPoolExecutor(num_threads, thread_name_prefix="tokenize")
    try:
        yield TokenizePool(threads, max_waiting)
    finally:
        await asyncio.to_thread(threads.shutdown, cancel_futures=True)
