import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from frontend.text.tokenize_pool import TokenizeLimits, open_tokenize_pool
from frontend.text.tokenize_process import TokenizeProcess
from frontend.text.tokenizer import TextTokenizer, load_tokenizer
from proto.errors import DeadlineExceeded, InvalidRequest, Overloaded
from services.child import suspend
from tests.frontend.text.tokenizers import byte_level, saved, sentence_piece

_LIMIT_S = 60.0
_BYTE_LEVEL = load_tokenizer(saved(byte_level()))
_SENTENCE_PIECE = load_tokenizer(saved(sentence_piece()))
_TEXT = "the dog and the fox"
_LIMITS = TokenizeLimits(short_chars=1, long_chars=1, max_waiting=2)
"""All prompts are long ones."""


async def _tokens(
    process: TokenizeProcess,
    tokenizer: TextTokenizer = _BYTE_LEVEL,
    text: str = _TEXT,
    limit_s: float = _LIMIT_S,
) -> list[int]:
    (tokens,) = await asyncio.to_thread(process.encode, tokenizer, [text], False, limit_s)
    return list(tokens)


def _run(body: Callable[[TokenizeProcess], Awaitable[None]], max_kept: int = 4) -> None:
    async def live() -> None:
        process = TokenizeProcess(max_kept)
        process.start()
        try:
            await body(process)
        finally:
            process.end()

    asyncio.run(live())


def test_its_tokens_are_those_of_the_tokenizer() -> None:
    async def body(process: TokenizeProcess) -> None:
        pid = process.pid
        texts = ["the dog", "", "안녕하세요 👩‍👩‍👧‍👦"]
        for tokenizer in (_BYTE_LEVEL, _SENTENCE_PIECE):
            for add_special_tokens in (True, False):
                there = await asyncio.to_thread(
                    process.encode, tokenizer, texts, add_special_tokens, _LIMIT_S
                )
                assert there == tokenizer.encode_batch(texts, add_special_tokens)
        assert process.pid == pid

    _run(body)


def test_a_tokenizer_that_it_no_longer_keeps_is_sent_again() -> None:
    async def body(process: TokenizeProcess) -> None:
        pid = process.pid
        for tokenizer in (_BYTE_LEVEL, _SENTENCE_PIECE, _BYTE_LEVEL):
            assert await _tokens(process, tokenizer) == tokenizer.encode(_TEXT, False)
        assert process.pid == pid

    _run(body, max_kept=1)


def test_it_yields_to_others() -> None:
    async def body(process: TokenizeProcess) -> None:
        await _tokens(process)
        assert process.pid is not None
        assert psutil.Process(process.pid).nice() == min(19, psutil.Process().nice() + 10)
        assert os.getsid(process.pid) == os.getsid(0)  # within which alone the kernel may heed it

    _run(body)


def test_a_prompt_whose_process_is_killed_has_its_tokens_and_the_next_one_another_process() -> None:
    async def body(process: TokenizeProcess) -> None:
        pid = process.pid
        assert pid is not None
        await _tokens(process)
        suspend(pid)
        asked = asyncio.ensure_future(_tokens(process))
        await asyncio.wait([asked], timeout=0.05)
        assert not asked.done()
        os.kill(pid, signal.SIGKILL)
        assert await asked == _BYTE_LEVEL.encode(_TEXT, False)
        assert not psutil.pid_exists(pid)
        other = process.pid
        assert other not in (None, pid)
        assert await _tokens(process) == _BYTE_LEVEL.encode(_TEXT, False)
        assert process.pid == other

    _run(body)


def test_one_that_stands_still_is_killed_at_the_deadline_even_while_it_is_sent_a_prompt() -> None:
    async def body(process: TokenizeProcess) -> None:
        for text in (_TEXT, _TEXT * 50_000):  # more than a pipe holds
            await _tokens(process)
            pid = process.pid
            assert pid is not None
            suspend(pid)
            with pytest.raises(DeadlineExceeded):
                await _tokens(process, text=text, limit_s=0.1)
            assert process.pid not in (None, pid)

    _run(body)


def test_what_fails_there_fails_as_it_would_here() -> None:
    async def body(process: TokenizeProcess) -> None:
        with pytest.raises(UnicodeEncodeError):
            await _tokens(process, text="a\ud800b")
        assert await _tokens(process) == _BYTE_LEVEL.encode(_TEXT, False)

    _run(body)


def test_without_a_process_tokens_are_computed_in_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")

    async def body(process: TokenizeProcess) -> None:
        assert process.pid is None
        assert await _tokens(process) == _BYTE_LEVEL.encode(_TEXT, False)

    _run(body)


def test_prompts_wait_for_it_only_so_many() -> None:
    async def body() -> None:
        known = set(psutil.Process().children())
        async with open_tokenize_pool(_LIMITS) as pool:
            (child,) = set(psutil.Process().children()) - known
            suspend(child.pid)
            asked = [
                asyncio.ensure_future(pool.encode(_BYTE_LEVEL, _TEXT, False, _LIMIT_S)) for _ in range(2)
            ]
            await asyncio.wait(asked, timeout=0)
            with pytest.raises(Overloaded):
                await pool.encode(_BYTE_LEVEL, _TEXT, False, _LIMIT_S)
            child.resume()
            for tokens in await asyncio.gather(*asked):
                assert list(tokens) == _BYTE_LEVEL.encode(_TEXT, False)
            with pytest.raises(InvalidRequest, match="Unicode"):
                await pool.encode(_BYTE_LEVEL, "a\ud800b", False, _LIMIT_S)
        assert not psutil.pid_exists(child.pid)

    asyncio.run(body())


def test_the_end_of_the_pool_ends_it_and_the_prompt_that_is_with_it_has_its_tokens() -> None:
    async def body() -> None:
        known = set(psutil.Process().children())
        async with open_tokenize_pool(_LIMITS) as pool:
            (child,) = set(psutil.Process().children()) - known
            suspend(child.pid)
            asked = asyncio.ensure_future(pool.encode(_BYTE_LEVEL, _TEXT, False, _LIMIT_S))
            await asyncio.wait([asked], timeout=0)
        assert list(await asked) == _BYTE_LEVEL.encode(_TEXT, False)
        assert not psutil.pid_exists(child.pid)

    asyncio.run(body())


_OWNER = """
import asyncio
from frontend.text.tokenize_process import TokenizeProcess
async def live():
    process = TokenizeProcess(1)
    process.start()
    print(process.pid, flush=True)
    await asyncio.Event().wait()
asyncio.run(live())
"""


def test_it_dies_with_its_frontend_however_that_dies() -> None:
    root = Path(__file__).parents[3]
    with subprocess.Popen([sys.executable, "-c", _OWNER], stdout=subprocess.PIPE, cwd=root) as owner:
        assert owner.stdout is not None
        child = psutil.Process(int(owner.stdout.readline()))
        owner.kill()
    until_s = time.monotonic() + _LIMIT_S
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until_s
