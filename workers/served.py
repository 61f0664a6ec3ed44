"""What this worker serves: one entry per attempt, from acceptance to its end."""

import asyncio
import time
from dataclasses import dataclass, field

from proto.errors import Fault
from proto.requests import FinishReason, GenerateRequest, PrefillPlace
from proto.streams import End
from workers.outbox import Outgoing
from workers.roles.owned_job import OwnedJob


@dataclass(slots=True)
class Served:
    """One attempt in the engine. Units: `began_s` and `first_s` on the monotonic clock."""

    request: GenerateRequest
    stream: Outgoing
    cached_tokens: int
    place: PrefillPlace = "local"
    prefill_worker: str = ""
    job: OwnedJob | None = None
    began_s: float = field(default_factory=time.monotonic)
    first_s: float = 0.0

    @property
    def sequence(self) -> str:
        return sequence_name(self.request.request, self.request.attempt)

    def end(self, finish: FinishReason | None, fault: Fault | None = None) -> End:
        return End(
            finish,
            fault,
            cached_tokens=self.cached_tokens,
            prefill=self.place,
            prefill_worker=self.prefill_worker,
            prefill_s=max(0.0, self.first_s - self.began_s),
        )


def sequence_name(request: str, attempt: int) -> str:
    return f"{request}/{attempt}"


class ServedTable:
    """All attempts in the engine, by request; belongs to the event loop."""

    def __init__(self) -> None:
        self._by_sequence: dict[str, Served] = {}
        self._emptied = asyncio.Event()
        self._emptied.set()

    def add(self, served: Served) -> None:
        self._by_sequence[served.sequence] = served
        self._emptied.clear()

    def find(self, sequence: str) -> Served | None:
        return self._by_sequence.get(sequence)

    def drop(self, served: Served) -> None:
        self._by_sequence.pop(served.sequence, None)
        if not self._by_sequence:
            self._emptied.set()

    async def wait_empty(self) -> None:
        await self._emptied.wait()

    def attempts_up_to(self, request: str, attempt: int) -> list[Served]:
        """Every attempt of `request` that is not later than `attempt`."""
        return [
            served
            for number in range(attempt + 1)
            if (served := self._by_sequence.get(sequence_name(request, number))) is not None
        ]

    def of_client(self, client: str) -> list[Served]:
        return [served for served in self._by_sequence.values() if served.request.client == client]

    def all(self) -> list[Served]:
        return list(self._by_sequence.values())

    def __len__(self) -> int:
        return len(self._by_sequence)
