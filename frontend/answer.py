"""An answer, whatever door it leaves by: streamed or whole, cancelled upstream the moment its client leaves.

What a door adds is a `Reply`, where the answer goes, and a `Form`, what it looks like there. No task or queue
stands between the hub and the reply: what waits for a client when it is woken leaves in one piece.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from frontend.form import CountingForm, Form, SpeechForm, WholeChoice
from frontend.generation import Generation, Generator
from frontend.parsing.delta import whole_calls
from frontend.plan import Plan
from frontend.text_choice import Piece
from proto.errors import InternalFault, KvmeshError
from services.logs import logging_request
from services.tasks import open_tasks

log = logging.getLogger(__name__)

# The deadline of a request ends its tokens; a client that reads nothing must not hold its reply longer.
_UNREAD_LIMIT_S = 10.0


class Call(msgspec.Struct, frozen=True):
    """What a client asks for, and how it wants the answer."""

    plan: Plan
    form: Form
    streams: bool


class Reply(ABC):
    """Where one answer goes: `send_whole`, or `start_stream` with all that follows, or an error.

    `has_started` once something has gone to the client, so that an error has no status of its own any more.
    Units: `arrived_s`, when the request came, on the monotonic clock.
    """

    def __init__(self, request_id: str, arrived_s: float) -> None:
        self.request_id = request_id
        self.arrived_s = arrived_s
        self.has_started = False

    @abstractmethod
    async def start_stream(self) -> None:
        """Before any events."""

    @abstractmethod
    async def send_events(self, events: bytes) -> None:
        """Some events, all of them whole."""

    @abstractmethod
    async def end_stream(self, events: bytes) -> None:
        """The last events, and that they are the last."""

    @abstractmethod
    async def send_whole(self, body: bytes) -> None:
        """The answer in one piece."""

    @abstractmethod
    async def refuse(self, error: KvmeshError) -> None:
        """In place of an answer. Raises nothing: there is nobody left to tell."""

    @abstractmethod
    async def break_off(self, error: KvmeshError) -> None:
        """The end of a stream that has failed. Raises nothing."""

    @abstractmethod
    async def wait_left(self) -> None:
        """Returns when the client has left."""


async def send_answer(generator: Generator, call: Call, reply: Reply) -> None:
    """Returns when the answer has ended, in good order, or its client has left."""
    with logging_request(reply.request_id), suppress(_ClientLeft):
        async with open_tasks() as tasks:
            watching = tasks.create_task(_watch_client(reply), name="client")
            await _Answer(generator, call, reply).run()
            watching.cancel()


class _ClientLeft(Exception):
    """Nobody waits for the answer any more; its group cancels what makes it."""


async def _watch_client(reply: Reply) -> None:
    await reply.wait_left()
    raise _ClientLeft


class _Answer:
    """One call's way from the generation to the reply."""

    def __init__(self, generator: Generator, call: Call, reply: Reply) -> None:
        self._generator = generator
        self._plan = call.plan
        self._form = call.form
        self._streams = call.streams
        self._counting = _counting(call.form)
        self._reply = reply

    async def run(self) -> None:
        """Ends the reply in good order, whatever happens but the client's leaving."""
        try:
            async with asyncio.timeout(self._generator.request_limit_s + _UNREAD_LIMIT_S):
                async with self._generator.open(self._plan, self._reply.arrived_s) as generation:
                    await (self._stream if self._streams else self._collect)(generation)
        except KvmeshError as error:
            await self._fail(error)
        except TimeoutError:
            log.info("a client has not read its answer within the deadline")
        except Exception:  # the border: a bug ends one request, with an answer
            log.exception("a request failed")
            await self._fail(InternalFault(reason="see the log"))

    async def _fail(self, error: KvmeshError) -> None:
        if not self._reply.has_started:
            await self._reply.refuse(error)
        elif self._streams:
            await self._reply.break_off(error)

    async def _stream(self, generation: Generation) -> None:
        # before the reply starts, so that an error has its own status
        pieces = await generation.wait_pieces()
        await self._reply.start_stream()
        self._note_usage(generation)
        opening = b"".join(map(self._form.opening, range(generation.num_choices)))
        while pieces:
            self._note_usage(generation)
            events = opening + self._events(generation, pieces)
            opening = b""
            if events:
                await self._reply.send_events(events)
            pieces = await generation.wait_pieces()
        await self._reply.end_stream(self._form.usage(generation.usage()))

    def _note_usage(self, generation: Generation) -> None:
        if self._counting is not None:
            self._counting.note_usage(generation.usage())

    def _events(self, generation: Generation, pieces: Sequence[Piece]) -> bytes:
        events = []
        for piece in pieces:
            if piece.delta is not None:
                assert isinstance(self._form, SpeechForm)  # only chats are told apart
                events.append(self._form.delta(piece.index, piece.delta, piece.tokens))
            elif piece.text or piece.tokens:
                events.append(self._form.text(piece.index, piece.text, piece.tokens))
            if piece.finish is not None:
                facts = generation.facts(piece.index)
                events.append(self._form.finish(piece.index, piece.finish, facts))
        return b"".join(events)

    async def _collect(self, generation: Generation) -> None:
        by_choice: list[list[Piece]] = [[] for _ in range(generation.num_choices)]
        while pieces := await generation.wait_pieces():
            for piece in pieces:
                by_choice[piece.index].append(piece)
        choices = [self._join(generation, index, pieces) for index, pieces in enumerate(by_choice)]
        await self._reply.send_whole(self._form.whole(choices, generation.usage()))

    def _join(self, generation: Generation, index: int, pieces: Sequence[Piece]) -> WholeChoice:
        asked = self._plan.sampling
        tokens = [token for piece in pieces for token in piece.tokens]
        deltas = [piece.delta for piece in pieces if piece.delta is not None]
        return WholeChoice(
            index,
            "".join(piece.text for piece in pieces),
            pieces[-1].finish or "",
            generation.facts(index),
            tokens if tokens or asked.logprobs is not None else None,
            None if asked.prompt_logprobs is None else generation.prompt_scores(index),
            "".join(delta.reasoning for delta in deltas),
            whole_calls(deltas),
        )


def _counting(form: Form) -> CountingForm | None:
    """The form, if its events are to say how far the answer is."""
    return form if isinstance(form, CountingForm) and form.tells_usage_as_it_comes else None
