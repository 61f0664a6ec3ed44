"""Do load generators of others read the same times as `/metrics`?

Run: `python -m tests.perf.load_generators GUIDELLM AIPERF`, the commands of guidellm (0.8) and AIPerf
(0.13), each installed in an environment of its own since their dependencies are many; one alone will do.
Each sends `NUM_REQUESTS` chats, streamed, from `STREAMS` clients, to a mesh of one prefill and one decode
worker with the default model. Output: for each, the mean TTFT, time of a whole answer and ITL that it read,
divided by what the frontend counted of the same requests (must be within 5 % of 1).
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from services.models.folder import resolve_model
from tests.mesh.running_mesh import RunningMesh, run_mesh

NUM_REQUESTS = 40
STREAMS = 2
PROMPT_TOKENS = 128
ANSWER_TOKENS = 32
LIMIT_S = 600.0
HUB_NAME = "kvmesh/default"
METRICS = {"ttft": "kvmesh_ttft_seconds", "answer": "kvmesh_request_seconds", "itl": "kvmesh_itl_seconds"}


@dataclass(frozen=True)
class Target:
    """What is to be loaded, and the folder in which the generator works."""

    url: str
    model: str
    tokenizer: Path
    folder: Path


def guidellm_arguments(target: Target) -> list[str]:
    return [
        "run",
        "--disable-console",
        *("--backend", f"kind=openai_http,target={target.url},model={target.model}"),
        *("--profile", f"kind=concurrent,streams={STREAMS}"),
        *("--constraint", f"kind=max_requests,count={NUM_REQUESTS}"),
        *("--tokenizer", f"kind=hf_auto,model={target.tokenizer}"),
        *("--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={ANSWER_TOKENS}"),
        *("--output", f"kind=json,path={target.folder / 'report.json'}"),
    ]


def guidellm_means_ms(folder: Path) -> dict[str, float]:
    [benchmark] = json.loads((folder / "report.json").read_bytes())["benchmarks"]
    factors = {
        "ttft": ("time_to_first_token_ms", 1),
        "answer": ("request_latency", 1e3),
        "itl": ("inter_token_latency_ms", 1),
    }
    metrics = benchmark["metrics"]
    return {key: factor * metrics[name]["successful"]["mean"] for key, (name, factor) in factors.items()}


def aiperf_arguments(target: Target) -> list[str]:
    return [
        "profile",
        "--streaming",
        *("--model", target.model, "--url", target.url, "--endpoint-type", "chat", "--tokenizer", HUB_NAME),
        *("--synthetic-input-tokens-mean", str(PROMPT_TOKENS), "--output-tokens-mean", str(ANSWER_TOKENS)),
        *("--extra-inputs", "ignore_eos:true", "--concurrency", str(STREAMS)),
        *("--request-count", str(NUM_REQUESTS), "--ui", "none", "--output-artifact-dir", str(target.folder)),
    ]


def aiperf_means_ms(folder: Path) -> dict[str, float]:
    report = json.loads((folder / "profile_export_aiperf.json").read_bytes())
    names = {"ttft": "time_to_first_token", "answer": "request_latency", "itl": "inter_token_latency"}
    return {key: report[name]["avg"] for key, name in names.items()}


@dataclass(frozen=True)
class Generator:
    """How a load generator is told its load, and where it tells what it read. Units: milliseconds."""

    arguments: Callable[[Target], list[str]]
    means_ms: Callable[[Path], dict[str, float]]


GENERATORS = {
    "guidellm": Generator(guidellm_arguments, guidellm_means_ms),
    "aiperf": Generator(aiperf_arguments, aiperf_means_ms),
}


def write_hub_cache(folder: Path, model: Path) -> None:
    """The model's files as a hub's cache of `HUB_NAME`: AIPerf takes names of a hub, not folders."""
    cached = folder / "hub" / f"models--{HUB_NAME.replace('/', '--')}"
    snapshot = cached / "snapshots" / "0"
    for made in (cached / "refs", snapshot):
        made.mkdir(parents=True)
    (cached / "refs" / "main").write_text("0")
    for path in model.iterdir():
        (snapshot / path.name).symlink_to(path)


def means_told_ms(mesh: RunningMesh) -> Callable[[], dict[str, float]]:
    """Call the result after the load: what the frontend counted since, in the mean. Units: milliseconds."""

    def read() -> dict[str, tuple[float, float]]:
        return {
            key: (mesh.metric("frontend-0", f"{name}_sum"), mesh.metric("frontend-0", f"{name}_count"))
            for key, name in METRICS.items()
        }

    before = read()

    def means() -> dict[str, float]:
        after = read()
        return {
            key: 1e3 * (after[key][0] - before[key][0]) / (after[key][1] - before[key][1]) for key in METRICS
        }

    return means


def compare(mesh: RunningMesh, command: Path, folder: Path, tokenizer: Path) -> dict[str, float]:
    """What the generator read over what `/metrics` says. Raises `SystemExit` with its log where it fails."""
    generator = GENERATORS[command.name]
    target = Target(mesh.url, mesh.models()[0], tokenizer, folder / command.name)
    target.folder.mkdir()
    means = means_told_ms(mesh)
    environ = os.environ | {"HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1"}
    log_path = target.folder / "log"
    with log_path.open("wb") as log:
        done = subprocess.run(
            [command, *generator.arguments(target)],
            check=False,
            cwd=target.folder,
            env=environ,
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
        )
    if done.returncode:
        sys.exit(f"{command.name} ended with {done.returncode}:\n{log_path.read_text()[-4000:]}")
    told_ms, read_ms = means(), generator.means_ms(target.folder)
    for key in METRICS:
        print(f"{command.name}: {key} {read_ms[key]:.1f} ms, /metrics {told_ms[key]:.1f}", flush=True)
    return {key: round(read_ms[key] / told_ms[key], 3) for key in METRICS}


def main() -> None:
    commands = [Path(argument).absolute() for argument in sys.argv[1:]]
    if not commands or any(command.name not in GENERATORS or not command.is_file() for command in commands):
        sys.exit(f"name the commands to run, of {' and '.join(GENERATORS)}: {__doc__}")
    model = resolve_model("smollm2-135m").path
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_hub_cache(folder / "hf", model)
        with run_mesh(folder / "mesh", "smollm2-135m") as mesh:
            line = {command.name: compare(mesh, command, folder, model) for command in commands}
    print(json.dumps(line))


if __name__ == "__main__":
    main()
