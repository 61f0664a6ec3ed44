"""The road: a real model, every process, HTTP in and out, KV pushed from one process to another."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import openai
import psutil
import pytest

from tests.golden.make_smollm2_greedy import GoldenFile
from tests.mesh.running_mesh import RunningMesh, run_mesh
from tests.mesh.token_client import ask_all

MODEL = "smollm2-135m"
QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
REMOTE = {"KVMESH_WORKER_REMOTE_MIN_TOKENS": "4", "KVMESH_WORKER_PREFILL_CHOICE": "threshold"}
GOLDEN = Path(__file__).parent.parent / "golden" / "smollm2_greedy.json"
BLOCK = 16
SHORT_TOKENS = 200
GIB = 2**30

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def remote_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    """One prefill and one decode worker; nearly every prompt is prefilled elsewhere."""
    with run_mesh(tmp_path_factory.mktemp("remote"), MODEL, environ=REMOTE) as mesh:
        yield mesh


@pytest.fixture(scope="module")
def local_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    """One decode worker, alone."""
    with run_mesh(tmp_path_factory.mktemp("local"), MODEL, "--prefill", "0") as mesh:
        yield mesh


def ask(mesh: RunningMesh) -> openai.types.chat.ChatCompletion:
    with openai.OpenAI(base_url=f"{mesh.url}/v1", api_key="none", max_retries=0) as client:
        return client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=32)  # type: ignore[arg-type]


@pytest.mark.timeout(120)
def test_a_second_start_serves_within_twenty_seconds_and_an_end_leaves_nothing(tmp_path: Path) -> None:
    """Twenty on a machine that imports torch in two; more on one that is slower, or busy."""
    began_s = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    slowness = max(1.0, (time.monotonic() - began_s) / 2)
    with run_mesh(tmp_path, MODEL) as mesh:
        created = psutil.Process(mesh.process.pid).create_time()
        assert time.time() - created < 20 * slowness
        children = [psutil.Process(child.pid) for child in mesh.file.processes]
        ended_at = time.time()
        assert mesh.end() == 0
        assert time.time() - ended_at < 5
        assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{mesh.url}/v1/models", trust_env=False)


def test_the_capital_of_france_is_paris_wherever_its_prompt_is_prefilled(
    remote_mesh: RunningMesh, local_mesh: RunningMesh
) -> None:
    jobs = remote_mesh.metric("prefill-0", "kvmesh_prefill_jobs_served_total")
    remote = ask(remote_mesh)
    assert "Paris" in (remote.choices[0].message.content or "")
    assert remote_mesh.metric("prefill-0", "kvmesh_prefill_jobs_served_total") == jobs + 1
    assert remote_mesh.metric("prefill-0", "kvmesh_kv_bytes_pushed_total") > 0
    assert remote.usage is not None and remote.usage.prompt_tokens_details is not None
    assert remote.usage.prompt_tokens_details.cached_tokens == 0

    local = ask(local_mesh)
    assert local.choices[0].message.content == remote.choices[0].message.content
    assert local.usage == remote.usage
    assert local_mesh.metric("decode-0", "kvmesh_prefills_total", where="local") == 1


def test_a_repeated_prompt_hits_the_prefix_cache_and_is_not_prefilled_again(remote_mesh: RunningMesh) -> None:
    first = ask(remote_mesh)
    jobs = remote_mesh.metric("prefill-0", "kvmesh_prefill_jobs_served_total")
    hits = remote_mesh.metric("decode-0", "kvmesh_prefix_hits_total")
    again = ask(remote_mesh)
    assert again.choices[0].message.content == first.choices[0].message.content
    assert again.usage is not None and again.usage.prompt_tokens_details is not None
    assert (again.usage.prompt_tokens_details.cached_tokens or 0) >= 32
    assert remote_mesh.metric("prefill-0", "kvmesh_prefill_jobs_served_total") == jobs
    assert remote_mesh.metric("decode-0", "kvmesh_prefix_hits_total") == hits + 1


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "is_long", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["short", "long"]
)
@pytest.mark.parametrize("where", ["remote", pytest.param("local", marks=pytest.mark.slow)])
def test_greedy_tokens_are_those_of_transformers_cold_and_warm(
    where: str, is_long: bool, request: pytest.FixtureRequest
) -> None:
    mesh: RunningMesh = request.getfixturevalue(f"{where}_mesh")
    stored = msgspec.json.decode(GOLDEN.read_bytes(), type=GoldenFile).answers
    golden = [entry for entry in stored if (len(entry.prompt) > SHORT_TOKENS) == is_long]
    prompts = {entry.name: entry.prompt for entry in golden}
    file = mesh.file
    for is_warm in (False, True):
        answers = asyncio.run(ask_all(file.nats_url, file.namespace, MODEL, prompts, 32))
        for answer, entry in zip(answers, golden, strict=True):
            assert answer.tokens == entry.tokens, f"{entry.name}, gaps {entry.gaps}"
            assert answer.end is not None
            full_blocks = (len(entry.prompt) - 1) // BLOCK * BLOCK
            assert answer.end.cached_tokens == (full_blocks if is_warm else 0)


def test_a_client_that_leaves_in_mid_stream_stops_the_work_and_gives_the_blocks_back(
    remote_mesh: RunningMesh,
) -> None:
    blocks = remote_mesh.metric("decode-0", "kvmesh_blocks_free")
    body = {"model": MODEL, "messages": QUESTION, "max_tokens": 2000, "stream": True, "ignore_eos": True}
    with remote_mesh.http.stream("POST", "/v1/chat/completions", json=body) as response:
        events = (line for line in response.iter_lines() if line.startswith("data: "))
        for _ in range(5):
            assert json.loads(next(events).removeprefix("data: "))["choices"]
    remote_mesh.wait_until(
        "every block is back",
        lambda: (
            remote_mesh.metric("decode-0", "kvmesh_blocks_free") == blocks
            and remote_mesh.metric("decode-0", "kvmesh_sequences_running") == 0
        ),
        5,
    )
    tokens = remote_mesh.metric("decode-0", "kvmesh_decode_tokens_total")
    ask(remote_mesh)  # later work, so that a step that still computed for the other would show
    spent = remote_mesh.metric("decode-0", "kvmesh_decode_tokens_total") - tokens
    assert spent <= 32
    remote_mesh.wait_until(
        "the frontend counts nobody",
        lambda: remote_mesh.metric("frontend-0", "kvmesh_requests_running") == 0,
    )


def test_the_whole_mesh_fits_into_four_gigabytes(remote_mesh: RunningMesh) -> None:
    total = sum(psutil.Process(child.pid).memory_info().rss for child in remote_mesh.file.processes)
    assert total < 4 * GIB


def test_a_child_that_dies_is_started_again_and_serves(remote_mesh: RunningMesh) -> None:
    pid = remote_mesh.child("router-0").pid
    psutil.Process(pid).send_signal(signal.SIGKILL)
    remote_mesh.wait_until("the router is back", lambda: remote_mesh.child("router-0").pid != pid)
    remote_mesh.wait_until(
        "and routes", lambda: remote_mesh.http.post("/v1/chat/completions", json=_short()).status_code == 200
    )
    assert "router-0" in remote_mesh.output()


def _short() -> dict[str, object]:
    return {"model": MODEL, "messages": QUESTION, "max_tokens": 2}
