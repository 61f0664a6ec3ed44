"""An answer on one connection: streamed or whole, cancelled upstream the moment its client leaves.

Written straight to ASGI: one `send` carries all events that wait for the client, whatever tokens they came
from, and no task or queue stands between the hub and the socket. (uvloop sets TCP_NODELAY.)
"""

import asyncio
import logging
from collections.abc import Sequence

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from frontend.generation import Generation, Generator, Plan
from frontend.http.replies import JSON_HEADERS, REQUEST_ID_HEADER, Headers, send_error, send_whole
from frontend.openai.forms import DONE, AnswerForm, WholeChoice
from frontend.text_choice import Piece
from proto.errors import InternalFault, KvmeshError
from services.faults import error_json
from services.logs import logging_request
from services.tasks import open_tasks

log = logging.getLogger(__name__)

# The deadline of a request ends its tokens; a client that reads nothing must not hold its connection longer.
_UNREAD_LIMIT_S = 10.0
_STREAM_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class AnswerReply(Response):
    """A response that FastAPI runs as any other; `request_id` is in its headers and its logs."""

    def __init__(
        self, generator: Generator, plan: Plan, form: AnswerForm, request_id: str, *, streams: bool
    ) -> None:
        super().__init__()
        self._generator = generator
        self._plan = plan
        self._form = form
        self._request_id = request_id
        self._reply_headers: Headers = [(REQUEST_ID_HEADER.encode(), request_id.encode())]
        self._streams = streams
        self._has_started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with logging_request(self._request_id):
            await self._answer_until_left(receive, send)

    async def _answer_until_left(self, receive: Receive, send: Send) -> None:
        async with open_tasks() as tasks:
            answering = tasks.create_task(self._answer(send), name="answer")
            watching = tasks.create_task(_watch_client(receive, answering), name="client")
            answering.add_done_callback(lambda _: watching.cancel())

    async def _answer(self, send: Send) -> None:
        """Ends the response in good order, whatever happens but the client's leaving."""
        try:
            async with asyncio.timeout(self._generator.request_limit_s + _UNREAD_LIMIT_S):
                async with self._generator.open(self._plan) as generation:
                    await (self._stream if self._streams else self._collect)(generation, send)
        except KvmeshError as error:
            await self._send_error(send, error)
        except TimeoutError:
            log.info("a client has not read its answer within the deadline")
        except Exception:  # the border: a bug ends one request, with an answer
            log.exception("a request failed")
            await self._send_error(send, InternalFault(reason="see the log"))

    async def _stream(self, generation: Generation, send: Send) -> None:
        pieces = await generation.wait_pieces()  # before the status is sent, so that an error has its own
        await self._start_stream(send)
        opening = b"".join(map(self._form.opening, range(generation.num_choices)))
        while pieces:
            events = opening + self._events(generation, pieces)
            opening = b""
            if events:
                await send({"type": "http.response.body", "body": events, "more_body": True})
            pieces = await generation.wait_pieces()
        last = self._form.usage(generation.usage()) + DONE
        await send({"type": "http.response.body", "body": last, "more_body": False})

    def _events(self, generation: Generation, pieces: Sequence[Piece]) -> bytes:
        events = []
        for piece in pieces:
            if piece.text or piece.tokens:
                events.append(self._form.text(piece.index, piece.text, piece.tokens))
            if piece.finish is not None:
                facts = generation.facts(piece.index)
                events.append(self._form.finish(piece.index, piece.finish, facts))
        return b"".join(events)

    async def _collect(self, generation: Generation, send: Send) -> None:
        by_choice: list[list[Piece]] = [[] for _ in range(generation.num_choices)]
        while pieces := await generation.wait_pieces():
            for piece in pieces:
                by_choice[piece.index].append(piece)
        choices = [self._join(generation, index, pieces) for index, pieces in enumerate(by_choice)]
        body = self._form.whole(choices, generation.usage())
        self._has_started = True
        await send_whole(send, 200, [*JSON_HEADERS, *self._reply_headers], body)

    def _join(self, generation: Generation, index: int, pieces: Sequence[Piece]) -> WholeChoice:
        asked = self._plan.sampling
        tokens = [token for piece in pieces for token in piece.tokens]
        return WholeChoice(
            index,
            "".join(piece.text for piece in pieces),
            pieces[-1].finish or "",
            generation.facts(index),
            None if asked.logprobs is None else tokens,
            None if asked.prompt_logprobs is None else generation.prompt_scores(index),
        )

    async def _start_stream(self, send: Send) -> None:
        self._has_started = True
        headers = [*_STREAM_HEADERS, *self._reply_headers]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _send_error(self, send: Send, error: KvmeshError) -> None:
        if not self._has_started:
            await send_error(send, error, self._reply_headers, closes=not self._generator.is_admitting)
        elif self._streams:
            last = b"data: " + error_json(error) + b"\n\n" + DONE
            await send({"type": "http.response.body", "body": last, "more_body": False})


async def _watch_client(receive: Receive, answering: asyncio.Task[None]) -> None:
    """The body has been read, so all that can still come is that the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
    answering.cancel()
