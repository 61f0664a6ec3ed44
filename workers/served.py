"""What this worker serves: one entry per attempt, from acceptance to its end."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from proto.errors import Fault
from proto.requests import FinishReason, GenerateRequest
from proto.streams import End, Prefilled
from services.tracing import TraceContext
from workers.outbox import Outgoing
from workers.request_spec import sequence_name
from workers.roles.hand_over_taker import Taken, Taking
from workers.roles.owned_job import OwnedJob


@dataclass(slots=True)
class Served:
    """One attempt in the engine. `timer` ends it at its deadline; `trace` is where its spans belong. `taking`
    is the hand-over by which it came, `origin` how its prompt was prefilled before that. `prompt_logprobs`
    are the records of the prompt's tokens, known from its first token on, if they were asked for. `num_steps`
    gave its tokens, and each may have given several.

    Units: `began_s` and `first_s` on the monotonic clock.
    """

    request: GenerateRequest
    stream: Outgoing
    cached_tokens: int
    timer: asyncio.TimerHandle
    trace: TraceContext | None = None
    job: OwnedJob | None = None
    taking: Taking | None = None
    origin: Prefilled | None = None
    prompt_logprobs: bytes = b""
    num_steps: int = 0
    began_s: float = field(default_factory=time.monotonic)
    first_s: float = 0.0

    @property
    def sequence(self) -> str:
        return sequence_name(self.request.request, self.request.attempt)

    def note_taken(self, taken: Taken) -> None:
        """Where its prompt was prefilled is what the client is told, not what of it was found here."""
        self.origin = taken.prefilled
        if taken.prefilled is not None:
            self.cached_tokens = taken.prefilled.cached_tokens
            self.prompt_logprobs = taken.prefilled.prompt_logprobs

    def prefilled(self) -> Prefilled:
        scores = self.prompt_logprobs
        if self.origin is not None and self.job is None:
            return msgspec.structs.replace(self.origin, prompt_logprobs=scores)
        holder = self.job.landed_by if self.job is not None else ""
        return Prefilled(self.cached_tokens, "remote" if holder else "local", holder, scores)

    def end(self, finish: FinishReason | None, fault: Fault | None = None) -> End:
        prefilled = self.prefilled()
        return End(
            finish,
            fault,
            cached_tokens=prefilled.cached_tokens,
            prefill=prefilled.place,
            prefill_worker=prefilled.worker,
            prefill_s=max(0.0, self.first_s - self.began_s),
        )


class ServedTable:
    """All attempts in the engine, by sequence and by request; belongs to the event loop."""

    def __init__(self) -> None:
        self._by_sequence: dict[str, Served] = {}
        self._by_request: dict[str, dict[int, Served]] = {}
        self._drop_listeners: list[Callable[[Served], None]] = []
        self._emptied = asyncio.Event()
        self._emptied.set()

    def add(self, served: Served) -> None:
        self._by_sequence[served.sequence] = served
        self._by_request.setdefault(served.request.request, {})[served.request.attempt] = served
        self._emptied.clear()

    def find(self, sequence: str) -> Served | None:
        return self._by_sequence.get(sequence)

    def drop(self, served: Served) -> None:
        """Forget an attempt, and its deadline."""
        served.timer.cancel()
        if self._by_sequence.pop(served.sequence, None) is None:
            return
        attempts = self._by_request[served.request.request]
        del attempts[served.request.attempt]
        if not attempts:
            del self._by_request[served.request.request]
        if not self._by_sequence:
            self._emptied.set()
        for listener in self._drop_listeners:
            listener(served)

    def on_drop(self, listener: Callable[[Served], None]) -> None:
        """`listener` is called with each attempt that is no longer served."""
        self._drop_listeners.append(listener)

    async def wait_empty(self) -> None:
        await self._emptied.wait()

    def attempts_up_to(self, request: str, attempt: int) -> list[Served]:
        """Every attempt of `request` that is not later than `attempt`."""
        attempts = self._by_request.get(request, {})
        return [served for number, served in attempts.items() if number <= attempt]

    def of_client(self, client: str) -> list[Served]:
        return [served for served in self._by_sequence.values() if served.request.client == client]

    def all(self) -> list[Served]:
        return list(self._by_sequence.values())

    def __contains__(self, sequence: object) -> bool:
        return sequence in self._by_sequence

    def __len__(self) -> int:
        return len(self._by_sequence)
