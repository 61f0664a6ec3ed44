"""Processes are stopped under load, longer than all bear their silence, and go on: nobody can tell.

What one did before and does when it wakes counts for nothing; it finds its place again.
"""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.mesh.deaths.mortal_mesh import STEP_S, MortalMesh, seconds_since
from tests.mesh.deaths.test_leavers import PROMPTS, STREAM_S

STOP_S = 4.5
"""Beyond the time to live of a lease, and beyond the silence after which a process counts as lost."""
LONG_S = 60.0
MARGIN_S = 60.0
MOVES = "kvmesh_request_moves_total"


@contextmanager
def stopped(mesh: MortalMesh, stop_s: float, *names: str) -> Iterator[None]:
    """For `stop_s` at least, and for as long as the body takes."""
    mesh.signal(signal.SIGSTOP, *names)
    began_s = time.monotonic()
    try:
        yield
        mesh.running.wait_until("it lasts", lambda: seconds_since(began_s) >= stop_s, stop_s + 1)
    finally:
        mesh.signal(signal.SIGCONT, *names)


def wait_in_place(mesh: MortalMesh, keys: set[str]) -> None:
    """Every process has its keys, and may be chosen."""
    mesh.running.wait_until("every key is back", lambda: mesh.directory_keys() == keys)
    mesh.running.wait_until(
        "all workers may be chosen", lambda: mesh.num_known_workers() == {len(mesh.decoders)}
    )


def stream_through(mesh: MortalMesh, stop_s: float, *names: str) -> None:
    """Streams run before, during and after; each is whole in the end, and no process was started again."""
    num_tokens = int(max(STREAM_S, stop_s) / STEP_S)
    expected = mesh.undisturbed(PROMPTS, num_tokens)
    pids, keys = mesh.running.pids, mesh.directory_keys()
    with mesh.reading(PROMPTS, num_tokens) as crowd:
        mesh.running.wait_until("the streams run", lambda: crowd.least_pieces() >= 20)
        with stopped(mesh, stop_s, *names):
            pass
        wait_in_place(mesh, keys)
    assert crowd.wrongs(expected) == []
    assert max(reading.took_s for reading in crowd.readings) < 3 * (num_tokens * STEP_S + stop_s) + MARGIN_S
    assert mesh.ask().status_code == 200
    assert mesh.running.pids == pids


@pytest.mark.slow
def test_one_of_each_kind_is_stopped_and_goes_on_and_its_streams_went_on_without_it(
    mesh: MortalMesh,
) -> None:
    moves = mesh.running.metric("frontend-0", MOVES)
    stream_through(mesh, STOP_S, "decode-0", "router-0", "prefill-0")
    assert mesh.running.metric("frontend-0", MOVES) > moves, "nothing ran where it was stopped"


@pytest.mark.slow
def test_a_frontend_is_stopped_and_its_clients_read_on_when_it_goes_on(mesh: MortalMesh) -> None:
    stream_through(mesh, STOP_S, "frontend-0")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["decode-0", "prefill-0", "router-0", "frontend-0"])
def test_a_process_that_is_stopped_for_a_minute_finds_its_place_again(mesh: MortalMesh, name: str) -> None:
    stream_through(mesh, LONG_S, name)
