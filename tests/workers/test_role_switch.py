"""A worker takes another role while it lives: its work moves or ends, its cache stays, one role stands."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from proto.names import new_id
from proto.roles import Role, RoleProgress, SwitchRole, WorkerState
from services.servers import Server
from tests.workers.harness import Client, Fleet, open_client, random_prompt
from workers.engine.simulated_model import SimulatedModel

PATIENT_S = 30.0
MODEL = SimulatedModel(step_s=0.005, prefill_token_s=0.0005, first_token=10, num_tokens=400)


@pytest.fixture(scope="module")
def fleet(
    nats_server: Server, etcd_server: Server, tiny: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """Two simulated decode workers; who changes its role is back at the end of each test."""
    fleet = Fleet(nats_server, etcd_server, f"test-{new_id()}", tmp_path_factory.mktemp("roles"))
    try:
        for name in ("left", "right"):
            start(fleet, tiny, name)
        asyncio.run(fleet.wait_ready("left", "right"))
        yield fleet
    finally:
        fleet.close()


def start(fleet: Fleet, model: Path, name: str, role: Role = Role.DECODE, **settings: Any) -> None:
    common: dict[str, Any] = {
        "engine": "simulated",
        "simulated": MODEL,
        "num_blocks": 256,
        "step_tokens": 128,
        "remote_min_tokens": 24,
        "prefill_choice": "threshold",
    }
    fleet.start(name, role, model, **(common | settings))


def run_client(fleet: Fleet, body: Callable[[Client], Awaitable[None]]) -> None:
    async def run() -> None:
        async with open_client(fleet, "tiny") as client:
            await client.wait(lambda: {"left", "right"} <= client.reports.keys())
            await body(client)

    asyncio.run(run())


async def order(client: Client, worker: str, role: Role, **fields: Any) -> RoleProgress:
    return await client.ask(worker, SwitchRole(role, **fields), RoleProgress)


async def become(client: Client, worker: str, role: Role, **fields: Any) -> int:
    """Order it, and wait for it; the epoch that began."""
    epoch = (await order(client, worker, role, **fields)).epoch + 1
    await wait_role(client, worker, role, epoch)
    return epoch


async def wait_role(client: Client, worker: str, role: Role, epoch: int) -> None:
    def has_role() -> bool:
        report = client.reports[worker]
        return (report.role, report.epoch, report.state) == (role, epoch, WorkerState.READY)

    await client.wait(has_role, PATIENT_S)


def test_an_idle_worker_goes_there_and_back_and_serves_in_each_role(fleet: Fleet) -> None:
    async def body(client: Client) -> None:
        prompt = random_prompt(200, 1)
        await client.generate("left", prompt)
        assert await become(client, "left", Role.PREFILL) == 2
        remote = await client.generate("right", prompt)
        assert (remote.final.prefill, remote.final.prefill_worker) == ("remote", "left")
        assert await become(client, "left", Role.DECODE) == 3
        again = await client.generate("left", prompt, epoch=3)
        assert again.final.cached_tokens == 192
        await client.wait_rest("left", "right")

    run_client(fleet, body)
