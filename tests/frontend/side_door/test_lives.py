"""Who leaves, who dies, and what the other end of the side door sees of it."""

import asyncio
import json
import time
from collections.abc import Callable

import msgspec
import pytest
import uvloop
from kvmesh_client import KvmeshClient, KvmeshError, RequestCancelled, StreamBroken, Unavailable

from frontend.service import serve_frontend
from frontend.settings import FrontendSettings
from proto.errors import NoWorker
from proto.names import new_id
from services.admin import AdminSettings
from services.servers import Server
from services.tasks import open_tasks
from tests.frontend.conftest import MODEL, Serve, find_free_port, text_of
from tests.frontend.scripted_mesh import Script, ScriptedWorker
from tests.frontend.side_door.conftest import ASK, Dial, Dialled, connected, wait_ready

ANSWER = [*range(100, 160), 2]
SLOW = Script(lambda _: ANSWER, step_s=0.2)


async def wait_cancelled(worker: ScriptedWorker) -> None:
    request = worker.requests[-1]
    await worker.wait_until(lambda: (request.request, 0) in worker.cancelled, limit_s=15)


async def wait_begun(worker: ScriptedWorker) -> None:
    await worker.wait_until(lambda: bool(worker.requests), limit_s=15)


def test_leaving_the_iterator_cancels_on_the_worker(dial: Dial) -> None:
    async def body() -> None:
        async with dial({"w0": Script(lambda _: ANSWER, stop_at=3)}) as dialled:
            async for chunk in dialled.client.stream_chat(**ASK):
                assert chunk["object"] == "chat.completion.chunk"
                break
            await wait_cancelled(dialled.served.mesh.workers["w0"])

    uvloop.run(body())


def test_a_cancelled_call_is_cancelled_on_the_worker_before_its_first_word(dial: Dial) -> None:
    async def body() -> None:
        async with dial({"w0": Script(lambda _: ANSWER, stop_at=0)}) as dialled:
            worker = dialled.served.mesh.workers["w0"]
            task = asyncio.ensure_future(dialled.client.chat(**ASK))
            await wait_begun(worker)
            task.cancel()
            await wait_cancelled(worker)

    uvloop.run(body())


def test_a_control_message_cancels_by_request_id_and_says_so_to_both_ends(dial: Dial) -> None:
    async def body() -> None:
        async with (
            dial({"w0": Script(lambda _: ANSWER, stop_at=0)}) as dialled,
            connected(dialled.nats.url) as other,
        ):
            worker = dialled.served.mesh.workers["w0"]
            asking = asyncio.ensure_future(dialled.client.chat(**ASK, request_id="mine-2"))
            await wait_begun(worker)
            client = KvmeshClient(other, dialled.ns)
            assert await client.cancel("mine-2", timeout_s=15)
            assert not await client.cancel("not-mine", timeout_s=0.2)
            await wait_cancelled(worker)
            with pytest.raises(RequestCancelled):
                await asking

    uvloop.run(body())


def test_who_listens_to_a_stream_that_another_cancels_is_told_at_once(dial: Dial) -> None:
    async def body() -> None:
        async with (
            dial({"w0": Script(lambda _: ANSWER, stop_at=3)}) as dialled,
            connected(dialled.nats.url) as other,
        ):
            chunks = dialled.client.stream_chat(**ASK, request_id="mine-3")
            assert await anext(chunks)
            assert await KvmeshClient(other, dialled.ns).cancel("mine-3", timeout_s=15)
            with pytest.raises(RequestCancelled) as caught:
                async for _ in chunks:
                    pass
            assert (caught.value.code, caught.value.retriable) == ("cancelled", False)

    uvloop.run(body())


@pytest.mark.parametrize("streams", [True, False])
def test_a_client_whose_connection_ends_is_cancelled_on_the_worker(dial: Dial, streams: bool) -> None:
    """By the server's word that nobody listens: with the next chunk, or sign of life."""

    async def body() -> None:
        script = SLOW if streams else Script(lambda _: ANSWER, stop_at=0)
        async with dial({"w0": script}, side_door_beat_s=0.3) as dialled:
            worker = dialled.served.mesh.workers["w0"]
            leaving = await connect_raw(dialled)
            asked = json.dumps({**ASK, "stream": streams}).encode()
            await leaving.ask(dialled.subject("chat"), asked)
            await wait_begun(worker)
            leaving.writer.transport.abort()
            await wait_cancelled(worker)

    uvloop.run(body())


class RawClient:
    """NATS by hand: a connection that says nothing when it ends, and may read as slowly as it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, subject: str, payload: bytes) -> None:
        headers = b"NATS/1.0\r\nKvmesh-Beats: 1\r\n\r\n"
        sizes = f"{len(headers)} {len(headers) + len(payload)}"
        head = f"SUB raw.inbox 1\r\nHPUB {subject} raw.inbox {sizes}\r\n".encode()
        self.writer.write(head + headers + payload + b"\r\n")
        await self.writer.drain()


async def connect_raw(dialled: Dialled) -> RawClient:
    reader, writer = await asyncio.open_connection("127.0.0.1", dialled.nats.plan.port, limit=1024)
    writer.write(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nPING\r\n')
    await writer.drain()
    while (await reader.readline()) != b"PONG\r\n":
        pass
    return RawClient(reader, writer)


def test_a_client_that_never_reads_harms_nobody(dial: Dial) -> None:
    """The bytes it owes wait at the server, within the server's bound for a slow client."""

    async def body() -> None:
        told = {"logprobs": True, "top_logprobs": 20, "stream": True}
        async with dial({"w0": Script(lambda _: ANSWER, step_s=0)}) as dialled:
            lazy = await connect_raw(dialled)
            for _ in range(20):
                await lazy.ask(dialled.subject("chat"), json.dumps({**ASK, **told}).encode())
            answer = await dialled.client.chat(**ASK)
            worker = dialled.served.mesh.workers["w0"]
            await worker.wait_until(lambda: len(worker.acknowledged) >= 21, limit_s=20)
            lazy.writer.transport.abort()
        assert answer["choices"][0]["finish_reason"] == "stop"

    uvloop.run(body())


def test_a_long_silence_is_broken_by_signs_of_life(dial: Dial) -> None:
    async def body() -> None:
        script = Script(lambda _: ANSWER, stop_at=0)
        async with dial({"w0": script}, side_door_beat_s=0.2) as dialled:
            inbox = dialled.connection.new_inbox()
            subscription = await dialled.connection.subscribe(inbox)
            headers = {"Kvmesh-Beats": "1"}
            asked = json.dumps(ASK).encode()
            await dialled.connection.publish(dialled.subject("chat"), asked, reply=inbox, headers=headers)
            signs = [await subscription.next_msg(timeout=15) for _ in range(3)]
            await signs[-1].respond(b"enough")
            await wait_cancelled(dialled.served.mesh.workers["w0"])
        assert all(not sign.data.strip() for sign in signs)

    uvloop.run(body())


def test_a_frontend_that_falls_silent_is_noticed(dial: Dial) -> None:
    async def body() -> None:
        script = Script(lambda _: ANSWER, stop_at=3)
        async with dial({"w0": script}, side_door_beat_s=60.0) as dialled:
            client = KvmeshClient(dialled.connection, dialled.ns, silence_s=1.0)
            with pytest.raises(StreamBroken, match="not a word"):
                async for _ in client.stream_chat(**ASK):
                    pass

    uvloop.run(body())


def test_a_restart_of_nats_ends_a_stream_in_an_error_or_whole_and_the_door_is_open_again(
    dial: Dial, make_nats: Callable[..., Server]
) -> None:
    async def body() -> None:
        nats = make_nats()
        async with dial({"w0": Script(lambda _: ANSWER, step_s=0.03)}, nats) as dialled:
            expected = await read(dialled.client)
            client = KvmeshClient(dialled.connection, dialled.ns, timeout_s=60, silence_s=10)
            stream = client.stream_chat(**ASK)
            parts = [await anext(stream)]
            nats.kill()
            nats.restart()
            try:
                parts += [chunk async for chunk in stream]
            except KvmeshError as error:
                assert error.retriable
            else:
                assert text_of(parts) == expected
            assert await until_served(client) == expected

    uvloop.run(body())


def test_a_whole_answer_outlives_a_restart_of_nats(dial: Dial, make_nats: Callable[..., Server]) -> None:
    async def body() -> None:
        nats = make_nats()
        async with dial({"w0": Script(lambda _: ANSWER, step_s=0.03)}, nats) as dialled:
            expected = await dialled.client.chat(**ASK)
            client = KvmeshClient(dialled.connection, dialled.ns, timeout_s=60, silence_s=50)
            num_before = await num_tokens_out(dialled)
            asking = asyncio.ensure_future(client.chat(**ASK))
            async with asyncio.timeout(15):
                while await num_tokens_out(dialled) == num_before:
                    pass
            nats.kill()
            nats.restart()
            answer = await asking
        assert answer["choices"] == expected["choices"]

    uvloop.run(body())


async def num_tokens_out(dialled: Dialled) -> str:
    scraped = (await dialled.served.http.get(f"{dialled.served.admin_url}/metrics")).text
    return next(line for line in scraped.splitlines() if line.startswith("kvmesh_tokens_out_total"))


async def read(client: KvmeshClient) -> str:
    return text_of([chunk async for chunk in client.stream_chat(**ASK)])


async def until_served(client: KvmeshClient, limit_s: float = 20.0) -> str:
    deadline = time.monotonic() + limit_s
    while True:
        try:
            return await read(client)
        except KvmeshError as error:
            assert time.monotonic() < deadline, error


def test_a_draining_frontend_lets_its_streams_end_and_others_take_what_is_new(dial: Dial) -> None:
    async def body() -> None:
        async with dial({"w0": Script(lambda _: ANSWER, step_s=0.03)}) as dialled, open_tasks() as tasks:
            expected = await read(dialled.client)
            shutdown, opened = asyncio.Event(), asyncio.get_running_loop().create_future()
            settings = second_frontend(dialled)
            second = serve_frontend(settings, new_id(), shutdown, opened.set_result)
            tasks.create_task(second, name="second frontend")
            await opened
            await wait_ready(dialled.served.http, f"http://127.0.0.1:{settings.admin.port}")
            stream = dialled.client.stream_chat(**ASK)
            parts = [await anext(stream)]
            dialled.served.shutdown.set()
            assert await dialled.client.chat(**ASK, max_tokens=1)
            parts += [chunk async for chunk in stream]
            while not dialled.served.life.done():
                assert await dialled.client.chat(**ASK, max_tokens=1)
            assert text_of(parts) == expected
            shutdown.set()

    uvloop.run(body())


def second_frontend(dialled: Dialled) -> FrontendSettings:
    """As the first, with an admin port of its own."""
    return msgspec.structs.replace(dialled.served.settings, admin=AdminSettings(port=find_free_port()))


def test_the_door_opens_once_a_model_can_be_served(serve: Serve, nats_server: Server) -> None:
    async def body() -> None:
        async with serve({}) as served, connected(nats_server.url) as connection, open_tasks() as tasks:
            client = KvmeshClient(connection, served.mesh.ns, timeout_s=30)
            with pytest.raises(Unavailable, match="no frontend"):
                await client.models()
            await served.mesh.add_worker("w0", Script(lambda _: ANSWER), tasks)
            await wait_ready(served.http, served.admin_url)
            answer = await client.chat(**ASK)
            served.mesh.kill("w0")
        assert answer["choices"][0]["finish_reason"] == "stop"

    uvloop.run(body())


def test_the_last_frontend_takes_no_more_while_it_drains(dial: Dial) -> None:
    async def body() -> None:
        async with dial({"w0": Script(lambda _: ANSWER, step_s=0.05)}) as dialled:
            stream = dialled.client.stream_chat(**ASK)
            parts = [await anext(stream)]
            dialled.served.shutdown.set()
            async with asyncio.timeout(15):
                while True:
                    try:
                        await dialled.client.models()
                    except Unavailable as error:
                        assert error.code == "no_responder"
                        break
            parts += [chunk async for chunk in stream]
            assert parts[-1]["choices"][0]["finish_reason"] == "stop"

    uvloop.run(body())


def test_every_gauge_is_back_after_success_failure_and_leaving(dial: Dial) -> None:
    async def body() -> None:
        async with dial({"w0": Script(lambda _: ANSWER, step_s=0.01)}) as dialled:
            await dialled.client.chat(**ASK)
            stream = dialled.client.stream_chat(**ASK)
            await anext(stream)
            await stream.aclose()
            dialled.served.mesh.refusal = NoWorker(model=MODEL)
            with pytest.raises(Unavailable):
                await dialled.client.chat(**ASK)
            wanted = {"kvmesh_side_door_requests_running 0.0", "kvmesh_requests_running 0.0"}
            async with asyncio.timeout(15):
                url = f"{dialled.served.admin_url}/metrics"
                while not wanted <= set((await dialled.served.http.get(url)).text.splitlines()):
                    pass

    uvloop.run(body())
