"""A prefill worker and a decode worker of two grids, and one process that says what their tokens must be."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from proto import keys
from proto.cards import AgentCard
from proto.codec import decode
from proto.requests import KvSource
from proto.roles import AskRole, Role, RoleProgress, SwitchRole, WorkerState
from services.directory import DirectorySettings, open_directory
from tests.mesh.pairings import Pairing
from tests.mesh.ranks.one_process import OneProcess
from tests.workers.harness import Client, Fleet, Stream, open_client, random_prompt, until
from workers.transfer.transfer_settings import TransferSettings

NAMES = ("prefill", "decode")
START_S, PATIENT_S = 180.0, 60.0
NUM_TRIES = 5
SETTINGS: dict[str, Any] = {
    "num_blocks": 300,
    "step_tokens": 80,
    "push_kib": 1,
    "remote_min_tokens": 24,
    "prefill_choice": "threshold",
    "grant_wait_s": 10.0,
    "bulk_pull_mib": 0,
    "lost_after_s": 3.0,  # so many processes on few cores are silent for a while now and then
    "rank_silent_s": 3.0,
    "lease_ttl_s": 6,
}

Fate = Literal["loses a rank", "has a rank stopped", "loses its leader", "is told to end"]


@dataclass
class GridPair:
    """The two workers, of a namespace of their own, how those of many ranks end, and the tokens of one
    process."""

    fleet: Fleet
    pairing: Pairing
    fate: Fate
    _alone: OneProcess

    def run(self, body: Callable[[Client], Awaitable[None]]) -> None:
        """`body` gets a client once both workers are what they are called."""

        async def run() -> None:
            async with open_client(self.fleet, "tiny") as client:
                await client.wait(lambda: set(NAMES) <= client.reports.keys(), PATIENT_S)
                await client.wait_report("prefill", lambda report: report.num_jobs == 0)
                await body(client)

        asyncio.run(run())

    async def expected(self, prompt: list[int], max_tokens: int = 8) -> list[int]:
        return await asyncio.to_thread(self._alone.tokens, prompt, max_tokens)

    async def metric(self, worker: str, name: str) -> float:
        return await asyncio.to_thread(self.fleet.worker(worker).metric, name)

    async def card(self, worker: str) -> AgentCard:
        """Which processes it has."""
        async with open_directory(DirectorySettings(endpoints=[self.fleet.etcd.url])) as directory:
            entry = await directory.get(keys.agent(self.fleet.ns, worker))
        assert entry is not None
        return decode(entry.value, AgentCard)

    async def wait_unlisted(self, worker: str) -> None:
        """Until the directory has nothing of the worker any more."""
        ns = self.fleet.ns
        async with open_directory(DirectorySettings(endpoints=[self.fleet.etcd.url])) as directory:

            async def is_unlisted() -> bool:
                return not any([await directory.get(key(ns, worker)) for key in (keys.worker, keys.agent)])

            await until(f"{worker} is not listed", is_unlisted)


async def become(client: Client, worker: str, role: Role) -> int:
    """Order it, and wait for it; the epoch that began."""
    epoch = (await client.ask(worker, AskRole(), RoleProgress)).epoch + 1

    async def is_ordered() -> bool:
        """Refused until the card of who has just become a decode worker says so: its beats are quicker."""
        return isinstance(await client.control(worker, SwitchRole(role)), RoleProgress)

    await until(f"{worker} is to become a {role} worker", is_ordered)

    def has_role() -> bool:
        report = client.reports[worker]
        return (report.role, report.epoch, report.state) == (role, epoch, WorkerState.READY)

    await client.wait(has_role, PATIENT_S)
    return epoch


async def begin(client: Client, worker: str, prompt: list[int], **fields: Any) -> Stream:
    """As the client's, with the stamp of the worker's present epoch."""
    return await client.begin(worker, prompt, epoch=client.reports[worker].epoch, **fields)


async def move(client: Client, stream: Stream, prompt: list[int], taker: str, **fields: Any) -> Stream:
    """The successor of `stream` at the taker, beginning at the tokens so far."""
    source = KvSource(stream.worker, client.reports[stream.worker].incarnation, stream.attempt)
    before = {"request": stream.request, "attempt": stream.attempt + 1, "generated": list(stream.tokens)}
    return await begin(client, taker, prompt, source=source, **before, **fields)


async def begin_granted(client: Client, num_tokens: int, seed: int) -> tuple[list[int], Stream]:
    """A request whose prompt is being prefilled elsewhere, and that prompt."""
    for number in range(NUM_TRIES):
        await client.wait_report("prefill", lambda report: report.num_jobs == 0)
        prompt = random_prompt(num_tokens, seed + number)
        stream = await begin(client, "decode", prompt)

        async def is_decided(stream: Stream = stream) -> bool:
            return bool(stream.tokens or (await client.holdings("decode")).granted)

        await until("a grant is open, or none was asked for", is_decided, PATIENT_S)
        if not stream.tokens:
            return prompt, stream
        await client.finish(stream, PATIENT_S)
    raise AssertionError("no prompt is prefilled elsewhere")


async def prefill_elsewhere(
    client: Client, worker: str, num_tokens: int, seed: int
) -> tuple[list[int], Stream]:
    """A request whose prompt was prefilled elsewhere, once it has ended, and that prompt."""
    tried: list[tuple[list[int], Stream]] = []

    async def is_remote() -> bool:
        """Not at once: who has another role now must be heard of, and who failed is not asked for a while."""
        prompt = random_prompt(num_tokens, seed + len(tried))
        tried.append((prompt, await begin(client, worker, prompt)))
        return (await client.finish(tried[-1][1], PATIENT_S)).prefill == "remote"

    await until("a prompt is prefilled elsewhere", is_remote, PATIENT_S)
    return tried[-1]


@contextmanager
def open_pair(fleet: Fleet, model: Path, pairing: Pairing) -> Iterator[None]:
    """Both are ready for the time of the body."""
    fields = {**SETTINGS, "transfer": TransferSettings(strategy=pairing.strategy)}
    for name, role, grid in zip(NAMES, (Role.PREFILL, Role.DECODE), pairing[:2], strict=True):
        fleet.start(name, role, model, tp=grid.tp, pp=grid.pp, **fields)
    try:
        asyncio.run(fleet.wait_ready(*NAMES, limit_s=START_S))
        yield
    finally:
        fleet.close()
