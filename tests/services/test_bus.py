"""The bus against real servers: its promises when all is well, and when the server is late, wrong or gone."""

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from proto.errors import (
    DeadlineExceeded,
    Disconnected,
    InvalidRequest,
    InvalidSetting,
    NoResponder,
    PayloadTooLarge,
)
from services.bus import Bus, BusSettings, Delivery, Wish, open_bus
from services.child import suspend
from services.servers import Server, reserve_port, run_nats
from tests.services.waiting import wait_for

MakeNats = Callable[..., Server]


@asynccontextmanager
async def two_buses(server: Server) -> AsyncIterator[tuple[Bus, Bus]]:
    settings = BusSettings(url=server.url)
    async with open_bus(settings, "test-a") as one, open_bus(settings, "test-b") as other:
        yield one, other


class Inbox:
    """A handler that keeps what it gets."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.queue: asyncio.Queue[Delivery] = asyncio.Queue()

    def __call__(self, delivery: Delivery) -> None:
        self.payloads.append(delivery.payload)
        self.queue.put_nowait(delivery)

    async def next(self) -> Delivery:
        async with asyncio.timeout(5):
            return await self.queue.get()


def test_what_is_published_arrives_with_its_headers_and_can_be_answered(
    nats_server: Server, namespace: str
) -> None:
    async def body() -> None:
        async with two_buses(nats_server) as (here, there):
            inbox, answers = Inbox(), Inbox()
            await there.subscribe(namespace, inbox)
            reply = here.new_inbox()
            await here.subscribe(reply, answers)
            await here.publish(namespace, b"ping", reply=reply, headers={"traceparent": "00-é"})
            delivery = await inbox.next()
            assert (delivery.subject, delivery.payload) == (namespace, b"ping")
            assert delivery.headers["traceparent"] == "00-é"
            await delivery.respond(b"pong")
            assert (await answers.next()).payload == b"pong"

    asyncio.run(body())


def test_a_subscription_is_live_when_subscribe_returns(nats_server: Server, namespace: str) -> None:
    async def body() -> None:
        async with two_buses(nats_server) as (here, there):
            for index in range(200):
                subject = f"{namespace}.{index}"
                subscription = await there.subscribe(subject, lambda _: None)
                assert await here.has_responder(subject, 2)
                await subscription.close()
                assert not await here.has_responder(subject, 2)

    asyncio.run(body())


def test_many_are_subscribed_at_once_and_those_who_listen_are_found(
    nats_server: Server, namespace: str
) -> None:
    async def body() -> None:
        heard: list[str] = []
        async with open_bus(BusSettings(url=nats_server.url), "a") as bus:
            names = [f"{namespace}.{number}" for number in range(50)]
            wishes = [Wish(name, lambda delivery: heard.append(delivery.subject)) for name in names]
            subscriptions = await bus.subscribe_all(wishes)
            nobody = [f"{namespace}.nobody", f"{namespace}.nowhere"]
            assert await bus.find_responders([*nobody, *names], 5) == names
            assert await bus.find_responders([], 5) == []
            for name in names:
                await bus.publish(name, b"")
            await bus.flush(5)
            await wait_for(lambda: sorted(heard) == sorted(names))
            await subscriptions[0].close()
            assert names[0] not in await bus.find_responders(names, 5)

    asyncio.run(body())


def test_a_request_gets_its_own_answer_among_many(nats_server: Server, namespace: str) -> None:
    async def body() -> None:
        async with two_buses(nats_server) as (here, there):
            inbox = Inbox()
            await there.subscribe(namespace, inbox)
            requests = [asyncio.ensure_future(here.request(namespace, b"%d" % i, 5)) for i in range(100)]
            deliveries = [await inbox.next() for _ in requests]
            for delivery in reversed(deliveries):
                await delivery.respond(delivery.payload * 2)
            assert await asyncio.gather(*requests) == [b"%d" % i * 2 for i in range(100)]

    asyncio.run(body())


def test_a_queue_group_takes_each_message_once(nats_server: Server, namespace: str) -> None:
    async def body() -> None:
        async with two_buses(nats_server) as (here, there):
            group = [Inbox(), Inbox()]
            await here.subscribe(namespace, group[0], queue="group")
            await there.subscribe(namespace, group[1], queue="group")
            for index in range(50):
                await here.publish(namespace, b"%d" % index)
            await wait_for(lambda: sum(len(inbox.payloads) for inbox in group) >= 50)
            await here.flush(2)
            await there.flush(2)
            assert sorted(int(p) for inbox in group for p in inbox.payloads) == list(range(50))

    asyncio.run(body())


def test_nobody_listening_is_known_at_once(nats_server: Server, namespace: str) -> None:
    async def body() -> None:
        async with two_buses(nats_server) as (here, _):
            started_s = time.monotonic()
            with pytest.raises(NoResponder, match=namespace):
                await here.request(namespace, b"", 30)
            assert time.monotonic() - started_s < 5
            assert not await here.has_responder(namespace, 5)

    asyncio.run(body())


def test_a_request_that_nobody_answers_ends_at_its_deadline(nats_server: Server, namespace: str) -> None:
    async def body() -> None:
        async with two_buses(nats_server) as (here, there):
            inbox = Inbox()
            await there.subscribe(namespace, inbox)
            with pytest.raises(DeadlineExceeded, match=r"0\.2 s"):
                await here.request(namespace, b"", 0.2)
            await (await inbox.next()).respond(b"too late")
            await here.flush(2)
            assert await here.has_responder(namespace, 2)
            assert inbox.queue.empty(), "the probe reached a handler"

    asyncio.run(body())


def test_a_handler_that_raises_ends_nothing(nats_server: Server, namespace: str) -> None:
    async def body() -> None:
        async with two_buses(nats_server) as (here, there):
            seen = Inbox()

            def handler(delivery: Delivery) -> None:
                seen(delivery)
                if delivery.payload == b"bad":
                    raise ValueError("bad message")

            await there.subscribe(namespace, handler)
            for payload in (b"bad", b"good"):
                await here.publish(namespace, payload)
            await wait_for(lambda: seen.payloads == [b"bad", b"good"])

    asyncio.run(body())


def test_payloads_are_limited_with_their_headers_and_the_bus_survives(
    nats_server: Server, namespace: str
) -> None:
    async def body() -> None:
        async with two_buses(nats_server) as (here, there):
            inbox = Inbox()
            await there.subscribe(namespace, inbox)
            limit = here.max_payload_bytes
            assert limit == 8 * 2**20
            with pytest.raises(PayloadTooLarge) as caught:
                await here.publish(namespace, bytes(limit + 1))
            assert caught.value.values == {"num_bytes": limit + 1, "limit_bytes": limit}
            with pytest.raises(PayloadTooLarge):
                await here.publish(namespace, bytes(limit), headers={"a": "b"})
            await here.publish(namespace, bytes(limit - 21), headers={"a": "b"})
            assert len((await inbox.next()).payload) == limit - 21
            assert here.num_connects == 1

    asyncio.run(body())


@pytest.mark.parametrize("subject", ["", "two words", "line\r\nPUB x 0\r\n", "x" * 5000])
def test_what_is_no_subject_is_refused_and_the_bus_survives(nats_server: Server, subject: str) -> None:
    async def body() -> None:
        async with two_buses(nats_server) as (here, _):
            with pytest.raises(InvalidRequest):
                await here.publish(subject, b"")
            await here.flush(2)
            assert here.num_connects == 1

    asyncio.run(body())


def test_closing_a_subscription_hands_over_what_is_here_and_nothing_after(
    nats_server: Server, namespace: str
) -> None:
    async def body() -> None:
        async with two_buses(nats_server) as (here, there):
            inbox = Inbox()
            subscription = await there.subscribe(namespace, inbox)
            for index in range(100):
                await here.publish(namespace, b"%d" % index)
            await here.flush(2)
            await subscription.close()
            assert len(inbox.payloads) == 100
            await here.publish(namespace, b"late")
            await there.flush(2)
            assert len(inbox.payloads) == 100

    asyncio.run(body())


def test_messages_dropped_for_a_full_buffer_are_counted(nats_server: Server, namespace: str) -> None:
    async def body() -> None:
        settings = BusSettings(url=nats_server.url, max_pending_messages=10)
        async with open_bus(settings, "small") as small:
            inbox = Inbox()
            await small.subscribe(namespace, inbox)
            for index in range(1000):
                await small.publish(namespace, b"%d" % index)
            await small.flush(2)
            assert small.num_dropped > 0
            assert len(inbox.payloads) + small.num_dropped == 1000

    asyncio.run(body())


def test_who_subscribes_bears_with_a_server_that_takes_its_time_and_not_with_a_dead_one(
    make_nats: MakeNats, namespace: str
) -> None:
    async def body() -> None:
        server = make_nats()
        settings = BusSettings(url=server.url, ping_interval_s=0.1, max_missed_pings=1000)
        async with open_bus(settings, "patient") as bus:
            inbox = Inbox()
            server.suspend()
            try:
                subscribing = asyncio.ensure_future(bus.subscribe(namespace, inbox))
                await asyncio.wait([subscribing], timeout=1.0)  # many times what a ping may take
                assert not subscribing.done()
            finally:
                server.resume()
            await subscribing
            await bus.publish(namespace, b"heard")
            await bus.flush(10)
            assert inbox.payloads == [b"heard"]
            server.suspend()
            subscribing = asyncio.ensure_future(bus.subscribe(f"{namespace}.more", inbox))
            await asyncio.wait([subscribing], timeout=0.3)
            server.kill()
            with pytest.raises(Disconnected):
                await asyncio.wait_for(subscribing, 10)

    asyncio.run(body())


def test_a_pong_that_comes_while_its_ping_times_out_ends_nothing_but_the_ping(make_nats: MakeNats) -> None:
    """The loop is late, so that the time runs out and the pong is read in one turn of it."""

    async def body() -> None:
        server = make_nats()
        async with open_bus(BusSettings(url=server.url), "late") as bus:
            inbox = Inbox()
            await bus.subscribe("late", inbox)
            server.suspend()
            loop = asyncio.get_running_loop()
            due_s = loop.time() + 0.3
            pinging = asyncio.ensure_future(bus.flush(0.3))
            await asyncio.sleep(0.1)

            def answer_late() -> None:
                server.resume()
                time.sleep(0.1)

            loop.call_at(due_s - 0.02, time.sleep, 0.06)
            loop.call_at(due_s + 0.01, answer_late)
            with pytest.raises(DeadlineExceeded):
                await pinging
            await bus.publish("late", b"heard")
            assert (await inbox.next()).payload == b"heard"
            assert bus.num_connects == 1

    asyncio.run(body())


def test_subscriptions_survive_a_restart_of_the_server(make_nats: MakeNats) -> None:
    async def body() -> None:
        server = make_nats()
        async with two_buses(server) as (here, there):
            inbox, states = Inbox(), list[bool]()
            await there.subscribe("kept", inbox)
            here.add_listener(states.append)
            pending = asyncio.ensure_future(here.request("kept", b"asked", 30))
            await inbox.next()
            await asyncio.to_thread(server.stop)
            with pytest.raises(Disconnected):
                await pending
            await wait_for(lambda: not here.is_connected)
            with pytest.raises(Disconnected):
                await here.publish("kept", b"stale")
            with pytest.raises(Disconnected):
                await here.wait_connected(0.1)
            server.restart()
            await here.wait_connected(10)
            await there.wait_connected(10)
            assert (here.num_connects, there.num_connects) == (2, 2)
            await here.publish("kept", b"fresh")
            assert (await inbox.next()).payload == b"fresh"
            assert inbox.payloads == [b"asked", b"fresh"]
            assert states == [False, True]

    asyncio.run(body())


def test_a_server_that_was_killed_and_one_that_hangs_are_both_left(make_nats: MakeNats) -> None:
    async def body() -> None:
        server = make_nats()
        settings = BusSettings(url=server.url, ping_interval_s=0.2)
        async with open_bus(settings, "test") as bus:
            server.kill()
            await wait_for(lambda: not bus.is_connected)
            server.restart()
            await bus.wait_connected(10)
            server.suspend()
            for _ in range(64):  # fill the socket, so that closing it has bytes to wait for
                await bus.publish("void", bytes(2**20))
            lost = asyncio.Event()
            bus.add_listener(lambda _: lost.set())
            async with asyncio.timeout(10):
                await lost.wait()
            assert not bus.is_connected
            server.resume()
            await bus.wait_connected(10)
            assert bus.num_connects == 3

    asyncio.run(body())


def test_unsent_bytes_are_bounded(make_nats: MakeNats) -> None:
    async def body() -> None:
        server = make_nats()
        settings = BusSettings(url=server.url, max_unsent_bytes=2**20)
        async with open_bus(settings, "test") as bus:
            server.suspend()
            with pytest.raises(Disconnected):
                for _ in range(100):
                    await bus.publish("void", bytes(2**20))
                    await asyncio.sleep(0)
            server.resume()

    asyncio.run(body())


def test_a_client_may_start_before_its_server(tmp_path: Path) -> None:
    async def body() -> None:
        port = reserve_port()
        settings = BusSettings(url=f"nats://127.0.0.1:{port}", connect_timeout_s=20)

        async def connect_early() -> int:
            async with open_bus(settings, "early") as bus:
                return bus.num_connects

        early = asyncio.ensure_future(connect_early())
        await asyncio.sleep(0)
        async with run_nats(tmp_path, port=port):
            assert await early == 1

    asyncio.run(body())


def test_no_server_within_the_bound_is_disconnected() -> None:
    async def body() -> None:
        settings = BusSettings(url=f"nats://user:secret@127.0.0.1:{reserve_port()}", connect_timeout_s=0.2)
        with pytest.raises(Disconnected, match=r"127\.0\.0\.1") as caught:
            async with open_bus(settings, "alone"):
                pass
        assert "secret" not in str(caught.value)

    asyncio.run(body())


@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"INFO nonsense\r\n"])
def test_a_server_that_is_not_nats_is_a_clear_error_in_seconds(greeting: bytes) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        await reader.read()
        writer.close()

    async def body() -> None:
        async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            settings = BusSettings(
                url=f"nats://127.0.0.1:{port}", wrong_server_after_s=0.3, greeting_timeout_s=0.3
            )
            with pytest.raises(InvalidSetting, match="does not speak NATS"):
                async with open_bus(settings, "lost"):
                    pass

    asyncio.run(body())


def test_what_is_no_url_is_a_clear_error() -> None:
    async def body() -> None:
        settings = BusSettings(url="nats://", wrong_server_after_s=0)
        with pytest.raises(InvalidSetting):
            async with open_bus(settings, "lost"):
                pass

    asyncio.run(body())


def test_an_error_of_the_body_comes_out_as_itself(nats_server: Server) -> None:
    async def body() -> None:
        with pytest.raises(NoResponder):
            async with open_bus(BusSettings(url=nats_server.url), "test") as bus:
                await bus.request("nobody.there", b"", 5)

    asyncio.run(body())


CHILD = """
import asyncio, sys
from services.bus import BusSettings, open_bus

async def main():
    async with open_bus(BusSettings(url=sys.argv[1]), "child") as bus:
        def show(kind):
            return lambda delivery: print(kind, delivery.payload.decode(), flush=True)
        await bus.subscribe("child.perishable", show("perishable"), perishable=True)
        await bus.subscribe("child.lasting", show("lasting"))
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def test_a_stopped_process_does_not_act_on_what_it_wakes_up_to(nats_server: Server) -> None:
    async def body(child: subprocess.Popen[str]) -> list[str]:
        output = child.stdout
        assert output is not None
        assert output.readline() == "ready\n"
        async with open_bus(BusSettings(url=nats_server.url), "test") as bus:

            async def tell(word: str) -> None:
                await bus.publish("child.perishable", word.encode())
                await bus.publish("child.lasting", word.encode())
                await bus.flush(2)

            await tell("before")
            lines = [output.readline(), output.readline()]
            suspend(child.pid)
            await tell("stopped")
            await asyncio.sleep(1.6)  # the time that is to pass is what this test is about
            child.send_signal(signal.SIGCONT)
            lines.append(output.readline())
            while "perishable after\n" not in lines:
                await tell("after")
                lines.extend([output.readline()])
            return lines

    argv = [sys.executable, "-c", CHILD, nats_server.url]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        try:
            lines = asyncio.run(body(child))
        finally:
            child.kill()
    assert lines[:3] == ["perishable before\n", "lasting before\n", "lasting stopped\n"]
    assert "perishable stopped\n" not in lines


def send_past_the_loop(server: Server, subject: str, payload: bytes) -> None:
    """Publishes without letting the event loop run: the message waits in the bus's socket."""
    with socket.create_connection(("127.0.0.1", server.plan.port)) as raw:
        raw.sendall(b"CONNECT {}\r\nPUB %s %d\r\n%s\r\nPING\r\n" % (subject.encode(), len(payload), payload))
        received = b""
        while b"PONG" not in received:
            received += raw.recv(4096)


def test_a_delivery_kept_over_a_lateness_says_that_it_is_expired(nats_server: Server, namespace: str) -> None:
    async def body() -> None:
        settings = BusSettings(url=nats_server.url, late_after_s=0.1)
        async with open_bus(settings, "test") as bus:
            lasting, perishable = Inbox(), Inbox()
            await bus.subscribe(namespace, lasting)
            await bus.subscribe(namespace, perishable, perishable=True)
            await bus.publish(namespace, b"old")
            old = await lasting.next()
            was_expired = old.is_expired
            send_past_the_loop(nats_server, namespace, b"buffered")
            time.sleep(0.5)  # noqa: ASYNC251 (this is the lateness)
            assert (was_expired, old.is_expired) == (False, True)
            await wait_for(lambda: lasting.payloads == [b"old", b"buffered"])

            async def is_fresh() -> bool:
                await bus.publish(namespace, b"new")
                await bus.flush(2)
                return b"new" in perishable.payloads

            async with asyncio.timeout(5):
                while not await is_fresh():
                    continue
            assert perishable.payloads[0] == b"old"
            assert b"buffered" not in perishable.payloads
            assert bus.num_expired > 0

    asyncio.run(body())
