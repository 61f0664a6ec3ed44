"""What the mesh costs around an engine that costs nothing: latency alone, throughput at 32 and 256 streams.

Run: `python -m tests.perf.mesh`. 200 tokens in, 64 out, distinct prompts, every token its own event. CPU time
is read from /proc for each kind of process.

The simulated engine takes no time, so most tokens of an answer are there before the first can be sent, and
leave together. How tokens travel one by one is shown with an engine that takes `PACED_STEP_S` a step: under
`paced`, where ITL above the step's time is the mesh's.
"""

import json
import statistics
import tempfile
from pathlib import Path

import psutil
import uvloop

from services.models.folder import resolve_model
from tests.mesh.running_mesh import RunningMesh, run_mesh
from tests.perf.sse_load import Load, Reading, run_load

NUM_WORDS = 170  # with the chat template about 200 tokens of the default model
NUM_TOKENS = 64
ALONE = 100
STREAMS = {"32": 1500, "256": 2500}
NUM_TIMES = 4  # the first that psutil tells: of a process in user mode and system, and of its ended children
PACED_STEP_S = 0.05
PACED_STREAMS = {"32": 96, "256": 768}
ENGINE = {
    "KVMESH_SIMULATED_STEP_S": "0",
    "KVMESH_SIMULATED_SEQUENCE_S": "0",
    "KVMESH_SIMULATED_CONTEXT_TOKEN_S": "0",
    "KVMESH_SIMULATED_PREFILL_TOKEN_S": "0",
    "KVMESH_SIMULATED_FIRST_TOKEN": "34",  # letters and digits: every token shows at once
    "KVMESH_SIMULATED_NUM_TOKENS": "60",
    "KVMESH_WORKER_MAX_SEQUENCES": "200",
    "KVMESH_WORKER_STEP_TOKENS": "2048",
    "KVMESH_WORKER_NUM_BLOCKS": "16384",
}


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def cpu_s(mesh: RunningMesh) -> dict[str, float]:
    """Seconds of CPU so far, by kind of process. What one has started itself, as a frontend the process that
    tokenises, counts with it, ended or not."""
    spent: dict[str, float] = {}
    for child in mesh.file.processes:
        process = psutil.Process(child.pid)
        family = [process, *process.children(recursive=True)]
        times = [sum(each.cpu_times()[:NUM_TIMES]) for each in family]
        spent[child.kind] = spent.get(child.kind, 0.0) + sum(times)
    return spent


def summary(readings: list[Reading], spent: dict[str, float]) -> dict[str, object]:
    wall_s = max(r.ended_s for r in readings) - min(r.began_s for r in readings)
    num_tokens = sum(r.events for r in readings)
    gaps = [late - early for r in readings for early, late in zip(r.at_s, r.at_s[1:], strict=False)]
    return {
        "requests_per_s": round(len(readings) / wall_s, 1),
        "tokens_per_s": round(num_tokens / wall_s),
        "itl_ms_p99": round(percentile(gaps, 0.99) * 1e3, 2),
        "tokens_per_write": round(num_tokens / sum(r.writes for r in readings), 2),
        "ttft_ms_p50": round(statistics.median(r.first_s - r.began_s for r in readings) * 1e3, 2),
        "answer_ms_p50": round(statistics.median(r.ended_s - r.began_s for r in readings) * 1e3, 2),
        "cpu_us_per_token": {kind: round(cpu / num_tokens * 1e6, 1) for kind, cpu in spent.items()},
    }


def measure(mesh: RunningMesh, num_streams: int, num_requests: int, seed: int) -> dict[str, object]:
    load = Load(mesh.url, mesh.models()[0], NUM_WORDS, NUM_TOKENS, seed)
    before = cpu_s(mesh)
    readings = uvloop.run(run_load(load, num_streams, num_requests))
    after = cpu_s(mesh)
    found = summary(readings, {kind: after[kind] - before[kind] for kind in after})
    print(f"{num_streams} streams: {json.dumps(found)}", flush=True)
    return found


KEYS = ("requests_per_s", "tokens_per_s", "itl_ms_p99", "tokens_per_write", "cpu_us_per_token")


def measure_crowds(mesh: RunningMesh, streams: dict[str, int]) -> dict[str, dict[str, object]]:
    """Each key of a reading, by the number of streams."""
    found = {name: measure(mesh, int(name), num, 2) for name, num in streams.items()}
    return {key: {name: of_crowd[key] for name, of_crowd in found.items()} for key in KEYS}


def main() -> None:
    model = str(resolve_model("smollm2-135m").path)
    flags = ("--engine", "simulated", "--prefill", "0")
    with tempfile.TemporaryDirectory() as folder:
        with run_mesh(Path(folder, "free"), model, *flags, environ=ENGINE) as mesh:
            measure(mesh, 8, 100, 0)  # warm up
            alone = measure(mesh, 1, ALONE, 1)
            line: dict[str, object] = {key: alone[key] for key in ("ttft_ms_p50", "answer_ms_p50")}
            line |= measure_crowds(mesh, STREAMS)
        paced = ENGINE | {"KVMESH_SIMULATED_STEP_S": str(PACED_STEP_S), "KVMESH_WORKER_MAX_SEQUENCES": "256"}
        with run_mesh(Path(folder, "paced"), model, *flags, environ=paced) as mesh:
            measure(mesh, 8, 16, 0)
            line["paced"] = {"step_ms": PACED_STEP_S * 1e3, **measure_crowds(mesh, PACED_STREAMS)}
    print(json.dumps(line))


if __name__ == "__main__":
    main()
