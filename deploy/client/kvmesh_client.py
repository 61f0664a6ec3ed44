"""A client of kvmesh over NATS, in one file that needs nats-py and nothing else: copy it.

```python
import asyncio
import nats
from kvmesh_client import KvmeshClient

async def main() -> None:
    connection = await nats.connect("nats://127.0.0.1:4222")
    client = KvmeshClient(connection)
    ask = [{"role": "user", "content": "What is the capital of France?"}]

    answer = await client.chat(model="smollm2-135m", messages=ask)
    print(answer["choices"][0]["message"]["content"])

    async for chunk in client.stream_chat(model="smollm2-135m", messages=ask):
        for choice in chunk["choices"]:
            print(choice["delta"].get("content") or "", end="", flush=True)

    await connection.close()

asyncio.run(main())
```

Fields are OpenAI's, and answers are OpenAI's JSON as dictionaries. Leaving a stream early (`break`, an
exception, a cancelled task) cancels it in the mesh; so does cancelling a call. Where it matters that this
happens at once, and not when Python finds that nobody has the iterator any more, close it:
`async with contextlib.aclosing(client.stream_chat(...)) as chunks:`.

Every wait has a deadline: `timeout_s` for a whole call, `silence_s` between two words of the mesh, which says
each few seconds that it is still there. What fails raises one of:

```
KvmeshError
├── RequestRefused   a field is wrong, the prompt too long, the model unknown: asking again changes nothing
├── RequestCancelled somebody cancelled it by its id
├── Overloaded       too much to do now; `retry_after_s`
├── Unavailable      nobody can serve this now: no worker, no frontend, no connection
├── TimedOut         a deadline is over, here or in the mesh
├── StreamBroken     part of the answer was lost on its way, or its sender has fallen silent
└── ServerFault      a bug
```

The subjects, for clients in other languages (`{ns}` is `default` unless the mesh was told otherwise):

- `kvmesh.{ns}.openai.chat`, `.completions`, `.models`, `.tokenize`, `.detokenize`: OpenAI's JSON, with a
  reply subject.
- `kvmesh.{ns}.tokens`: as completions, but that `prompt` is token ids and choices have `tokens` and no text.
- The answer is one message or, with `"stream": true`, messages of one or more lines, each a chunk as JSON.
  The last message, and no other, has the header `Kvmesh-End`: `done`, and after a stream an empty payload; or
  `error`, with OpenAI's error envelope, `Nats-Service-Error` and `Nats-Service-Error-Code`.
- Messages are numbered by `Kvmesh-Seq` from 0. A payload of blanks is a sign of life, with the number of the
  message to come. Before a whole answer they come only to who sends the header `Kvmesh-Beats: 1`, whose
  leaving is then noticed before the answer is there.
- Anything sent to the reply subject of one of these messages cancels the answer. So does
  `{"request_id": "..."}` to `kvmesh.{ns}.openai.cancel`, by the `x-request-id` that the request came with,
  and so does no longer listening. Who still listens hears the error `cancelled`.
"""

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any

from nats import errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

__all__ = [
    "KvmeshClient",
    "KvmeshError",
    "Overloaded",
    "RequestCancelled",
    "RequestRefused",
    "ServerFault",
    "StreamBroken",
    "TimedOut",
    "Unavailable",
]

Json = dict[str, Any]


class KvmeshError(Exception):
    """Root of the tree, never raised itself.

    `code` names the error, `status` is what HTTP would say, `param` the field that is at fault if it is one.
    """

    retriable = False

    def __init__(
        self,
        message: str,
        *,
        code: str,
        status: int,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.param = param
        self.retry_after_s = retry_after_s


class RequestRefused(KvmeshError):
    """The request cannot be served as it is."""


class RequestCancelled(KvmeshError):
    """Somebody cancelled the request, by its id."""


class Overloaded(KvmeshError):
    """Too much to do; `retry_after_s` says when another try may do better."""

    retriable = True


class Unavailable(KvmeshError):
    """Nothing is wrong with the request; nobody can serve it now."""

    retriable = True


class TimedOut(KvmeshError):
    """A deadline is over."""

    retriable = True


class StreamBroken(KvmeshError):
    """Part of the answer was lost on its way, or its sender has fallen silent."""

    retriable = True


class ServerFault(KvmeshError):
    """A bug of the mesh; its logs say more."""


_KINDS: dict[int, type[KvmeshError]] = {
    429: Overloaded,
    499: RequestCancelled,
    503: Unavailable,
    504: TimedOut,
}


class KvmeshClient:
    """OpenAI's API over a connection of nats-py, which stays the caller's.

    Units: `timeout_s` seconds that a call may take in all, `silence_s` seconds without a word of the mesh.
    """

    def __init__(
        self,
        connection: Client,
        namespace: str = "default",
        *,
        timeout_s: float = 600.0,
        silence_s: float = 15.0,
    ) -> None:
        self._connection = connection
        self._prefix = f"kvmesh.{namespace}"
        self._timeout_s = timeout_s
        self._silence_s = silence_s

    async def chat(
        self, *, request_id: str | None = None, timeout_s: float | None = None, **fields: Any
    ) -> Json:
        """The model's next message, as one object. `fields` are those of `/v1/chat/completions`.

        Cancel: the answer is cancelled in the mesh.

        Raises:
            KvmeshError: see the tree above.
        """
        return await self._ask("openai.chat", fields, request_id, timeout_s)

    def stream_chat(
        self, *, request_id: str | None = None, timeout_s: float | None = None, **fields: Any
    ) -> AsyncGenerator[Json, None]:
        """The model's next message, in chunks as they come. As `chat`; leaving the iterator cancels."""
        return self._stream("openai.chat", fields, request_id, timeout_s)

    async def complete(
        self, *, request_id: str | None = None, timeout_s: float | None = None, **fields: Any
    ) -> Json:
        """What follows a prompt, as one object. `fields` are those of `/v1/completions`. As `chat`."""
        return await self._ask("openai.completions", fields, request_id, timeout_s)

    def stream_complete(
        self, *, request_id: str | None = None, timeout_s: float | None = None, **fields: Any
    ) -> AsyncGenerator[Json, None]:
        """What follows a prompt, in chunks as they come. As `stream_chat`."""
        return self._stream("openai.completions", fields, request_id, timeout_s)

    async def generate(
        self, *, request_id: str | None = None, timeout_s: float | None = None, **fields: Any
    ) -> Json:
        """For who brings tokens: `prompt` is token ids, and so is the answer, in `choices[i]["tokens"]`.

        The other `fields` are those of `/v1/completions` that are not about text. As `chat`.
        """
        return await self._ask("tokens", fields, request_id, timeout_s)

    def stream_generate(
        self, *, request_id: str | None = None, timeout_s: float | None = None, **fields: Any
    ) -> AsyncGenerator[Json, None]:
        """As `generate`, in chunks as the tokens come. As `stream_chat`."""
        return self._stream("tokens", fields, request_id, timeout_s)

    async def models(self) -> list[Json]:
        """The models that can be served now. Raises KvmeshError."""
        listed: list[Json] = (await self._ask("openai.models", {}, None, None))["data"]
        return listed

    async def model(self, name: str) -> Json:
        """One model that can be served now. Raises KvmeshError."""
        return await self._ask("openai.models", {"model": name}, None, None)

    async def tokenize(self, **fields: Any) -> list[int]:
        """The tokens of `prompt`, or of `messages`. `fields` are those of `/tokenize`. Raises KvmeshError."""
        tokens: list[int] = (await self._ask("openai.tokenize", fields, None, None))["tokens"]
        return tokens

    async def detokenize(self, **fields: Any) -> str:
        """The text of `tokens`. `fields` are those of `/detokenize`. Raises KvmeshError."""
        text: str = (await self._ask("openai.detokenize", fields, None, None))["prompt"]
        return text

    async def cancel(self, request_id: str, timeout_s: float = 2.0) -> bool:
        """Whether an answer to a request of this id was under way, and is cancelled now."""
        payload = json.dumps({"request_id": request_id}).encode()
        try:
            await self._connection.request(f"{self._prefix}.openai.cancel", payload, timeout=timeout_s)
        except (errors.TimeoutError, errors.NoRespondersError):
            return False
        return True

    async def _ask(
        self, endpoint: str, fields: Json, request_id: str | None, timeout_s: float | None
    ) -> Json:
        async with aclosing(self._messages(endpoint, fields, request_id, timeout_s)) as messages:
            async for payload in messages:
                answer: Json = json.loads(payload)
                return answer
        raise StreamBroken("an answer ended without a word", code="stream_broken", status=502)

    async def _stream(
        self, endpoint: str, fields: Json, request_id: str | None, timeout_s: float | None
    ) -> AsyncGenerator[Json, None]:
        asked = {**fields, "stream": True}
        async with aclosing(self._messages(endpoint, asked, request_id, timeout_s)) as messages:
            async for payload in messages:
                for line in payload.splitlines():
                    yield json.loads(line)

    async def _messages(
        self, endpoint: str, fields: Json, request_id: str | None, timeout_s: float | None
    ) -> AsyncGenerator[bytes, None]:
        """The payloads of an answer, without signs of life; cancelled if it is left before its end."""
        exchange = _Exchange(self._connection, self._prefix, request_id or uuid.uuid4().hex)
        deadline_s = asyncio.get_running_loop().time() + (timeout_s or self._timeout_s)
        try:
            await exchange.send(endpoint, json.dumps(fields).encode())
            while not exchange.has_ended:
                payload = await exchange.receive(deadline_s, self._silence_s)
                if payload.strip():
                    yield payload
        finally:
            await exchange.close()


class _Exchange:
    """One request, and the messages that answer it."""

    def __init__(self, connection: Client, prefix: str, request_id: str) -> None:
        self.has_ended = False
        self._connection = connection
        self._prefix = prefix
        self._request_id = request_id
        self._control = ""
        self._num_received = 0
        self._subscription: Subscription | None = None

    async def send(self, endpoint: str, payload: bytes) -> None:
        connection = self._connection
        if not connection.is_connected:
            raise Unavailable("there is no connection to NATS", code="disconnected", status=503)
        headers = {"x-request-id": self._request_id, "Kvmesh-Beats": "1"}
        num_bytes = len(payload) + 128 + len(self._request_id)
        if num_bytes > connection.max_payload:
            said = f"{num_bytes} bytes are more than the limit of {connection.max_payload}"
            raise RequestRefused(said, code="payload_too_large", status=413)
        inbox = connection.new_inbox()
        try:
            self._subscription = await connection.subscribe(inbox)
            await connection.publish(f"{self._prefix}.{endpoint}", payload, reply=inbox, headers=headers)
        except errors.Error as error:
            raise Unavailable(f"NATS: {error}", code="disconnected", status=503) from error

    async def receive(self, deadline_s: float, silence_s: float) -> bytes:
        """The next payload; `has_ended` with the last. Raises KvmeshError."""
        message = await self._next(deadline_s, silence_s)
        headers = message.headers or {}
        if not message.data and headers.get("Status") == "503":
            self.has_ended = True
            raise Unavailable("no frontend of the mesh listens", code="no_responder", status=503)
        self._control = message.reply
        self.has_ended = "Kvmesh-End" in headers
        if "Nats-Service-Error" in headers:
            self.has_ended = True
            raise _error_of(message.data, headers)
        if self.has_ended or message.data.strip():
            self._count(headers)
        return message.data

    async def _next(self, deadline_s: float, silence_s: float) -> Msg:
        assert self._subscription is not None
        left_s = deadline_s - asyncio.get_running_loop().time()
        try:
            return await self._subscription.next_msg(timeout=max(0.001, min(left_s, silence_s)))
        except errors.TimeoutError as error:
            if left_s <= silence_s:
                raise TimedOut("the call's time is over", code="deadline_exceeded", status=504) from error
            said = f"not a word of the mesh for {silence_s} s"
            raise StreamBroken(said, code="stream_broken", status=502) from error
        except errors.Error as error:
            raise Unavailable(f"NATS: {error}", code="disconnected", status=503) from error

    def _count(self, headers: dict[str, str]) -> None:
        number = int(headers.get("Kvmesh-Seq", self._num_received))
        if number != self._num_received:
            said = f"message {self._num_received} of the answer was lost"
            raise StreamBroken(said, code="stream_broken", status=502)
        self._num_received += 1

    async def close(self) -> None:
        """Cancels the answer, unless it has ended; nobody listens to it any more."""
        with suppress(errors.Error, OSError):
            if not self.has_ended and self._connection.is_connected:
                await self._cancel()
            if self._subscription is not None:
                await self._subscription.unsubscribe()

    async def _cancel(self) -> None:
        if self._control:
            await self._connection.publish(self._control, b"cancel")
        else:
            payload = json.dumps({"request_id": self._request_id}).encode()
            await self._connection.publish(f"{self._prefix}.openai.cancel", payload)


def _error_of(payload: bytes, headers: dict[str, str]) -> KvmeshError:
    status = int(headers.get("Nats-Service-Error-Code", "500"))
    said: Json = {}
    with suppress(ValueError, KeyError, TypeError):
        said = dict(json.loads(payload)["error"])
    retry_after_s = headers.get("Retry-After")
    kind = _KINDS.get(status, RequestRefused if status < 500 else ServerFault)
    return kind(
        said.get("message") or headers["Nats-Service-Error"],
        code=said.get("code") or "unknown",
        status=status,
        param=said.get("param"),
        retry_after_s=None if retry_after_s is None else float(retry_after_s),
    )
