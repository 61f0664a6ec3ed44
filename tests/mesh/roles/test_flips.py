"""Workers flip between the roles under mixed requests: no answer fails or changes, and all stays flat."""

import asyncio
import os
import random
from collections.abc import Iterator

import httpx
import pytest

from proto.roles import Role
from tests.mesh.equality.rows import BLOCK, CONTEXT
from tests.mesh.roles.figures import Figures, read_figures
from tests.mesh.roles.mixture import LIMIT_S, Mixture, Verdicts, learn
from tests.mesh.roles.switching import Flip, Operator, open_operator, other
from tests.mesh.running_mesh import RunningMesh, run_mesh
from tests.tiny_model import write_tiny

SEED_VARIABLE = "TEST_SEED"
NUM_CLIENTS = 16
GROWTH_MIB = 48.0
ENVIRON = {
    "KVMESH_WORKER_BLOCK_SIZE": str(BLOCK),
    "KVMESH_WORKER_NUM_BLOCKS": "1024",
    "KVMESH_WORKER_REMOTE_MIN_TOKENS": str(BLOCK),
    "KVMESH_WORKER_PREFILL_CHOICE": "threshold",
    "KVMESH_WORKER_STEP_TOKENS": "128",
}
WORKERS = ("--decode", "2", "--prefill", "2")


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    """Two decode and two prefill workers that compute; a block of new tokens is prefilled elsewhere."""
    folder = tmp_path_factory.mktemp("flips")
    model = write_tiny(folder / "tiny", context=CONTEXT)
    with run_mesh(folder / "state", str(model), *WORKERS, environ=ENVIRON) as mesh:
        mesh.wait_until("all workers are ready", lambda: "ready after" in mesh.output(), 60)
        yield mesh


class Flipper:
    """Has workers change their roles, at random, each after the one before has worked in its new role."""

    def __init__(self, operator: Operator, workers: list[str], chosen: random.Random) -> None:
        self.flips: list[Flip] = []
        self._operator = operator
        self._workers = workers
        self._random = chosen

    async def flip_one(self) -> None:
        roles = {worker: (await self._operator.ask(worker)).role for worker in self._workers}
        decoders = [worker for worker, role in roles.items() if role is Role.DECODE]
        may = [worker for worker in self._workers if decoders != [worker] and worker != self._last]
        worker = self._random.choice(may)
        self.flips.append(await self._operator.become(worker, other(roles[worker])))
        await self._operator.wait_served(self.flips[-1])

    @property
    def _last(self) -> str:
        return self.flips[-1].worker if self.flips else ""


@pytest.mark.timeout(300)
def test_eight_flips_under_three_hundred_requests_change_no_answer(mesh: RunningMesh) -> None:
    asyncio.run(flip_under_load(mesh, num_flips=8, num_requests=300))
    mesh.wait_at_rest()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_sixty_flips_under_three_thousand_requests_change_no_answer_and_leave_all_flat(
    mesh: RunningMesh,
) -> None:
    asyncio.run(flip_under_load(mesh, num_flips=6, num_requests=300))
    mesh.wait_at_rest()
    before = read_figures(mesh)
    asyncio.run(flip_under_load(mesh, num_flips=60, num_requests=3000))
    mesh.wait_at_rest()
    check_flat(before, read_figures(mesh))
    workers = mesh.worker_names().values()
    pulled = sum(mesh.metric(child, "kvmesh_hand_overs_total", outcome="pulled") for child in workers)
    assert pulled > 0, "nothing ever ran where a role was changed"


async def flip_under_load(mesh: RunningMesh, num_flips: int, num_requests: int) -> None:
    seed = int(os.environ.get(SEED_VARIABLE, random.SystemRandom().randrange(10**6)))
    print(f"{SEED_VARIABLE}={seed}")
    names = mesh.worker_names()
    limits = httpx.Limits(max_connections=None)
    async with (
        open_operator(mesh) as operator,
        httpx.AsyncClient(base_url=mesh.url, timeout=LIMIT_S, limits=limits, trust_env=False) as http,
        asyncio.TaskGroup() as tasks,
    ):
        (model,) = mesh.models()
        mixture = Mixture(http, model, await learn(http, model), seed)
        for number in range(NUM_CLIENTS):
            tasks.create_task(mixture.come(), name=f"client {number}")
        flipper = Flipper(operator, list(names), random.Random(seed))
        for number in range(num_flips):
            await mixture.wait_asked(number * num_requests // num_flips)
            await flipper.flip_one()
        await mixture.wait_asked(num_requests)
        mixture.is_over = True
    check_verdicts(mixture.verdicts, num_requests)
    check_served(mesh, names, flipper.flips)


def check_verdicts(verdicts: Verdicts, num_requests: int) -> None:
    print(f"{verdicts.num_right} right, {verdicts.num_left} left early")
    assert (verdicts.failed, verdicts.changed) == ([], [])
    assert verdicts.num_asked >= num_requests
    assert verdicts.num_left > 0


def check_served(mesh: RunningMesh, names: dict[str, str], flips: list[Flip]) -> None:
    """Every worker that took a role has worked in it, as its counters tell."""
    took_s = sorted(flip.took_s for flip in flips)
    print(f"{len(flips)} flips, half of them within {took_s[len(took_s) // 2]:.3f} s, all {took_s[-1]:.3f} s")
    for flip in flips:
        labels = {"role": flip.role.value, "epoch": str(flip.epoch)}
        assert mesh.metric(names[flip.worker], "kvmesh_served_total", **labels) > 0, flip


def check_flat(before: dict[str, Figures], after: dict[str, Figures]) -> None:
    """Pools of threads fill as they are used: no worker has more in the end than any had in the beginning."""
    most_threads = max(was.num_threads for was in before.values())
    for child, was in before.items():
        now = after[child]
        print(child, was, now)
        assert now.blocks == was.blocks
        assert now.num_threads <= most_threads, (child, was, now)
        assert now.num_files <= was.num_files + 8, (child, was, now)
        assert now.private_mib <= was.private_mib + GROWTH_MIB, (child, was, now)
