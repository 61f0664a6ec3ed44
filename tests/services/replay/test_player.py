"""The player against servers that say what a test wants: times, failures, whatever the cut of an answer."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from proto.errors import InternalFault, InvalidSetting, KvmeshError, NoResponder
from services.replay.completion import CompletionReader
from services.replay.http_call import Server, parse_url
from services.replay.player import OVER_LIMIT, Pace, Player
from services.replay.prompts import PromptMaker
from services.replay.reading import Reading
from services.replay.served_model import ServedModel, find_model
from services.replay.trace import TraceRequest
from services.servers import reserve_port
from tests.services.replay.canned_server import CHUNKED, canned_server, chunk, event, text, whole

PROMPTS = PromptMaker(500, seed=1)
ONE = [TraceRequest(0, 600, 3, (1, 2))]
LAST = b"0\r\n\r\n"
CLOCK_S = 0.002  # a timer of the loop may come this much early: it counts in milliseconds
USAGE = event(
    choices=[],
    usage={
        "prompt_tokens": 600,
        "completion_tokens": 3,
        "total_tokens": 603,
        "prompt_tokens_details": {"cached_tokens": 512},
    },
)
FACTS = {"choices": [{"index": 0, "worker": "w7", "prefill": "remote"}]}
ANSWER = (
    text("a")
    + text("b")
    + event(choices=[{"index": 0, "text": "c", "finish_reason": "length"}], kvmesh=FACTS)
    + USAGE
    + b"data: [DONE]\n\n"
)


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await body()

    uvloop.run(bounded())


async def play(server: Server, trace: list[TraceRequest], pace: Pace) -> list[Reading]:
    return await Player(server, "tiny", PROMPTS, pace).play(trace)


def test_a_request_asks_for_what_the_trace_says() -> None:
    async def body() -> None:
        async with canned_server(CHUNKED, chunk(ANSWER), LAST) as (server, canned):
            await play(server, ONE, Pace())
        assert canned.bodies == [
            {
                "model": "tiny",
                "prompt": PROMPTS.tokens(ONE[0]),
                "max_tokens": 3,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ]
        assert canned.requests[0].startswith(b"POST /v1/completions HTTP/1.1\r\n")

    run(body)


def test_an_answer_is_read_whole() -> None:
    async def body() -> None:
        async with canned_server(CHUNKED, chunk(ANSWER), LAST) as (server, _):
            [reading] = await play(server, ONE, Pace())
        assert (reading.error, reading.finish) == ("", "length")
        assert (reading.num_prompt, reading.num_out, reading.num_cached) == (600, 3, 512)
        assert (reading.worker, reading.prefill) == ("w7", "remote")
        assert len(reading.gaps_s) == 2
        assert reading.due_s <= reading.sent_s + CLOCK_S
        assert reading.sent_s < reading.first_s <= reading.last_s <= reading.ended_s

    run(body)


@settings(max_examples=60)
@given(st.lists(st.integers(0, len(ANSWER)), max_size=12))
def test_however_an_answer_is_cut_it_is_read_alike(cuts: list[int]) -> None:
    async def body() -> None:
        reading = Reading(due_s=0.0)
        reader = CompletionReader(reading)
        for begin, end in itertools.pairwise([0, *sorted(cuts), len(ANSWER)]):
            reader.on_body(200, ANSWER[begin:end])
        reader.end()
        assert (reading.error, reading.finish, reading.worker) == ("", "length", "w7")
        assert (reading.num_out, reading.num_cached, len(reading.gaps_s)) == (3, 512, 2)

    asyncio.run(body())


def test_an_answer_of_another_server_with_other_line_ends_and_no_extension_is_read_too() -> None:
    plain = text("ab", "stop").replace(b"\n\n", b"\r\n\r\n") + b": a comment\r\n\r\ndata: [DONE]\r\n\r\n"

    async def body() -> None:
        async with canned_server(whole("200 OK", plain)) as (server, _):
            [reading] = await play(server, ONE, Pace())
        assert (reading.error, reading.finish, reading.worker, reading.num_cached) == ("", "stop", "", 0)

    run(body)


def test_an_answer_that_ends_with_its_connection_is_whole_if_it_says_so_itself() -> None:
    head = b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"

    async def body() -> None:
        async with canned_server(head, ANSWER) as (server, _):
            [reading] = await play(server, ONE, Pace())
        async with canned_server(head, text("a")) as (server, _):
            [cut] = await play(server, ONE, Pace())
        assert (reading.error, reading.finish) == ("", "length")
        assert cut.error == "disconnected"

    run(body)


def test_an_answer_without_text_counts_its_end_as_its_first_token() -> None:
    async def body() -> None:
        async with canned_server(whole("200 OK", text("", "length"))) as (server, _):
            [reading] = await play(server, ONE, Pace())
        assert reading.error == ""
        assert reading.sent_s < reading.first_s <= reading.ended_s

    run(body)


NO_WORKER = event(error={"message": "none", "type": "server_error", "code": "no_worker"})


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        ([whole("503 Service Unavailable", NO_WORKER.removeprefix(b"data: "))], "503 no_worker"),
        ([whole("429 Too Many", b'{"error": {"type": "overloaded", "code": null}}')], "429 overloaded"),
        ([whole("502 Bad Gateway", b"<html>")], "502"),
        ([CHUNKED, chunk(text("a")), chunk(NO_WORKER), LAST], "stream no_worker"),
        ([CHUNKED, chunk(text("a"))], "disconnected"),
        ([], "disconnected"),
        ([CHUNKED, chunk(text("a")), LAST], "disconnected"),
        ([b"220 smtp.example\r\n"], "internal"),
        ([CHUNKED, chunk(b"data: {broken\n\n"), LAST], "internal"),
        ([CHUNKED, chunk(b"x" * (2**20 + 1))], "internal"),
    ],
)
def test_a_failed_request_is_told_by_the_type_of_its_error(pieces: list[bytes], error: str) -> None:
    async def body() -> None:
        async with canned_server(*pieces) as (server, _):
            [reading] = await play(server, ONE, Pace())
        assert reading.error == error
        assert reading.ended_s >= reading.sent_s > 0

    run(body)


def test_a_server_that_is_not_there_fails_every_request_and_ends_the_replay() -> None:
    async def body() -> None:
        readings = await play(Server("127.0.0.1", reserve_port()), ONE * 3, Pace())
        assert [reading.error for reading in readings] == ["no_responder"] * 3

    run(body)


def test_late_answers_do_not_slow_what_comes_after_them_and_end_at_their_limit() -> None:
    trace = [TraceRequest(10 * number, 100, 3, (number,)) for number in range(20)]

    async def body() -> None:
        async with canned_server(hangs=True) as (server, canned):
            readings = await play(server, trace, Pace(request_limit_s=1.5))
            assert len(canned.requests) == 20
        assert {reading.error for reading in readings} == {"deadline_exceeded"}
        assert readings[-1].sent_s < readings[0].ended_s  # all were open at once
        assert all(1.4 < reading.ended_s - reading.sent_s < 8 for reading in readings)

    run(body)


@pytest.mark.parametrize("pace", [Pace(speed=4, rate=25), Pace(rate=100), Pace(speed=100)])
def test_requests_are_due_when_the_trace_says_as_much_faster_as_asked_for(pace: Pace) -> None:
    trace = [TraceRequest(at, 10, 3, (1,)) for at in (5000, 5000, 15000, 25000)]

    async def body() -> None:
        async with canned_server(whole("200 OK", ANSWER)) as (server, _):
            readings = await play(server, trace, pace)
        due_s = [reading.due_s - readings[0].due_s for reading in readings]
        assert due_s == pytest.approx([0, 0, 0.1, 0.2], abs=1e-6)
        assert all(reading.sent_s >= reading.due_s - 0.002 for reading in readings)
        assert {reading.error for reading in readings} == {""}

    run(body)


def test_requests_beyond_the_limit_of_open_ones_fail_and_are_counted() -> None:
    trace = [TraceRequest(10 * number, 10, 3, (1,)) for number in range(5)]

    async def body() -> None:
        async with canned_server(hangs=True) as (server, _):
            readings = await play(server, trace, Pace(request_limit_s=2, max_in_flight=2))
        assert [reading.error for reading in readings] == ["deadline_exceeded"] * 2 + [OVER_LIMIT] * 3

    run(body)


def test_a_cancelled_replay_closes_its_connections() -> None:
    async def body() -> None:
        async with canned_server(hangs=True) as (server, canned):
            playing = asyncio.ensure_future(play(server, ONE, Pace()))
            await canned.was_asked.wait()
            playing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await playing
            await canned.was_left.wait()

    run(body)


MODELS = b'{"object": "list", "data": [{"id": "a"}, {"id": "b", "vocab_size": 512}]}'


def test_the_model_is_the_one_asked_for_or_the_first() -> None:
    async def body() -> None:
        async with canned_server(whole("200 OK", MODELS)) as (server, canned):
            assert await find_model(server, "") == ServedModel("a")
            assert await find_model(server, "b") == ServedModel("b", 512)
            with pytest.raises(InvalidSetting, match="serves a, b"):
                await find_model(server, "c")
        assert canned.requests[0].startswith(b"GET /v1/models HTTP/1.1\r\n")

    run(body)


@pytest.mark.parametrize(
    "answer", [whole("404 Not Found", b"no"), whole("200 OK", b"[]"), whole("200 OK", b"<")]
)
def test_a_server_that_lists_no_models_is_told(answer: bytes) -> None:
    async def body() -> None:
        async with canned_server(answer) as (server, _):
            with pytest.raises(InternalFault, match="lists no models"):
                await find_model(server, "")

    run(body)


def test_nobody_at_an_address_is_told_before_anything_is_played() -> None:
    async def body() -> None:
        with pytest.raises(NoResponder):
            await find_model(Server("127.0.0.1", reserve_port()), "")

    run(body)


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("http://127.0.0.1:8000", Server("127.0.0.1", 8000)),
        ("http://host/v1/", Server("host", 80)),
        ("https://host/models/v1", Server("host", 443, is_tls=True, path="/models")),
    ],
)
def test_a_url_is_where_the_api_is_with_or_without_its_version(url: str, server: Server) -> None:
    assert parse_url(url) == server


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000", "ftp://host", "http://", "http://host:port", "http://h/?a=1"]
)
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(KvmeshError, match="--url"):
        parse_url(url)
