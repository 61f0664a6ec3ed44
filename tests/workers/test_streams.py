"""A worker's side of a stream: all of it can be had again, until its end is acknowledged."""

import asyncio

from proto.codec import encode
from proto.control import Acknowledge, Resend
from proto.logprobs import record_bytes, split_records
from proto.requests import Refused, Sampling
from proto.streams import End, Prefilled
from proto.tokens import count_tokens, pack_tokens, unpack_tokens
from services.bus import BusSettings, open_bus
from services.servers import Server
from tests.workers import client_run
from tests.workers.client_run import Body
from tests.workers.harness import Client, Fleet, open_client, random_prompt
from workers.outbox import Outbox


def run_client(fleet: Fleet, body: Body) -> None:
    async def with_rest(client: Client) -> None:
        await body(client)
        await client.wait_rest("decode")

    client_run.run_client(fleet, with_rest)


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


TOLD = Sampling(temperature=0.0, logprobs=20)
RECORD_BYTES = record_bytes(20)


def test_records_can_be_had_again_with_their_tokens(simulated: Fleet) -> None:
    async def body(client: Client) -> None:
        stream = await client.begin("decode", random_prompt(8, 26), max_tokens=20, sampling=TOLD)
        await client.wait(lambda: stream.end is not None)
        assert {len(record) for record in stream.records} == {RECORD_BYTES}
        for offset in (0, 7, 20):
            frame = await client.resend(stream, offset)
            assert split_records(frame.logprobs, 20 - offset) == stream.records[offset:]
        await client.acknowledge(stream)

    run_client(simulated, body)


def test_what_is_too_long_for_a_message_is_had_again_in_pieces(simulated: Fleet) -> None:
    """The last of them has the end, the first says how the prompt was prefilled."""

    async def body() -> None:
        async with open_bus(BusSettings(url=simulated.nats.url), "outbox") as bus:
            outbox = Outbox(bus, simulated.ns, "w", "one", keep_s=60.0)
            stream = outbox.open("r", 0, "c", 0)
            tokens = list(range(4000))
            records = b"".join(token.to_bytes(4, "little") * (RECORD_BYTES // 4) for token in tokens)
            outbox.add(stream, pack_tokens(tokens), End("length"), Prefilled(3), records)
            frames = [outbox.resend("r", 0, 0)]
            while frames[-1].end is None:
                frames.append(outbox.resend("r", 0, frames[-1].offset + count_tokens(frames[-1].tokens)))
            assert len(frames) > 2
            assert max(len(encode(frame)) for frame in frames) < 2**18 + 100
            assert unpack_tokens(b"".join(frame.tokens for frame in frames)) == tokens
            assert b"".join(frame.logprobs for frame in frames) == records
            assert [frame.prefilled is not None for frame in frames] == [True, *[False] * (len(frames) - 1)]

    asyncio.run(body())


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
