import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from frontend.text.chat_messages import Chat
from frontend.text.chat_template import compile_chat_template
from frontend.text.tokenize_pool import Lane, TokenizeLimits, TokenizePool, open_tokenize_pool
from frontend.text.tokenizer import load_tokenizer
from proto.errors import DeadlineExceeded, InvalidRequest, Overloaded
from tests.frontend.text.tokenizers import byte_level, saved

_TOKENIZER = load_tokenizer(saved(byte_level()))
_TEMPLATE = compile_chat_template("{{ messages[0].content }}<|start|>", {})
_SLOW = compile_chat_template(
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", {}
)
_WORDY = compile_chat_template("{% for a in range(999) %}a{% endfor %}", {})
_CHAT = Chat([{"role": "user", "content": "the quick brown fox"}])


def test_prompts_and_chats_become_tokens() -> None:
    async def body() -> None:
        async with open_tokenize_pool(TokenizeLimits()) as pool:
            bare = await pool.encode(_TOKENIZER, "the dog", True, limit_s=5)
            chat = await pool.encode_chat(_TEMPLATE, _TOKENIZER, _CHAT, limit_s=5)
        assert list(bare) == byte_level().encode("the dog").ids
        assert list(chat) == byte_level().encode("the quick brown fox<|start|>").ids

    asyncio.run(body())


def test_a_short_prompt_has_its_tokens_at_once_and_a_slow_template_takes_a_thread() -> None:
    async def body() -> None:
        release = threading.Event()
        with ThreadPoolExecutor(1) as busy:
            busy.submit(release.wait, 30)
            lane = Lane(busy, max_waiting=2)
            pool = TokenizePool(lane, lane, short_chars=100, long_chars=1000)
            assert await pool.encode(_TOKENIZER, "the dog", True, limit_s=10)
            assert await pool.encode_chat(_TEMPLATE, _TOKENIZER, _CHAT, limit_s=10)
            for template in (_SLOW, _WORDY):
                with pytest.raises(DeadlineExceeded):
                    await pool.encode_chat(template, _TOKENIZER, _CHAT, limit_s=0.02)
            release.set()

    asyncio.run(body())


def test_the_event_loop_runs_on_while_a_long_prompt_is_tokenised() -> None:
    async def body() -> None:
        async with open_tokenize_pool(TokenizeLimits(num_threads=1, max_waiting=1)) as pool:
            turns = 0
            work = asyncio.ensure_future(pool.encode(_TOKENIZER, "the lazy dog " * 20_000, False, limit_s=60))
            while not work.done():
                turns += 1
                await asyncio.wait([work], timeout=0.001)
            assert len(await work) > 20_000
        assert turns > 10

    asyncio.run(body())


def test_a_full_pool_refuses_at_once_and_takes_again_when_it_is_empty() -> None:
    async def body() -> None:
        async with open_tokenize_pool(TokenizeLimits(short_chars=0, num_threads=1, max_waiting=2)) as pool:
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


@pytest.mark.parametrize("kind", ["bare", "chat", "parts"])
def test_a_short_prompt_waits_behind_no_long_one(kind: str) -> None:
    text = "a" * 100
    chats = {
        "chat": Chat([{"role": "user", "content": text}]),
        "parts": Chat([{"role": "user", "content": [{"type": "text", "text": text}]}]),
    }

    async def body() -> None:
        release = threading.Event()
        with ThreadPoolExecutor(1) as free, ThreadPoolExecutor(1) as busy:
            busy.submit(release.wait, 10)
            pool = TokenizePool(Lane(free, 4), Lane(busy, 4), short_chars=0, long_chars=100)
            encode = (
                pool.encode(_TOKENIZER, text, False, limit_s=10)
                if kind == "bare"
                else pool.encode_chat(_TEMPLATE, _TOKENIZER, chats[kind], limit_s=10)
            )
            long = asyncio.ensure_future(encode)
            assert await pool.encode(_TOKENIZER, "the dog", False, limit_s=10)
            assert await pool.encode_chat(_TEMPLATE, _TOKENIZER, _CHAT, limit_s=10)
            assert not long.done()
            release.set()
            assert await long

    asyncio.run(body())


def test_a_caller_waits_no_longer_than_its_deadline() -> None:
    async def body() -> None:
        release = threading.Event()
        with ThreadPoolExecutor(1) as threads:
            threads.submit(release.wait, 10)
            lane = Lane(threads, max_waiting=2)
            with pytest.raises(DeadlineExceeded):
                await lane.run(lambda _: "a", limit_s=0.02)
            assert lane.num_waiting == 0
            release.set()

    asyncio.run(body())


def test_a_caller_that_leaves_takes_its_waiting_prompt_along() -> None:
    async def body() -> None:
        release = threading.Event()
        with ThreadPoolExecutor(1) as threads:
            threads.submit(release.wait, 10)
            lane = Lane(threads, max_waiting=2)
            work = asyncio.ensure_future(lane.run(lambda _: "a", limit_s=10))
            await asyncio.wait([work], timeout=0)
            assert lane.num_waiting == 1
            work.cancel()
            await asyncio.wait([work])
            assert work.cancelled()
            assert lane.num_waiting == 0
            release.set()

    asyncio.run(body())


def test_the_templates_refusal_reaches_the_caller() -> None:
    refusing = compile_chat_template("{{ raise_exception('no system prompt') }}", {})

    async def body() -> None:
        async with open_tokenize_pool(TokenizeLimits(num_threads=1, max_waiting=1)) as pool:
            with pytest.raises(InvalidRequest, match="no system prompt"):
                await pool.encode_chat(refusing, _TOKENIZER, _CHAT, limit_s=5)

    asyncio.run(body())
