"""What changes of role cost those who are being answered: 24 streams on the default model.

Run: `python -m tests.perf.roles`, some five minutes. Four workers of one thread each share the cores that
there are: three decode and one prefill, and each of the three prefills for a while and comes back, again and
again. Every prompt is cold, and prefilled elsewhere.

`flip_s` is from the order to the worker's word that it is ready in the new role, as an operator sees it.
`itl_p99_ratio` compares gaps between the tokens of a stream: those of which some part falls into a flip, with
those from before the first flip and after the last one. `itl_ms_p99` has both, and those between flips.
`stage_s_max` is the longest that any flip was in each stage. `changed` are answers unlike the first one to
the same prompt.
"""

import asyncio
import itertools
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from proto.names import new_id
from proto.roles import Role
from services.models.folder import resolve_model
from tests.mesh.roles.switching import Flip, Operator, open_operator
from tests.mesh.running_mesh import RunningMesh, run_mesh
from tests.perf.mesh import percentile
from tests.perf.sse_load import WORDS

MODEL = "smollm2-135m"
NUM_STREAMS = 24
NUM_DECODE = 3
NUM_WORDS = 40
NUM_TOKENS = (48, 56, 64, 72)
"""Answers end at different times, so that prompts come one by one."""
QUIET_S = 40.0
SETTLE_S = 2.0
ROUNDS = 3
LIMIT_S = 120.0
WORKERS = ("--decode", str(NUM_DECODE), "--prefill", "1")
REMOTE = {"KVMESH_WORKER_REMOTE_MIN_TOKENS": "32", "KVMESH_WORKER_PREFILL_CHOICE": "threshold"}
"""Every prompt is prefilled elsewhere, so that prefill workers have work."""


@dataclass
class Reading:
    """One answer. Units: `at_s` on the monotonic clock, when each piece of its text came."""

    number: int
    at_s: list[float] = field(default_factory=list)
    text: str = ""
    finish: str | None = None
    fault: str = ""

    @property
    def gaps(self) -> Iterator[tuple[float, float]]:
        return itertools.pairwise(self.at_s)

    def take(self, line: str) -> None:
        if not line.startswith("data: {"):
            return
        event = json.loads(line.removeprefix("data: "))
        self.fault += json.dumps(event["error"]) if "error" in event else ""
        for choice in event.get("choices", ()):
            self.finish = choice["finish_reason"] or self.finish
            if choice["text"]:
                self.text += choice["text"]
                self.at_s.append(time.monotonic())


class Streams:
    """Clients who ask the same again and again, with nothing cached. Belongs to the event loop."""

    def __init__(self, http: httpx.AsyncClient, model: str) -> None:
        self.readings: list[Reading] = []
        self.is_over = False
        self._http = http
        self._model = model

    @property
    def ended(self) -> list[Reading]:
        return [reading for reading in self.readings if reading.finish or reading.fault]

    async def read(self, number: int) -> None:
        while not self.is_over:
            reading = Reading(number)
            self.readings.append(reading)
            try:
                await self._read(reading)
            except httpx.HTTPError as error:
                reading.fault = repr(error)

    async def _read(self, reading: Reading) -> None:
        body = {
            "model": self._model,
            "prompt": " ".join(random.Random(reading.number).choices(WORDS, k=NUM_WORDS)),
            "max_tokens": NUM_TOKENS[reading.number % len(NUM_TOKENS)],
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "cache_salt": new_id(),
        }
        async with self._http.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != 200:
                reading.fault = (await response.aread()).decode()
            async for line in response.aiter_lines():
                reading.take(line)


async def flip_all(operator: Operator, workers: list[str]) -> list[Flip]:
    """Each of `workers` in turn prefills, works as such, and decodes again, and works as such."""
    flips = []
    for worker in workers * ROUNDS:
        for role in (Role.PREFILL, Role.DECODE):
            flips.append(await operator.become(worker, role))
            print(told(flips[-1]), flush=True)
            await operator.wait_served(flips[-1])
    return flips


def told(flip: Flip) -> str:
    stages = ", ".join(f"{stage} {took_s:.3f}" for stage, took_s in flip.stage_s.items())
    return f"{flip.worker} is a {flip.role} worker after {flip.took_s:.3f} s ({stages})"


async def run(mesh: RunningMesh) -> dict[str, object]:
    decoders = [worker for worker, child in mesh.worker_names().items() if child.startswith("decode")]
    limits = httpx.Limits(max_connections=None)
    async with (
        open_operator(mesh) as operator,
        httpx.AsyncClient(base_url=mesh.url, timeout=LIMIT_S, limits=limits, trust_env=False) as http,
        asyncio.TaskGroup() as tasks,
    ):
        streams = Streams(http, mesh.models()[0])
        for number in range(NUM_STREAMS):
            tasks.create_task(streams.read(number), name=f"stream {number}")
        await asyncio.sleep(QUIET_S)
        flips = await flip_all(operator, decoders)
        await asyncio.sleep(QUIET_S)
        streams.is_over = True
    return summary(streams.readings, flips)


def summary(readings: list[Reading], flips: list[Flip]) -> dict[str, object]:
    took_s = [flip.took_s for flip in flips]
    first: dict[int, str] = {}
    for reading in readings:
        first.setdefault(reading.number, reading.text)
    p99_ms = {name: percentile(gaps, 0.99) * 1e3 for name, gaps in gaps_by_time(readings, flips).items()}
    return {
        "flips": len(flips),
        "requests": len(readings),
        "failed": sum(one.fault != "" or one.finish != "length" for one in readings),
        "changed": sum(one.text != first[one.number] for one in readings if one.finish == "length"),
        "flip_s_p50": round(statistics.median(took_s), 3),
        "flip_s_max": round(max(took_s), 3),
        "stage_s_max": longest_stages(flips),
        "itl_p99_ratio": round(p99_ms["in flips"] / p99_ms["undisturbed"], 2),
        "itl_ms_p99": {name: round(each_ms, 1) for name, each_ms in p99_ms.items()},
    }


def longest_stages(flips: list[Flip]) -> dict[str, float]:
    longest: dict[str, float] = {}
    for stage, took_s in itertools.chain.from_iterable(flip.stage_s.items() for flip in flips):
        longest[stage] = max(longest.get(stage, 0.0), round(took_s, 3))
    return longest


def gaps_by_time(readings: list[Reading], flips: list[Flip]) -> dict[str, list[float]]:
    """Seconds between tokens: long before and after all flips, in a flip at least in part, and between."""
    gaps: dict[str, list[float]] = {"undisturbed": [], "in flips": [], "between": []}
    for early_s, late_s in itertools.chain.from_iterable(reading.gaps for reading in readings):
        if late_s < flips[0].began_s or early_s > flips[-1].ended_s + SETTLE_S:
            gaps["undisturbed"].append(late_s - early_s)
        elif any(flip.began_s < late_s and early_s < flip.ended_s for flip in flips):
            gaps["in flips"].append(late_s - early_s)
        else:
            gaps["between"].append(late_s - early_s)
    return gaps


def measure(model: str) -> dict[str, object]:
    with (
        tempfile.TemporaryDirectory() as folder,
        run_mesh(Path(folder, "state"), model, *WORKERS, environ=REMOTE) as mesh,
    ):
        mesh.wait_until("all workers are ready", lambda: "ready after" in mesh.output(), 120)
        line = asyncio.run(run(mesh))
        mesh.wait_at_rest()
    return line


def main() -> None:
    print(json.dumps(measure(str(resolve_model(MODEL).path))))


if __name__ == "__main__":
    main()
