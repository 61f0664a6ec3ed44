"""Simulated workers take other roles as those that compute do."""

import asyncio
from pathlib import Path

import httpx

from proto.roles import AskRole, Role, RoleProgress, SwitchRole
from services.admin import AdminSettings
from services.servers import Server, reserve_port
from tests.services.waiting import wait_for
from tests.workers.harness import random_prompt, until
from tests.workers.simulated.scene import MODEL, Scene, open_scene, settings_of

NUM_FLIPS = 6
NUM_TOGETHER = 4
LIMIT_S = 30.0


async def ask_role(scene: Scene, worker: str) -> RoleProgress:
    reply = await scene.control(worker, AskRole())
    assert isinstance(reply, RoleProgress)
    return reply


async def become(scene: Scene, worker: str, role: Role) -> None:
    """Until it says so and awaits nothing more: a role that is not announced yet takes no next order."""
    reply = await scene.control(worker, SwitchRole(role))
    assert isinstance(reply, RoleProgress), reply

    async def has_become() -> bool:
        progress = await ask_role(scene, worker)
        return progress.role is role and progress.wanted is None

    await until(f"{worker} is a {role} worker", has_become, LIMIT_S)


def test_requests_go_on_while_a_worker_goes_there_and_back(
    nats_server: Server, etcd_server: Server, text_folder: Path
) -> None:
    """While it prefills, the other sends it every prompt; while it does not, nobody prefills for others."""
    settings = settings_of(nats_server, etcd_server, text_folder, workers=2, prefill_choice="threshold")

    async def ask_on(scene: Scene, seed: int, over: asyncio.Event) -> int:
        """How many were answered, one after the other; each of them whole, or the client says so."""
        number = 0
        while not over.is_set():
            answer = await scene.client.ask(MODEL, random_prompt(200, seed + number), 20)
            assert answer.end is not None and answer.end.finish == "length", answer.end
            number += 1
        return number

    async def body() -> None:
        over = asyncio.Event()
        async with open_scene(settings) as scene, asyncio.TaskGroup() as tasks:
            asking = [tasks.create_task(ask_on(scene, 1000 * client, over)) for client in range(NUM_TOGETHER)]
            for _ in range(NUM_FLIPS // 2):
                for role in (Role.PREFILL, Role.DECODE):
                    await become(scene, "sim-0", role)
                    served = scene.crowd.workers["sim-0"].term
                    await wait_for(lambda term=served: term.num_served > 0, LIMIT_S)  # type: ignore[misc]
            over.set()
            await asyncio.wait(asking)
            assert (await ask_role(scene, "sim-0")).epoch == 1 + NUM_FLIPS
            assert all(task.result() for task in asking)

    asyncio.run(body())


def test_the_role_of_each_worker_of_a_process_is_ordered_over_http_and_kept_by_the_next_process(
    nats_server: Server, etcd_server: Server, text_folder: Path
) -> None:
    port = reserve_port()
    admin = AdminSettings(port=port)
    settings = settings_of(nats_server, etcd_server, text_folder, workers=2, admin=admin)

    async def body() -> None:
        async with open_scene(settings) as scene, httpx.AsyncClient(trust_env=False) as http:
            url = f"http://127.0.0.1:{port}/role"
            assert (await http.post(f"{url}/sim-1", json={"role": "prefill"})).status_code == 202
            await wait_for(lambda: scene.crowd.workers["sim-1"].term.role is Role.PREFILL, LIMIT_S)
            assert (await http.get(f"{url}/sim-0")).json()["role"] == "decode"
            assert (await http.get(f"{url}/sim-9")).status_code == 400
        async with open_scene(settings) as scene:
            terms = {name: worker.term for name, worker in scene.crowd.workers.items()}
            assert (terms["sim-1"].role, terms["sim-1"].epoch) == (Role.PREFILL, 2)
            assert (terms["sim-0"].role, terms["sim-0"].epoch) == (Role.DECODE, 1)

    asyncio.run(body())
