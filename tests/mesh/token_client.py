"""A client that brings its own tokens: it plays a frontend on the bus, so tests compare tokens, not text."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from proto import subjects
from proto.codec import encode
from proto.control import Acknowledge
from proto.errors import NoResponder
from proto.names import new_id
from proto.requests import ROUTE_REPLIES, GenerateRequest, Refused, Routed, Sampling, Stopping
from proto.streams import STREAM_MESSAGES, End, StepFrames
from proto.tokens import pack_tokens, unpack_tokens
from services.bus import Bus, BusSettings, Delivery, open_bus

LIMIT_S = 60.0


@dataclass
class TokenAnswer:
    """What came back for one request. Units: `first_s` and `total_s` seconds since it was sent."""

    tokens: list[int] = field(default_factory=list)
    end: End | None = None
    worker: str = ""
    first_s: float = 0.0
    total_s: float = 0.0


class TokenClient:
    """Asks the routers of one namespace, and gathers frames."""

    def __init__(self, bus: Bus, ns: str) -> None:
        self._bus = bus
        self._ns = ns
        self.client = f"test-{new_id()[:8]}"
        self._frames: dict[str, asyncio.Queue[StepFrames]] = {}

    async def open(self) -> None:
        await self._bus.subscribe(subjects.stream(self._ns, self.client), self._take)

    def _take(self, delivery: Delivery) -> None:
        message = STREAM_MESSAGES.decode(delivery.payload)
        if isinstance(message, StepFrames):
            for frame in message.frames:
                if frame.request in self._frames:
                    self._frames[frame.request].put_nowait(
                        StepFrames(message.worker, message.incarnation, [frame])
                    )

    async def ask(
        self,
        model: str,
        prompt: Sequence[int],
        num_tokens: int,
        salt: str = "",
        temperature: float = 0.0,
        limit_s: float = LIMIT_S,
        worker: str = "",
    ) -> TokenAnswer:
        """Exactly `num_tokens` tokens for `prompt`, ends of sequence ignored."""
        request = GenerateRequest(
            new_id(),
            0,
            model,
            self.client,
            pack_tokens(prompt),
            Sampling(temperature=temperature, seed=7),
            Stopping(max_tokens=num_tokens, ignore_eos=True),
            limit_s,
            salt=salt,
            wanted_worker=worker,
        )
        frames = self._frames[request.request] = asyncio.Queue()
        began = time.monotonic()
        raw = await self._bus.request(subjects.route(self._ns, model), encode(request), 10)
        reply = ROUTE_REPLIES.decode(raw)
        assert not isinstance(reply, Refused), reply
        answer = TokenAnswer(worker=reply.decision.worker if isinstance(reply, Routed) else "")
        async with asyncio.timeout(limit_s):
            while answer.end is None:
                self._gather(answer, await frames.get(), began)
        acknowledge = Acknowledge([(request.request, 0)])
        with suppress(NoResponder):  # a worker that has left keeps no stream
            await self._bus.request(subjects.worker_control(self._ns, answer.worker), encode(acknowledge), 5)
        return answer

    def _gather(self, answer: TokenAnswer, message: StepFrames, began: float) -> None:
        answer.worker = message.worker
        for frame in message.frames:
            assert frame.offset == len(answer.tokens), "a gap or a repetition on a healthy bus"
            answer.tokens += unpack_tokens(frame.tokens)
            answer.end = frame.end
        if answer.tokens and not answer.first_s:
            answer.first_s = time.monotonic() - began
        answer.total_s = time.monotonic() - began


async def ask_all(
    nats_url: str, ns: str, model: str, prompts: dict[str, list[int]], num_tokens: int
) -> list[TokenAnswer]:
    """One answer a prompt, one after the other, over a connection of its own.

    `prompts` are keyed by salt: prompts of different salts share no KV.
    """
    async with open_bus(BusSettings(url=nats_url), "token client") as bus:
        client = TokenClient(bus, ns)
        await client.open()
        return [await client.ask(model, prompt, num_tokens, salt) for salt, prompt in prompts.items()]
