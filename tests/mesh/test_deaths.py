"""What dies, and what the others do: killed under a stream whose text must be what it would have been."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from tests.mesh.running_mesh import RunningMesh, run_mesh
from tests.tiny_model import write_tiny_llama

TIMES = {
    "KVMESH_SIMULATED_STEP_S": "0.02",
    "KVMESH_SIMULATED_FIRST_TOKEN": "20",
    "KVMESH_SIMULATED_NUM_TOKENS": "200",
}
NUM_TOKENS = 150


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    """Two decode workers and one prefill worker, simulated: a token each 20 ms."""
    folder = tmp_path_factory.mktemp("deaths")
    model = write_tiny_llama(folder / "tiny")
    flags = ("--engine", "simulated", "--decode", "2", "--prefill", "1")
    with run_mesh(folder / "state", str(model), *flags, environ=TIMES) as mesh:
        mesh.wait_until("all workers are ready", lambda: "ready after" in mesh.output(), 60)
        yield mesh


def answer(mesh: RunningMesh, prompt: str) -> str:
    """The text of one streamed answer, which must end by its length."""
    with openai.OpenAI(base_url=f"{mesh.url}/v1", api_key="none", max_retries=0) as client:
        stream = client.completions.create(
            model=mesh.models()[0],
            prompt=prompt,
            max_tokens=NUM_TOKENS,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        choices = [chunk.choices[0] for chunk in stream if chunk.choices]
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["length"]
    return "".join(choice.text for choice in choices)


def serving(mesh: RunningMesh) -> str:
    """The decode worker that is at work; empty while none is."""
    return next(
        (name for name in ("decode-0", "decode-1") if mesh.metric(name, "kvmesh_sequences_running") > 0), ""
    )


def kill(mesh: RunningMesh, name: str) -> None:
    pid = mesh.child(name).pid
    os.kill(pid, signal.SIGKILL)
    mesh.wait_until(f"{name} was started again", lambda: mesh.child(name).pid != pid)


@pytest.mark.parametrize("victim", ["decode", "router-0", "prefill-0"])
def test_a_death_in_mid_stream_changes_nothing_for_the_client(mesh: RunningMesh, victim: str) -> None:
    prompt = f"once upon a time, before the {victim} died, "
    undisturbed = answer(mesh, prompt)
    with ThreadPoolExecutor(1) as pool:
        disturbed = pool.submit(answer, mesh, prompt)
        mesh.wait_until("a worker is at work", lambda: bool(serving(mesh)))
        kill(mesh, serving(mesh) if victim == "decode" else victim)
        assert disturbed.result(60) == undisturbed


def test_a_stopped_bus_ends_no_stream(mesh: RunningMesh, tmp_path: Path) -> None:
    prompt = "once upon a time, before the bus was restarted, "
    undisturbed = answer(mesh, prompt)
    nats = mesh.child("nats-server").pid
    with ThreadPoolExecutor(1) as pool:
        disturbed = pool.submit(answer, mesh, prompt)
        mesh.wait_until("a worker is at work", lambda: bool(serving(mesh)))
        os.kill(nats, signal.SIGKILL)
        assert disturbed.result(60) == undisturbed
    assert mesh.child("nats-server").pid != nats


def test_a_mesh_that_is_ended_in_mid_stream_tells_its_clients(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "tiny")
    with run_mesh(
        tmp_path / "state", str(model), "--engine", "simulated", "--prefill", "0", environ=TIMES
    ) as mesh:
        mesh.wait_until("it is ready", lambda: "ready after" in mesh.output(), 60)
        body = {"model": "tiny", "prompt": "once", "max_tokens": 1500, "stream": True, "ignore_eos": True}
        with mesh.http.stream("POST", "/v1/completions", json=body) as response:
            lines = (line for line in response.iter_lines() if line)
            next(lines)
            mesh.process.send_signal(signal.SIGTERM)
            rest = list(lines)
        assert '"error"' in rest[-2]
        assert rest[-1] == "data: [DONE]"
        assert mesh.process.wait(10) == 0
        logs = "".join(log.read_text() for log in (mesh.state / "logs").glob("*.log"))
        assert "Traceback" not in logs
        assert "code=-9" not in logs
