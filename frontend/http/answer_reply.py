"""An answer on one HTTP connection, until its client leaves.

Written straight to ASGI: one `send` carries all events that wait for the client, whatever tokens they came
from. (uvloop sets TCP_NODELAY.)
"""

from collections.abc import Callable

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from frontend.answer import Call, Reply, send_answer
from frontend.events import to_event
from frontend.generation import Generator
from frontend.http.replies import JSON_HEADERS, Headers, error_headers, send_whole
from frontend.request_id import REQUEST_ID_HEADER
from proto.errors import KvmeshError
from services.faults import error_json
from services.http_server import arrived_s

_STREAM_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Dialect(msgspec.Struct, frozen=True):
    """What an API's answers have in common: how an error is written, and the event after the last."""

    error_json: Callable[[KvmeshError], bytes]
    done: bytes = b""


OPENAI = Dialect(error_json, done=to_event(b"[DONE]"))


class AnswerReply(Response):
    """A response that FastAPI runs as any other; `request_id` is in its headers and its logs."""

    def __init__(self, generator: Generator, call: Call, request_id: str, dialect: Dialect = OPENAI) -> None:
        super().__init__()
        self._generator = generator
        self._call = call
        self._request_id = request_id
        self._dialect = dialect

    def whole_headers(self) -> Headers:
        """Those that say what a whole answer is; asked for once it has been written."""
        return JSON_HEADERS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply = HttpReply(
            self._request_id,
            arrived_s(scope),
            receive,
            send,
            dialect=self._dialect,
            whole_headers=self.whole_headers,
            is_last=lambda: not self._generator.is_admitting,
        )
        await send_answer(self._generator, self._call, reply)


class HttpReply(Reply):
    """`is_last`: whether the connection shall not be used again, so that the next request goes elsewhere."""

    def __init__(
        self,
        request_id: str,
        arrived_s: float,
        receive: Receive,
        send: Send,
        *,
        dialect: Dialect,
        whole_headers: Callable[[], Headers],
        is_last: Callable[[], bool],
    ) -> None:
        super().__init__(request_id, arrived_s)
        self._receive = receive
        self._send = send
        self._dialect = dialect
        self._whole_headers = whole_headers
        self._is_last = is_last
        self._own_headers: Headers = [(REQUEST_ID_HEADER.encode(), request_id.encode())]

    async def start_stream(self) -> None:
        self.has_started = True
        headers = [*_STREAM_HEADERS, *self._own_headers]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def send_events(self, events: bytes) -> None:
        await self._send({"type": "http.response.body", "body": events, "more_body": True})

    async def end_stream(self, events: bytes) -> None:
        last = events + self._dialect.done
        await self._send({"type": "http.response.body", "body": last, "more_body": False})

    async def send_whole(self, body: bytes) -> None:
        self.has_started = True
        await send_whole(self._send, 200, [*self._whole_headers(), *self._own_headers], body)

    async def refuse(self, error: KvmeshError) -> None:
        self.has_started = True
        headers = [*error_headers(error, closes=self._is_last()), *self._own_headers]
        await send_whole(self._send, error.status, headers, self._dialect.error_json(error))

    async def break_off(self, error: KvmeshError) -> None:
        await self.end_stream(to_event(self._dialect.error_json(error)))

    async def wait_left(self) -> None:
        """The body has been read, so all that can still come is that the client has left."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
