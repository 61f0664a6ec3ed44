"""`kvmesh role` as an operator uses it, on workers of a simulated process."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from proto import keys
from proto.codec import encode
from proto.errors import Disconnected, InvalidRequest, from_fault
from proto.hand_over import Drain
from proto.names import new_id
from proto.requests import Refused
from proto.roles import AskRole, DrainMode, Role, RoleProgress, SwitchRole, TakeBackRole, WorkerState
from proto.subjects import worker_control
from services.bus import BusSettings, open_bus
from services.orders import read_card
from services.process import EXIT_FAILED
from services.role import switch_role
from services.servers import Server
from tests.services.waiting import wait_for
from tests.tiny_model import write_tiny
from tests.workers.harness import random_prompt
from tests.workers.simulated.scene import Scene, open_scene, settings_of

LIMIT_S = 30.0


def run_scene(nats: Server, etcd: Server, folder: Path, body: Callable[[Scene], Awaitable[None]]) -> None:
    """Two decode workers."""

    async def run() -> None:
        async with open_scene(settings_of(nats, etcd, write_tiny(folder / "tiny"), workers=2)) as scene:
            await body(scene)

    asyncio.run(run())


async def kvmesh_role(scene: Scene, *words: str) -> tuple[int, str, str]:
    """Exit code, what it said, and what went wrong."""
    where = ("--nats", scene.settings.bus.url, "--etcd", scene.settings.directory.endpoints[0])
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli", "role", *words, *where, "--ns", scene.ns),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, wrong = await process.communicate()
    return process.returncode or 0, said.decode(), wrong.decode()


def test_a_role_is_shown_ordered_and_refused_in_one_line(
    nats_server: Server, etcd_server: Server, tmp_path: Path
) -> None:
    async def body(scene: Scene) -> None:
        shown, ordered = await asyncio.gather(
            kvmesh_role(scene, "sim-1"), kvmesh_role(scene, "sim-0", "prefill")
        )
        assert shown[:2] == (0, "sim-1 is a decode worker in epoch 1, and ready\n")
        code, said, _ = ordered
        assert code == 0
        assert said.splitlines()[-1].startswith("sim-0 is a prefill worker in epoch 2, after ")
        refused, unknown = await asyncio.gather(
            kvmesh_role(scene, "sim-1", "prefill"), kvmesh_role(scene, "nobody", "decode")
        )
        last = "sim-1 is the last ready decode worker of 'tiny'"
        assert (refused[0], refused[2].splitlines()[-1]) == (EXIT_FAILED, f"kvmesh: worker: {last}")
        assert unknown[:2] == (EXIT_FAILED, "")
        none = "there is no worker 'nobody' that answers; `kvmesh status` names all"
        assert unknown[2].splitlines()[-1] == f"kvmesh: worker: {none}"

    run_scene(nats_server, etcd_server, tmp_path, body)


def test_a_switch_that_is_waited_for_tells_its_stages_and_why_the_old_role_stays(
    nats_server: Server, etcd_server: Server, tmp_path: Path
) -> None:
    async def body(scene: Scene) -> None:
        said: list[str] = []
        order = SwitchRole(Role.PREFILL, DrainMode.FINISH, LIMIT_S)
        async with asyncio.TaskGroup() as tasks:
            prompt = random_prompt(8, 1)
            running = tasks.create_task(scene.client.ask("tiny", prompt, 2500, worker="sim-0"))
            await wait_for(lambda: scene.reports["sim-0"].num_running == 1, LIMIT_S)
            switching = asyncio.ensure_future(switch_role(scene.bus, scene.ns, "sim-0", order, said.append))
            handing_over = "sim-0 on its way to prefill: handing over, 1 left"
            await wait_for(lambda: handing_over in said, LIMIT_S)
            await wait_for(lambda: said[-1].startswith(f"{handing_over}, after "), LIMIT_S)
            assert isinstance(await scene.control("sim-0", TakeBackRole()), RoleProgress)
            with pytest.raises(InvalidRequest, match="sim-0 stays a decode worker: it was taken back"):
                await switching
            running.cancel()

    run_scene(nats_server, etcd_server, tmp_path, body)


def test_no_model_is_left_to_a_worker_whose_card_outlives_its_beats(
    nats_server: Server, etcd_server: Server, tmp_path: Path
) -> None:
    async def body(scene: Scene) -> None:
        ghost = msgspec.structs.replace(await read_card(scene.directory, scene.ns, "sim-1"), worker="ghost")
        await scene.directory.put(keys.worker(scene.ns, "ghost"), encode(ghost))
        await switch_role(scene.bus, scene.ns, "sim-1", SwitchRole(Role.PREFILL), lambda _: None)
        await wait_for(lambda: scene.crowd.shared.neighbours.is_lost("ghost"), LIMIT_S)
        for word in (SwitchRole(Role.PREFILL), Drain(DrainMode.MOVE, LIMIT_S)):
            refused = await scene.control("sim-0", word)
            assert isinstance(refused, Refused)
            last = "worker: sim-0 is the last ready decode worker of 'tiny', and not heard of: ghost"
            assert str(from_fault(refused.fault)) == last
        shown = await scene.control("sim-0", AskRole())
        assert isinstance(shown, RoleProgress)
        assert (shown.role, shown.epoch, shown.state) == (Role.DECODE, 1, WorkerState.READY)

    run_scene(nats_server, etcd_server, tmp_path, body)


def test_a_silent_worker_is_told_each_second_and_then_that_the_order_may_stand(nats_server: Server) -> None:
    async def run() -> None:
        said: list[str] = []
        ns, order = new_id(), SwitchRole(Role.PREFILL)
        async with open_bus(BusSettings(url=nats_server.url), "test") as bus:
            await bus.subscribe(worker_control(ns, "w"), lambda _: None)
            with pytest.raises(Disconnected, match="w is out of reach"):
                await switch_role(bus, ns, "w", order, said.append)
        assert said[0].startswith("w has not answered yet, after ")
        assert said[-1].startswith("the order may stand all the same: `kvmesh role w` tells")

    asyncio.run(run())
