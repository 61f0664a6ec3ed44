"""What dies, and how little the client sees of it; and what the client's own leaving does."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import uvloop

from proto.errors import NoWorker
from services.servers import Server
from tests.frontend.conftest import MODEL, Serve, Served, events, text_of
from tests.frontend.scripted_mesh import Script, ScriptedWorker

ANSWER = [*range(100, 160), 2]
STREAM = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "stream": True}
TOLD = {"logprobs": True, "top_logprobs": 1}


def content(body: str) -> str:
    return text_of(events(body)[:-1])


def logprobs(body: str) -> list[Any]:
    told = [event["choices"][0]["logprobs"] for event in events(body)[:-1]]
    return [token for part in told if part for token in part["content"]]


async def begin(served: Served, **fields: Any) -> asyncio.Task[str]:
    """A streamed chat; returns once its first token has come to the client."""
    started = asyncio.Event()

    async def read() -> str:
        body = ""
        asked = {**STREAM, **fields}
        async with served.http.stream("POST", "/v1/chat/completions", json=asked) as reply:
            async for chunk in reply.aiter_text():
                body += chunk
                started.set()
        return body

    task = asyncio.ensure_future(read())
    async with asyncio.timeout(5):
        await started.wait()
    return task


def test_frames_that_the_bus_loses_are_sent_again(serve: Serve) -> None:
    async def body() -> None:
        async with serve({"w0": Script(lambda _: ANSWER)}) as served:
            expected = content((await served.chat(stream=True)).text)
            worker = served.mesh.workers["w0"]
            worker.script.drop = {3, 4, 20}
            text = content((await served.chat(stream=True)).text)
            assert worker.resends
            worker.script.drop = {len(ANSWER) - 1}
            without_end = content((await served.chat(stream=True)).text)
        assert text == without_end == expected
        assert len(served.mesh.routed) == 3

    uvloop.run(body())


def test_a_lost_worker_shows_nowhere_in_the_text_and_what_is_told_of_it(serve: Serve) -> None:
    async def body() -> None:
        scripts = {name: Script(lambda _: ANSWER, step_s=0.015) for name in ("w0", "w1")}
        async with serve(scripts, lost_after_s=1.0) as served:
            reading = await begin(served, **TOLD)
            served.mesh.kill("w0")
            moved = await reading
            alone = (await served.chat(stream=True, **TOLD)).text
        assert content(moved) == content(alone)
        assert logprobs(moved) == logprobs(alone)
        assert len(logprobs(alone)) == len(ANSWER) - 1
        again = served.mesh.routed[1]
        assert again.attempt == 1
        assert again.exclude == ["w0"]
        assert again.offset == len(again.generated) // 4 > 0
        assert again.sampling.seed == served.mesh.routed[0].sampling.seed

    uvloop.run(body())


def test_a_worker_that_never_accepts_is_left_out(serve: Serve) -> None:
    async def body() -> None:
        scripts = {"w0": Script(lambda _: ANSWER, accepts=False), "w1": Script(lambda _: ANSWER)}
        async with serve(scripts, accept_limit_s=0.3) as served:
            reply = await served.chat()
            worker = served.mesh.workers["w0"]
            await worker.wait_until(lambda: len(worker.cancelled) == 1)
        assert reply.status_code == 200
        assert served.mesh.routed[1].exclude == ["w0"]

    uvloop.run(body())


def test_a_client_that_leaves_is_cancelled_on_the_worker_streamed_or_not(serve: Serve) -> None:
    async def leave(served: Served, worker: ScriptedWorker, *, streams: bool) -> None:
        num_before = len(worker.requests)
        message = {**STREAM, "stream": streams}
        task = asyncio.ensure_future(served.http.post("/v1/chat/completions", json=message))
        await worker.wait_until(lambda: len(worker.requests) > num_before)
        task.cancel()
        request = worker.requests[-1]
        await worker.wait_until(lambda: (request.request, 0) in worker.cancelled, limit_s=1.0)

    async def body() -> None:
        async with serve({"w0": Script(lambda _: ANSWER, step_s=0.05)}) as served:
            worker = served.mesh.workers["w0"]
            await leave(served, worker, streams=True)
            await leave(served, worker, streams=False)

    uvloop.run(body())


def test_a_client_that_leaves_a_queue_is_cancelled_at_the_router(serve: Serve) -> None:
    async def body() -> None:
        async with serve({"w0": Script(lambda _: ANSWER)}) as served:
            served.mesh.queues = True
            task = asyncio.ensure_future(served.chat())
            await served.mesh.wait_until(lambda: len(served.mesh.routed) == 1)
            await asyncio.wait({task}, timeout=0.2)
            task.cancel()
            await served.mesh.wait_until(lambda: len(served.mesh.cancelled_queued) == 1)
        assert served.mesh.cancelled_queued == [(served.mesh.routed[0].request, 0)]

    uvloop.run(body())


def test_ends_are_acknowledged(serve: Serve) -> None:
    async def body() -> None:
        async with serve({"w0": Script(lambda _: ANSWER)}) as served:
            await served.chat()
            worker = served.mesh.workers["w0"]
            await worker.wait_until(lambda: len(worker.acknowledged) > 0)
        assert set(worker.acknowledged) == {(served.mesh.routed[0].request, 0)}
        assert not worker.cancelled

    uvloop.run(body())


def test_a_draining_frontend_lets_its_streams_end_and_sends_new_work_elsewhere(serve: Serve) -> None:
    async def body() -> None:
        async with serve({"w0": Script(lambda _: ANSWER, step_s=0.015)}) as served:
            expected = content((await served.chat(stream=True)).text)
            reading = await begin(served)
            served.shutdown.set()
            async with asyncio.timeout(2):
                while (refused := await served.chat(max_tokens=1)).status_code == 200:
                    pass
            text = content(await reading)
            async with asyncio.timeout(5):
                await served.life
        assert refused.status_code == 503
        assert refused.headers["connection"] == "close"
        assert json.loads(refused.text)["error"]["code"] == "go_elsewhere"
        assert text == expected

    uvloop.run(body())


def test_a_restart_of_nats_costs_no_token(serve: Serve, make_nats: Callable[..., Server]) -> None:
    async def body() -> None:
        nats = make_nats()
        async with serve({"w0": Script(lambda _: ANSWER, step_s=0.015)}, nats) as served:
            expected = content((await served.chat(stream=True)).text)
            reading = await begin(served)
            nats.kill()
            nats.restart()
            text = content(await reading)
        assert text == expected
        assert len(served.mesh.routed) == 2

    uvloop.run(body())


async def scrape(served: Served) -> str:
    return (await served.http.get(f"{served.admin_url}/metrics")).text


def test_every_gauge_is_back_after_success_failure_and_leaving(serve: Serve) -> None:
    async def body() -> None:
        async with serve({"w0": Script(lambda _: ANSWER, step_s=0.01)}) as served:
            await served.chat()
            await served.chat(n=0)
            leaving = await begin(served)
            leaving.cancel()
            served.mesh.refusal = NoWorker(model=MODEL)
            await served.chat()
            async with asyncio.timeout(5):
                while 'reason="cancelled"' not in (scraped := await scrape(served)):
                    pass
            ready = await served.http.get(f"{served.admin_url}/readyz")
        lines = scraped.splitlines()
        assert "kvmesh_requests_running 0.0" in lines
        for reason in ("stop", "cancelled", "no_worker"):
            assert f'kvmesh_requests_total{{reason="{reason}"}} 1.0' in lines
        assert ready.status_code == 200

    uvloop.run(body())
