"""A worker's side of a stream: all of it can be had again, until its end is acknowledged."""

import asyncio
from collections.abc import Awaitable, Callable

from proto.control import Acknowledge, Resend
from proto.requests import Refused
from proto.streams import End
from proto.tokens import pack_tokens, unpack_tokens
from services.bus import BusSettings, open_bus
from services.servers import Server
from tests.workers.harness import Client, Fleet, open_client, random_prompt
from workers.outbox import Outbox


def run_client(fleet: Fleet, body: Callable[[Client], Awaitable[None]]) -> None:
    async def run() -> None:
        async with open_client(fleet, "tiny") as client:
            await body(client)
            await client.wait_rest("decode")

    asyncio.run(run())


def test_the_first_frame_says_that_the_worker_has_accepted(simulated: Fleet) -> None:
    async def body(client: Client) -> None:
        stream = await client.begin("decode", random_prompt(300, 20))
        await client.wait(lambda: stream.num_frames > 0)
        assert (stream.num_frames, stream.tokens, stream.end) == (1, [], None)
        await client.cancel(stream)

    run_client(simulated, body)


def test_tokens_can_be_had_again_from_any_offset_until_the_end_is_acknowledged(simulated: Fleet) -> None:
    async def body(client: Client) -> None:
        stream = await client.begin("decode", random_prompt(8, 21), max_tokens=20)
        await client.wait(lambda: stream.end is not None)
        for offset in (0, 7, 20):
            frame = await client.resend(stream, offset)
            assert (frame.offset, frame.end) == (offset, stream.end)
            assert unpack_tokens(frame.tokens) == stream.tokens[offset:]
        await client.acknowledge(stream)
        asked = Resend(stream.request, stream.attempt, 0)
        assert isinstance(await client.control("decode", asked), Refused)

    run_client(simulated, body)


def test_an_attempt_that_begins_at_an_offset_has_nothing_before_it(simulated: Fleet) -> None:
    async def body(client: Client) -> None:
        stream = await client.begin("decode", random_prompt(8, 22), max_tokens=10, generated=[11, 12, 13])
        await client.wait(lambda: stream.end is not None)
        assert len(stream.tokens) == 7
        assert unpack_tokens((await client.resend(stream, 3)).tokens) == stream.tokens
        for offset in (0, 2, 11, -1):
            asked = Resend(stream.request, stream.attempt, offset)
            assert isinstance(await client.control("decode", asked), Refused)
        await client.acknowledge(stream)

    run_client(simulated, body)


def test_live_offsets_name_every_stream_that_is_not_acknowledged(simulated: Fleet) -> None:
    async def body(client: Client) -> None:
        ended = await client.begin("decode", random_prompt(8, 23), max_tokens=5)
        running = await client.begin("decode", random_prompt(8, 24), max_tokens=2000)
        await client.wait(lambda: len(client.offsets) == 2)
        assert client.offsets[ended.request, 0].has_ended
        assert client.offsets[ended.request, 0].offset == 5
        assert not client.offsets[running.request, 0].has_ended
        await client.acknowledge(ended)
        await client.wait(lambda: set(client.offsets) == {(running.request, 0)})
        await client.cancel(running)

    run_client(simulated, body)


def test_an_acknowledgement_of_what_goes_on_changes_nothing(simulated: Fleet) -> None:
    async def body(client: Client) -> None:
        stream = await client.begin("decode", random_prompt(8, 25), max_tokens=40)
        await client.tell("decode", Acknowledge([(stream.request, 0), ("unknown", 0)]))
        await client.finish(stream)
        assert len(stream.tokens) == 40

    run_client(simulated, body)


def test_a_request_that_comes_again_is_served_once(simulated: Fleet) -> None:
    async def body(client: Client) -> None:
        prompt = random_prompt(300, 26)
        stream = await client.begin("decode", prompt, request="twice")
        await client.begin("decode", prompt, request="twice")
        await client.wait(lambda: stream.end is not None)
        await client.begin("decode", prompt, request="twice")
        await client.wait(lambda: ("twice", 0) in client.offsets)
        assert not stream.fault
        assert len(stream.tokens) == 8
        await client.acknowledge(stream)

    run_client(simulated, body)


def test_frames_too_large_for_one_message_go_in_several_and_one_alone_ends_nothing(
    simulated: Fleet, nats_server: Server
) -> None:
    async def run() -> None:
        settings = BusSettings(url=nats_server.url)
        async with open_bus(settings, "worker") as bus, open_client(simulated, "tiny") as client:
            outbox = Outbox(bus, simulated.ns, "w", "one", keep_s=60.0)
            tokens = pack_tokens([7] * (bus.max_payload_bytes // 16))
            names = [f"part {index}" for index in range(7)]
            streams = [client.expect("w", name) for name in names]
            for name in names:
                outbox.add(outbox.open(name, 0, client.name, 0), tokens, End("length"))
            outbox.add(outbox.open("more than a message", 0, client.name, 0), 5 * tokens, End("length"))
            await outbox.flush()
            await client.wait(lambda: all(stream.end is not None for stream in streams))
            assert not any(stream.fault for stream in streams)

    asyncio.run(run())
