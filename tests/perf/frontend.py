"""What a frontend costs: CPU a token, latency alone and beside prompts of 100,000 tokens, memory over time;
and whether it counts time as its clients do.

Run: `python -m tests.perf.frontend`. The mesh, the engine that takes no time and the load are
those of `tests.perf.mesh`, with a context that holds the long prompts. Short requests come from
`SHORT_STREAMS` clients, in phases by turns alone and beside one client that sends long prompts back to back,
each another text. Memory is what the frontend has resident after `NUM_WARM` requests and after `NUM_REQUESTS`
more. `clients_over_metrics` is how much longer one client waited, for first tokens and whole answers, than
`/metrics` says of the same requests: what both processes wait for a core, and the way between them.
"""

import asyncio
import itertools
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import uvloop

from services.models.folder import resolve_model
from tests.mesh.running_mesh import RunningMesh, run_mesh
from tests.perf.mesh import ENGINE, NUM_WORDS, STREAMS, measure, measure_crowds, percentile
from tests.perf.sse_load import Load, Reading, run_client, run_load

CONTEXT_TOKENS = 2**18
ROOM = {"KVMESH_WORKER_NUM_BLOCKS": str(2**15), "KVMESH_WORKER_STEP_TOKENS": "16384"}
ALONE = 200
LONG_WORDS = 100_000
LONG_TEXTS = 24
SHORT_STREAMS = 2
SHORT_REQUESTS = 250
SHORT_TOKENS = 8
PHASES = 6
NUM_WARM = 10_000
NUM_REQUESTS = 100_000
SLICE_REQUESTS = 10_000
MEMORY_STREAMS = 32


@dataclass(frozen=True)
class LongLoad(Load):
    """Bodies made beforehand, since each takes a tenth of a second."""

    bodies: tuple[bytes, ...] = ()

    def body(self, number: int) -> bytes:
        return self.bodies[number % len(self.bodies)]


def clients_over_metrics(mesh: RunningMesh) -> dict[str, float]:
    load = Load(mesh.url, mesh.models()[0], NUM_WORDS, SHORT_TOKENS, seed=50)
    names = {"ttft": "kvmesh_ttft_seconds_sum", "answer": "kvmesh_request_seconds_sum"}
    before = {key: mesh.metric("frontend-0", name) for key, name in names.items()}
    readings = uvloop.run(run_load(load, 1, ALONE))
    told_s = {key: mesh.metric("frontend-0", name) - before[key] for key, name in names.items()}
    felt_s = {
        "ttft": sum(reading.first_s - reading.began_s for reading in readings),
        "answer": sum(reading.ended_s - reading.began_s for reading in readings),
    }
    return {key: round(felt_s[key] / told_s[key], 3) for key in names}


def long_load(mesh: RunningMesh, model: str) -> LongLoad:
    load = Load(mesh.url, model, LONG_WORDS, 1, seed=7)
    bodies = tuple(load.body(number) for number in range(LONG_TEXTS))
    return LongLoad(mesh.url, model, LONG_WORDS, 1, bodies=bodies)


async def _beside(long: LongLoad, numbers: Iterator[int], short: Load) -> list[Reading]:
    async with asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(run_client(long, numbers, []), name="long prompts")
        readings = await run_load(short, SHORT_STREAMS, SHORT_REQUESTS)
        sending.cancel()
    return readings


def short_beside_long(mesh: RunningMesh) -> dict[str, object]:
    """TTFT of short requests, alone and beside long prompts that are being tokenised."""
    model = mesh.models()[0]
    long, numbers = long_load(mesh, model), itertools.count()
    ttft_s: dict[bool, list[float]] = {False: [], True: []}
    num_long = 0.0
    for phase in range(PHASES):
        short = Load(mesh.url, model, NUM_WORDS, SHORT_TOKENS, seed=100 + phase)
        has_long = bool(phase % 2)
        before = mesh.metric("frontend-0", "kvmesh_tokens_in_total")
        readings = uvloop.run(
            _beside(long, numbers, short) if has_long else run_load(short, SHORT_STREAMS, SHORT_REQUESTS)
        )
        num_long += (mesh.metric("frontend-0", "kvmesh_tokens_in_total") - before) // LONG_WORDS
        ttft_s[has_long] += [reading.first_s - reading.began_s for reading in readings]
    alone_s, beside_s = (percentile(ttft_s[has_long], 0.99) for has_long in (False, True))
    return {
        "short_p99_ratio": round(beside_s / alone_s, 2),
        "short_ttft_ms_p99": {"alone": round(alone_s * 1e3, 2), "beside": round(beside_s * 1e3, 2)},
        "long_prompts": int(num_long),
    }


def rss_growth_mib(mesh: RunningMesh) -> float:
    frontend = psutil.Process(mesh.child("frontend-0").pid)
    resident = [0, 0]
    for place, num_requests in enumerate((NUM_WARM, NUM_REQUESTS)):
        for seed in range(0, num_requests, SLICE_REQUESTS):
            load = Load(mesh.url, mesh.models()[0], NUM_WORDS, 2, seed=1000 + place + seed)
            uvloop.run(run_load(load, MEMORY_STREAMS, SLICE_REQUESTS))
        resident[place] = frontend.memory_info().rss
        print(f"{num_requests} requests: {resident[place] / 2**20:.1f} MiB", flush=True)
    return round((resident[1] - resident[0]) / 2**20, 1)


def write_roomy(folder: Path) -> str:
    """The default model, told that its context holds `CONTEXT_TOKENS`; its weights are not needed."""
    model = resolve_model("smollm2-135m").path
    roomy = folder / "roomy"
    roomy.mkdir()
    for path in model.iterdir():
        (roomy / path.name).symlink_to(path)
    config = json.loads((model / "config.json").read_bytes()) | {"max_position_embeddings": CONTEXT_TOKENS}
    (roomy / "config.json").unlink()
    (roomy / "config.json").write_text(json.dumps(config))
    return str(roomy)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        flags = ("--engine", "simulated", "--prefill", "0")
        with run_mesh(folder / "mesh", write_roomy(folder), *flags, environ=ENGINE | ROOM) as mesh:
            measure(mesh, 8, 100, 0)  # warm up
            alone = measure(mesh, 1, ALONE, 1)
            line: dict[str, object] = {key: alone[key] for key in ("ttft_ms_p50", "answer_ms_p50")}
            line["clients_over_metrics"] = clients_over_metrics(mesh)
            line |= measure_crowds(mesh, STREAMS)
            line |= short_beside_long(mesh)
            line["rss_growth_mib"] = rss_growth_mib(mesh)
    print(json.dumps(line))


if __name__ == "__main__":
    main()
