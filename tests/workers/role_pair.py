"""Two decode workers whose roles a test changes, and the words that it says to them."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from proto.hand_over import Drain
from proto.requests import Refused
from proto.roles import AskRole, Role, RoleProgress, SwitchRole, TakeBackRole, WorkerState
from tests.workers.harness import Client, Fleet, Stream, Worker, open_client, random_prompt, until
from workers.engine.simulated_model import SimulatedModel

PATIENT_S = 30.0
LONG = 2000
"""Tokens of a stream that does not end by itself while a test looks."""
MODEL = SimulatedModel(step_s=0.01, prefill_token_s=0.001, first_token=10, num_tokens=400)


def open_pair(fleet: Fleet, model: Path, **settings: Any) -> Iterator[Fleet]:
    try:
        for name in ("left", "right"):
            start(fleet, model, name, **settings)
        asyncio.run(fleet.wait_ready("left", "right"))
        yield fleet
    finally:
        fleet.close()


def start(fleet: Fleet, model: Path, name: str, role: Role = Role.DECODE, **settings: Any) -> Worker:
    common: dict[str, Any] = {
        "engine": "simulated",
        "simulated": MODEL,
        "num_blocks": 300,
        "step_tokens": 128,
        "remote_min_tokens": 24,
        "prefill_choice": "threshold",
        "grant_wait_s": 2 * PATIENT_S,
        "max_jobs": 1,
    }
    return fleet.start(name, role, model, **(common | settings))


def run_client(fleet: Fleet, body: Callable[[Client], Awaitable[None]]) -> None:
    async def run() -> None:
        async with open_client(fleet, "tiny") as client:
            await client.wait(lambda: {"left", "right"} <= client.reports.keys())
            for worker in ("left", "right"):
                if (await ask_role(client, worker)).role is Role.PREFILL:
                    await become(client, worker, Role.DECODE)
            await body(client)

    asyncio.run(run())


async def ask_role(client: Client, worker: str) -> RoleProgress:
    return await client.ask(worker, AskRole(), RoleProgress)


async def order(client: Client, worker: str, role: Role, **fields: Any) -> RoleProgress:
    return await client.ask(worker, SwitchRole(role, **fields), RoleProgress)


async def become(client: Client, worker: str, role: Role, **fields: Any) -> int:
    """Order it, and wait for it; the epoch that began."""
    epoch = (await ask_role(client, worker)).epoch + 1
    await order(client, worker, role, **fields)
    await wait_role(client, worker, role, epoch)
    return epoch


async def wait_role(client: Client, worker: str, role: Role, epoch: int) -> None:
    def has_role() -> bool:
        report = client.reports[worker]
        return (report.role, report.epoch, report.state) == (role, epoch, WorkerState.READY)

    await client.wait(has_role, PATIENT_S)


async def wait_kept(client: Client, worker: str, reason: str) -> RoleProgress:
    """Until a switch has ended with the old role."""

    async def is_kept() -> bool:
        progress = await ask_role(client, worker)
        return progress.wanted is None and progress.state is WorkerState.READY

    await until(f"{worker} keeps its role", is_kept, PATIENT_S)
    kept = await ask_role(client, worker)
    assert re.search(reason, kept.reason), kept
    return kept


async def begin(client: Client, worker: str, prompt: list[int], **fields: Any) -> Stream:
    """As the client's, with the stamp of the worker's present epoch."""
    epoch = (await ask_role(client, worker)).epoch
    return await client.begin(worker, prompt, epoch=epoch, **fields)


async def generate(client: Client, worker: str, prompt: list[int], **fields: Any) -> Stream:
    stream = await begin(client, worker, prompt, **fields)
    await client.finish(stream, 2 * PATIENT_S)
    return stream


async def begin_long(client: Client, worker: str, seed: int) -> Stream:
    """A short prompt's stream that runs."""
    stream = await begin(client, worker, random_prompt(8, seed), max_tokens=LONG)
    await client.wait(lambda: len(stream.tokens) >= 5, PATIENT_S)
    return stream


async def refusal(client: Client, worker: str, request: SwitchRole | TakeBackRole | Drain) -> str:
    reply = await client.control(worker, request)
    assert isinstance(reply, Refused), reply
    return " ".join(str(value) for value in reply.fault.values.values())
