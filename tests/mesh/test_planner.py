"""A whole mesh with a planner: roles follow the load while it runs, and no request notices."""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.mesh.running_mesh import RunningMesh, run_mesh
from tests.tiny_model import write_tiny_llama

ENVIRON = {
    "KVMESH_SIMULATED_PREFILL_TOKEN_S": "0.002",
    "KVMESH_SIMULATED_PREFILL_DOUBLING_TOKENS": "0",
    "KVMESH_SIMULATED_STEP_S": "0.02",
    "KVMESH_SIMULATED_SEQUENCE_S": "0.004",
    "KVMESH_SIMULATED_FIRST_TOKEN": "3",
    "KVMESH_SIMULATED_NUM_TOKENS": "500",
    "KVMESH_PLANNER_TTFT_S": "8",
    "KVMESH_PLANNER_ITL_S": "0.1",
    "KVMESH_PLANNER_MIN_STAY_S": "5",
    "KVMESH_PLANNER_COOL_DOWN_S": "5",
}
LIMIT_S = 120.0


class Swing:
    """Clients that ask at a steady pace until told otherwise, and how they were answered."""

    def __init__(self, mesh: RunningMesh, http: httpx.AsyncClient) -> None:
        self.statuses: Counter[int] = Counter()
        self._mesh = mesh
        self._http = http
        self._model = mesh.models()[0]

    async def ask_until(
        self, is_so: Callable[[], bool], *, rate: float, prompt_tokens: int, answer_tokens: int
    ) -> None:
        """Asks `rate` times a second; returns once it is so and all are answered."""
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
            number = 0
            while not await asyncio.to_thread(is_so):
                number += 1
                tasks.create_task(self._ask(number, prompt_tokens, answer_tokens), name="client")
                await asyncio.sleep(1.0 / rate)

    async def _ask(self, number: int, prompt_tokens: int, answer_tokens: int) -> None:
        prompt = [3 + (number * 7919 + place) % 500 for place in range(prompt_tokens)]
        body = {"model": self._model, "prompt": prompt, "max_tokens": answer_tokens, "ignore_eos": True}
        reply = await self._http.post("/v1/completions", json=body)
        self.statuses[reply.status_code] += 1


@pytest.mark.slow
def test_roles_follow_prompts_and_then_answers_and_every_request_is_answered(tmp_path: Path) -> None:
    async def body(mesh: RunningMesh) -> None:
        def has_moved(role: str) -> bool:
            return mesh.metric("planner-0", "kvmesh_planner_moves_total", to=role, outcome="done") >= 1

        async with httpx.AsyncClient(base_url=mesh.url, timeout=LIMIT_S, trust_env=False) as http:
            swing = Swing(mesh, http)
            await swing.ask_until(lambda: has_moved("prefill"), rate=1.5, prompt_tokens=1000, answer_tokens=5)
            await swing.ask_until(lambda: has_moved("decode"), rate=3.0, prompt_tokens=20, answer_tokens=150)
        assert set(swing.statuses) == {200}
        assert mesh.metric("planner-0", "kvmesh_planner_moves_total", outcome="failed") == 0
        mesh.wait_at_rest()

    model = write_tiny_llama(tmp_path / "tiny")
    flags = ("--engine", "simulated", "--prefill", "2", "--decode", "2", "--planner")
    with run_mesh(tmp_path / "state", str(model), *flags, environ=ENVIRON) as mesh:
        mesh.wait_until("everybody is ready", lambda: "ready after" in mesh.output(), LIMIT_S)
        asyncio.run(body(mesh))
