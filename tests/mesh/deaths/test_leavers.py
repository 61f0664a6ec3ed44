"""A decode worker is told to end under its streams: it hands them over and is gone; no client can tell."""

import signal

import psutil
import pytest
from typer.testing import CliRunner, Result

from services.cli import app
from services.process import EXIT_FAILED
from tests.mesh.deaths.mortal_mesh import STEP_S, MortalMesh, prompts_of

NUM_STREAMS = 8
STREAM_S = 6.0
SHORT_TOKENS = 100
PROMPTS = prompts_of("before its worker left", NUM_STREAMS)
LEAVE_S = 5.0


@pytest.mark.parametrize(
    "stream_s", [STREAM_S, pytest.param(60.0, marks=pytest.mark.slow)], ids=["short streams", "long streams"]
)
def test_a_worker_that_is_told_to_end_is_gone_in_seconds_and_its_streams_go_on(
    mesh: MortalMesh, stream_s: float
) -> None:
    num_tokens = int(stream_s / STEP_S)
    expected = mesh.undisturbed(PROMPTS, num_tokens)
    pids, moves = mesh.running.pids, mesh.running.metric("frontend-0", "kvmesh_request_moves_total")
    with mesh.reading(PROMPTS, num_tokens) as crowd:
        mesh.running.wait_until("the streams run", lambda: crowd.least_pieces() >= 20)
        leaver = max(mesh.decoders, key=lambda name: mesh.running.metric(name, "kvmesh_sequences_running"))
        (heir,) = (name for name in mesh.decoders if name != leaver)
        num_running = mesh.running.metric(leaver, "kvmesh_sequences_running")
        num_pulled = pulled_by(mesh, heir)
        mesh.signal(signal.SIGTERM, leaver)
        mesh.running.wait_until("it has left", lambda: not psutil.pid_exists(pids[leaver]), LEAVE_S)
        assert not any(reading.finishes for reading in crowd.readings)
    assert crowd.wrongs(expected) == []
    assert num_running >= NUM_STREAMS / 2
    assert pulled_by(mesh, heir) - num_pulled == num_running
    assert mesh.running.metric("frontend-0", "kvmesh_request_moves_total") == moves, "one counts as lost"
    mesh.wait_back(pids, leaver)
    mesh.running.wait_until(
        "both may be chosen again", lambda: mesh.num_known_workers() == {len(mesh.decoders)}
    )


def test_a_worker_is_drained_on_an_operators_word_stays_alive_and_takes_work_again(mesh: MortalMesh) -> None:
    expected = mesh.undisturbed(PROMPTS, SHORT_TOKENS)
    pids = mesh.running.pids
    with mesh.under_load(PROMPTS, SHORT_TOKENS) as crowd:
        mesh.running.wait_until("the streams run", lambda: crowd.least_pieces() >= 20)
        drained, other = sorted(
            mesh.decoders, key=lambda name: -mesh.running.metric(name, "kvmesh_sequences_running")
        )
        num_pulled = pulled_by(mesh, other)
        done = kvmesh_drain(mesh, worker_id(mesh, drained))
        assert (done.exit_code, done.stdout) == (0, f"{worker_id(mesh, drained)} is drained\n"), done.stderr
        assert mesh.running.metric(drained, "kvmesh_attempts_served") == 0
        refused = kvmesh_drain(mesh, worker_id(mesh, other))
        assert refused.exit_code == EXIT_FAILED
        assert f"{worker_id(mesh, other)} is the last ready decode worker of 'tiny'" in refused.stderr
    assert crowd.wrongs(expected) == []
    assert pulled_by(mesh, other) > num_pulled
    assert mesh.num_known_workers() == {1}
    undone = kvmesh_drain(mesh, worker_id(mesh, drained), "--undo")
    assert undone.exit_code == 0, undone.stderr
    assert undone.stdout == f"{worker_id(mesh, drained)} takes work again\n"
    mesh.running.wait_until("both may be chosen again", lambda: mesh.num_known_workers() == {2})
    assert mesh.running.pids == pids


def worker_id(mesh: MortalMesh, child: str) -> str:
    """The name in the directory of a worker that its launcher calls `child`."""
    names = {key.rpartition("/")[2] for key in mesh.directory_keys() if "/workers/" in key}
    (name,) = (name for name in names if mesh.running.metric(child, "kvmesh_process_info", process=name))
    return name


def kvmesh_drain(mesh: MortalMesh, worker: str, *flags: str) -> Result:
    """In this process: starting another one takes as long as the streams do on a machine that is busy."""
    return CliRunner().invoke(app, ["drain", worker, "--state", str(mesh.running.state), *flags])


def pulled_by(mesh: MortalMesh, worker: str) -> float:
    return mesh.running.metric(worker, "kvmesh_hand_overs_total", outcome="pulled")
