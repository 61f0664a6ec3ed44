import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from frontend.text.chat_messages import Chat
from frontend.text.chat_template import compile_chat_template
from frontend.text.tokenize_pool import TokenizePool, open_tokenize_pool
from frontend.text.tokenizer import load_tokenizer
from proto.errors import DeadlineExceeded, InvalidRequest, Overloaded
from tests.frontend.text.tokenizers import byte_level, saved

_TOKENIZER = load_tokenizer(saved(byte_level()))
_TEMPLATE = compile_chat_template("{{ messages[0].content }}<|start|>", {})
_SLOW = compile_chat_template(
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", {}
)
_CHAT = Chat([{"role": "user", "content": "the quick brown fox"}])


def test_prompts_and_chats_become_tokens() -> None:
    async def body() -> None:
        async with open_tokenize_pool(num_threads=2, max_waiting=4) as pool:
            bare = await pool.encode(_TOKENIZER, "the dog", True, limit_s=5)
            chat = await pool.encode_chat(_TEMPLATE, _TOKENIZER, _CHAT, limit_s=5)
        assert bare == byte_level().encode("the dog").ids
        assert chat == byte_level().encode("the quick brown fox<|start|>").ids

    asyncio.run(body())


def test_the_event_loop_runs_on_while_a_long_prompt_is_tokenised() -> None:
    async def body() -> None:
        async with open_tokenize_pool(num_threads=1, max_waiting=1) as pool:
            turns = 0
            work = asyncio.ensure_future(
                pool.encode(_TOKENIZER, "the lazy dog " * 100_000, False, limit_s=60)
            )
            while not work.done():
                turns += 1
                await asyncio.wait([work], timeout=0.001)
            assert len(await work) > 100_000
        assert turns > 10

    asyncio.run(body())


def test_a_full_pool_refuses_at_once_and_takes_again_when_it_is_empty() -> None:
    async def body() -> None:
        async with open_tokenize_pool(num_threads=1, max_waiting=2) as pool:
            slow = [
                asyncio.ensure_future(pool.encode_chat(_SLOW, _TOKENIZER, _CHAT, limit_s=0.3))
                for _ in range(2)
            ]
            await asyncio.wait(slow, timeout=0)
            with pytest.raises(Overloaded):
                await pool.encode(_TOKENIZER, "a", False, limit_s=5)
            ended = await asyncio.gather(*slow, return_exceptions=True)
            assert [type(each) for each in ended] == [DeadlineExceeded, DeadlineExceeded]
            assert await pool.encode(_TOKENIZER, "a", False, limit_s=5)

    asyncio.run(body())


def test_a_caller_waits_no_longer_than_its_deadline() -> None:
    async def body() -> None:
        release = threading.Event()
        with ThreadPoolExecutor(1) as threads:
            threads.submit(release.wait, 10)
            pool = TokenizePool(threads, max_waiting=2)
            with pytest.raises(DeadlineExceeded):
                await pool.encode(_TOKENIZER, "a", False, limit_s=0.02)
            assert pool.num_waiting == 0
            release.set()

    asyncio.run(body())


def test_a_caller_that_leaves_takes_its_waiting_prompt_along() -> None:
    async def body() -> None:
        release = threading.Event()
        with ThreadPoolExecutor(1) as threads:
            threads.submit(release.wait, 10)
            pool = TokenizePool(threads, max_waiting=2)
            work = asyncio.ensure_future(pool.encode(_TOKENIZER, "a", False, limit_s=10))
            await asyncio.wait([work], timeout=0)
            assert pool.num_waiting == 1
            work.cancel()
            await asyncio.wait([work])
            assert work.cancelled()
            assert pool.num_waiting == 0
            release.set()

    asyncio.run(body())


def test_the_templates_refusal_reaches_the_caller() -> None:
    refusing = compile_chat_template("{{ raise_exception('no system prompt') }}", {})

    async def body() -> None:
        async with open_tokenize_pool(num_threads=1, max_waiting=1) as pool:
            with pytest.raises(InvalidRequest, match="no system prompt"):
                await pool.encode_chat(refusing, _TOKENIZER, _CHAT, limit_s=5)

    asyncio.run(body())
