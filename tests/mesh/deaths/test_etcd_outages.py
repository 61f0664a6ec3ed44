"""etcd dies, for moments or for long, with its keys or without: nobody who is served can tell."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import httpx
import pytest

from services.servers import Server
from tests.mesh.deaths.mortal_mesh import STEP_S, MortalMesh, prompts_of, seconds_since

NUM_CLIENTS = 8
NUM_TOKENS = 40
KEYS_BACK_S = 2.0
MOVES = "kvmesh_request_moves_total"


Outage = Callable[[Server], AbstractContextManager[None]]


@contextmanager
def stopped(etcd: Server) -> Iterator[None]:
    """Beyond the time to live of every lease: they expire when it wakes."""
    etcd.suspend()
    try:
        yield
    finally:
        etcd.resume()


@contextmanager
def killed(etcd: Server) -> Iterator[None]:
    etcd.kill()
    try:
        yield
    finally:
        etcd.restart()


@contextmanager
def emptied(etcd: Server) -> Iterator[None]:
    """It comes back without a single key."""
    with killed(etcd):
        etcd.wipe()
        yield


def is_up(admin_url: str) -> bool:
    try:
        return httpx.get(f"{admin_url}/healthz", trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def live_through(mesh: MortalMesh, outage: Outage, outage_s: float) -> None:
    """An outage of etcd under load, in which a worker starts; nothing else may be seen of it."""
    running = mesh.running
    short, long = prompts_of("in short", NUM_CLIENTS), prompts_of("at length", 2)
    num_long = int(outage_s / STEP_S) + NUM_TOKENS
    expected, expected_long = mesh.undisturbed(short, NUM_TOKENS), mesh.undisturbed(long, num_long)
    pids, keys = running.pids, mesh.directory_keys()
    num_workers, num_moved = len(mesh.decoders), running.metric("frontend-0", MOVES)

    def wait_known(num: int) -> None:
        running.wait_until(f"{num} workers are known", lambda: mesh.num_known_workers() == {num})

    with mesh.under_load(short, NUM_TOKENS) as crowd, mesh.reading(long, num_long) as readers:
        running.wait_until("the long ones run", lambda: readers.least_pieces() > 0)
        with ExitStack() as beyond:
            with outage(mesh.etcd):
                began_s, num_before = time.monotonic(), len(crowd.ended)
                admin_url = beyond.enter_context(mesh.newcomer())
                running.wait_until("a worker starts meanwhile", lambda: is_up(admin_url), 60)
                running.wait_until("it lasts", lambda: seconds_since(began_s) >= outage_s, outage_s + 1)
                assert mesh.num_known_workers() == {num_workers}
                assert len(crowd.ended) - num_before >= NUM_CLIENTS, "hardly anything was served meanwhile"
            running.wait_until("every key is back", lambda: keys <= mesh.directory_keys(), KEYS_BACK_S)
            wait_known(num_workers + 1)
            num_served = len(crowd.ended)
            running.wait_until("all are served", lambda: len(crowd.ended) >= num_served + NUM_CLIENTS)
            assert keys <= mesh.directory_keys()
        wait_known(num_workers)
    assert crowd.wrongs(expected) == []
    assert readers.wrongs(expected_long) == []
    assert mesh.directory_keys() == keys
    assert running.pids == pids
    assert running.metric("frontend-0", MOVES) == num_moved


@pytest.mark.parametrize("outage", [stopped, pytest.param(emptied, marks=pytest.mark.slow)])
def test_a_short_outage_of_etcd_is_seen_by_nobody(mesh: MortalMesh, outage: Outage) -> None:
    live_through(mesh, outage, outage_s=4)


@pytest.mark.slow
@pytest.mark.parametrize("outage_s", [5, 30])
@pytest.mark.parametrize("outage", [stopped, killed, emptied])
def test_a_long_outage_of_etcd_is_seen_by_nobody(mesh: MortalMesh, outage: Outage, outage_s: float) -> None:
    live_through(mesh, outage, outage_s)
