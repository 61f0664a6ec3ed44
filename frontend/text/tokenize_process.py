"""A process that tokenises long prompts, so that whoever answers the others never waits for it.

A thread that tokenises frees the interpreter, but must have it again when it is done; one that yields the
cores to all others may then hold it for as long as they are busy. A process holds up nobody.

```
 frontend begins ──► started, yielding ──► idle ──asked──► tokenising ──answered──► idle
                          ▲                  │                 │
              by the loop │                  └──── killed ─────┤ by others, or at the prompt's deadline
                          │                                    ▼
                          └──────────────────────────────── gone: that prompt is tokenised in the thread that
 frontend ends ──► killed, reaped                                 asked, unless its time is over
```
It is bound to the main thread of the frontend: should that be killed, the kernel kills it, too. One prompt at
a time is with it; how many wait, their lane bounds.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from frontend.text.segments import TokenArray
from frontend.text.tokenize_child import Question, Reply, read_tokens
from frontend.text.tokenizer import TextTokenizer
from proto.errors import DeadlineExceeded
from services.asked_child import AskedChild, start_asked_child

log = logging.getLogger(__name__)

_MODULE = "frontend.text.tokenize_child"
_NICENESS = 10
"""A tenth of anybody's share: who wakes has the core at once, and on a full machine long prompts go on."""
_replies = msgspec.msgpack.Decoder(Reply)


class TokenizeProcess:
    """Belongs to the event loop of the main thread; `encode` is for one other thread at a time.

    It keeps at most `max_kept` tokenizers, which it is sent when they are needed.
    """

    def __init__(self, max_kept: int) -> None:
        self._max_kept = max_kept
        self._loop: asyncio.AbstractEventLoop | None = None
        self._child: AskedChild | None = None

    @property
    def pid(self) -> int | None:
        """None while there is none."""
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        """Takes a millisecond; where no process can be had, `encode` does without."""
        self._loop = asyncio.get_running_loop()
        try:
            self._child = start_asked_child(_MODULE, [str(self._max_kept)], niceness=_NICENESS)
        except OSError as error:
            log.warning("no process to tokenise in can be started: %s", error)

    def kill(self) -> None:
        """A prompt that is with it goes on in its thread; no other process is started."""
        self._loop = None
        child = self._child
        if child is not None:
            child.kill()

    def end(self) -> None:
        """Once no thread is in `encode` any more. Blocks for a moment."""
        self._loop = None
        self._reap()

    def encode(
        self, tokenizer: TextTokenizer, texts: list[str], add_special_tokens: bool, limit_s: float
    ) -> list[TokenArray]:
        """As `TextTokenizer.encode_batch`, there; here, where that process is gone.

        Raises:
            DeadlineExceeded: no tokens within `limit_s`. The process is killed, and another one started.
        """
        until_s = time.monotonic() + limit_s
        child = self._child
        tokens = None if child is None else _try_encode(child, tokenizer, texts, add_special_tokens, limit_s)
        if tokens is not None:
            return tokens
        self._reap()
        self._ask_restart()
        if time.monotonic() >= until_s:
            raise DeadlineExceeded(what="tokenising the prompt", limit_s=limit_s)
        return tokenizer.encode_batch(texts, add_special_tokens)

    def _ask_restart(self) -> None:
        loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(self._restart)

    def _restart(self) -> None:
        """Unless that has been done, or the end has come."""
        if self._loop is not None and self._child is None:
            log.warning("the process that tokenises is gone; another one is started")
            self.start()

    def _reap(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end()


def _try_encode(
    child: AskedChild, tokenizer: TextTokenizer, texts: list[str], add_special_tokens: bool, limit_s: float
) -> list[TokenArray] | None:
    """None: the child has ended, of itself or since the time was over."""
    question = Question(tokenizer.digest, add_special_tokens, texts)
    with _killed_after(child, limit_s):
        reply = _try_ask(child, question)
        if reply is not None and reply.tokens is None:
            reply = _try_ask(child, msgspec.structs.replace(question, source=tokenizer.source))
    return None if reply is None or reply.tokens is None else [read_tokens(data) for data in reply.tokens]


def _try_ask(child: AskedChild, question: Question) -> Reply | None:
    answer = child.try_ask(msgspec.msgpack.encode(question))
    return None if answer is None else _replies.decode(answer)


@contextmanager
def _killed_after(child: AskedChild, limit_s: float) -> Iterator[None]:
    """A child that stands still neither takes what it is sent nor says a word."""
    timer = threading.Timer(limit_s, child.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
