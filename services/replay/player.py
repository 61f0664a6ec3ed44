"""Plays a trace to one server: an open loop, so that late answers do not slow what comes after them."""

import asyncio
import time
from collections.abc import Sequence

import msgspec

from services.replay.completion import FACTS_HEADER, ask
from services.replay.http_call import Server
from services.replay.prompts import PromptMaker
from services.replay.reading import Reading
from services.replay.trace import TraceRequest
from services.tasks import open_tasks

LEAD_S = 0.1
OVER_LIMIT = "too_many_in_flight"


class Pace(msgspec.Struct, frozen=True):
    """How a trace's times become the player's.

    `speed`: the whole mesh runs so many times as fast as it stands for, as simulated workers may; what is
    measured is told in the trace's own seconds. `rate`: only the requests come so many times as often.
    """

    speed: float = 1.0
    rate: float = 1.0
    request_limit_s: float = 300.0
    max_in_flight: int = 4096


class Player:
    """Plays one trace to one server, once."""

    def __init__(self, server: Server, model: str, prompts: PromptMaker, pace: Pace) -> None:
        self._server = server
        self._prompts = prompts
        self._pace = pace
        self._head = b'{"model":' + msgspec.json.encode(model)
        self._num_in_flight = 0

    async def play(self, trace: Sequence[TraceRequest]) -> list[Reading]:
        """A reading for each request, in the trace's order; every failure is told there.

        Returns when the last answer has ended: at most the trace's time and the limit of a request.
        """
        begin_s = time.monotonic() + LEAD_S - trace[0].timestamp / 1e3 / self._tempo
        readings = []
        async with open_tasks() as tasks:
            for number, asked in enumerate(trace):
                reading = Reading(due_s=begin_s + asked.timestamp / 1e3 / self._tempo)
                request = self._request(asked)  # before it is due, so that the making delays nothing
                await asyncio.sleep(reading.due_s - time.monotonic())
                readings.append(reading)
                if self._num_in_flight >= self._pace.max_in_flight:
                    reading.sent_s = reading.ended_s = time.monotonic()
                    reading.error = OVER_LIMIT
                else:
                    self._num_in_flight += 1
                    tasks.create_task(self._ask(request, reading), name=f"request {number}")
        return readings

    @property
    def _tempo(self) -> float:
        return self._pace.speed * self._pace.rate

    async def _ask(self, request: bytes, reading: Reading) -> None:
        try:
            await ask(self._server, request, reading, self._pace.request_limit_s)
        finally:
            self._num_in_flight -= 1

    def _request(self, asked: TraceRequest) -> bytes:
        body = b'%s,"max_tokens":%d,"temperature":0,"ignore_eos":true,"stream":true,%s,"prompt":%s}' % (
            self._head,
            asked.output_length,
            b'"stream_options":{"include_usage":true}',
            self._prompts.as_json(asked),
        )
        return self._server.request("POST", "/v1/completions", body, FACTS_HEADER)
