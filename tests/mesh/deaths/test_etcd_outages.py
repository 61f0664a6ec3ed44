"""etcd dies, for moments or for long, with its keys or without: nobody who is served can tell."""

import time
from collections.abc import Callable

import httpx
import pytest

from services.servers import Server
from tests.mesh.deaths.mortal_mesh import MortalMesh, prompts_of, seconds_since

NUM_CLIENTS = 8
NUM_TOKENS = 40
KEYS_BACK_S = 2.0
MOVES = "kvmesh_request_moves_total"


def stop(etcd: Server) -> Callable[[], None]:
    """Past the time to live of every lease: they expire when it wakes."""
    etcd.suspend()
    return etcd.resume


def kill(etcd: Server) -> Callable[[], None]:
    etcd.kill()
    return etcd.restart


def empty(etcd: Server) -> Callable[[], None]:
    etcd.kill()
    etcd.wipe()
    return etcd.restart


def is_up(admin_url: str) -> bool:
    try:
        return httpx.get(f"{admin_url}/healthz", trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def live_through(mesh: MortalMesh, hurt: Callable[[Server], Callable[[], None]], outage_s: float) -> None:
    """An outage of etcd under load, in which a worker starts; nothing else may be seen of it."""
    running = mesh.running
    short, long = prompts_of("in short", NUM_CLIENTS), prompts_of("at length", 2)
    num_long = int(outage_s * 50) + 100
    expected = mesh.undisturbed(short, NUM_TOKENS)
    expected_long = mesh.undisturbed(long, num_long)
    pids, keys = running.pids, mesh.directory_keys()
    num_workers, num_moved = len(mesh.decoders), running.metric("frontend-0", MOVES)
    with mesh.under_load(short, NUM_TOKENS) as crowd, mesh.reading(long, num_long) as readers:
        running.wait_until(
            "all are served", lambda: len(crowd.ended) >= NUM_CLIENTS and readers.least_pieces() > 0
        )
        heal = hurt(mesh.etcd)
        began_s = time.monotonic()
        with mesh.newcomer({}) as admin_url:
            running.wait_until("a worker starts meanwhile", lambda: is_up(admin_url), 30)
            running.wait_until(f"{outage_s} s pass", lambda: seconds_since(began_s) >= outage_s, outage_s + 5)
            assert mesh.num_known_workers() == {num_workers}
            num_served = len(crowd.ended)
            heal()
            running.wait_until("every key is back", lambda: keys <= mesh.directory_keys(), KEYS_BACK_S)
            running.wait_until(
                "the newcomer is known", lambda: mesh.num_known_workers() == {num_workers + 1}, 5
            )
            running.wait_until("all are served", lambda: len(crowd.ended) >= num_served + 2 * NUM_CLIENTS)
            assert keys <= mesh.directory_keys()
        running.wait_until("the newcomer is forgotten", lambda: mesh.num_known_workers() == {num_workers}, 5)
    assert num_served >= 2 * NUM_CLIENTS, "hardly anything was served during the outage"
    assert crowd.wrongs(expected) == []
    assert readers.wrongs(expected_long) == []
    assert mesh.directory_keys() == keys
    assert running.pids == pids
    assert running.metric("frontend-0", MOVES) == num_moved


@pytest.mark.parametrize("hurt", [stop, empty])
def test_a_short_outage_of_etcd_is_seen_by_nobody(
    mesh: MortalMesh, hurt: Callable[[Server], Callable[[], None]]
) -> None:
    live_through(mesh, hurt, outage_s=4)


@pytest.mark.slow
@pytest.mark.parametrize("outage_s", [5, 30])
@pytest.mark.parametrize("hurt", [stop, kill, empty])
def test_a_long_outage_of_etcd_is_seen_by_nobody(
    mesh: MortalMesh, hurt: Callable[[Server], Callable[[], None]], outage_s: float
) -> None:
    live_through(mesh, hurt, outage_s)
