"""Routers are killed: the other one answers; without any, clients are told at once, and served soon after."""

import time

import pytest

from tests.mesh.deaths.conftest import NUM_AT_ONCE, NUM_SEATS
from tests.mesh.deaths.mortal_mesh import MortalMesh, check_unavailable, prompts_of, seconds_since

NUM_CLIENTS = 16
NUM_TOKENS = 20
NUM_LONG_TOKENS = 200
NUM_LATE = 12
ROUTE_LIMIT_S = 6.0
"""What a frontend waits for the answer of a router, before it asks another."""


def test_a_router_dies_under_load_and_nobody_sees_an_error(mesh: MortalMesh) -> None:
    prompts = prompts_of("before its router died", NUM_CLIENTS)
    expected = mesh.undisturbed(prompts, NUM_TOKENS)
    pids = mesh.running.pids
    with mesh.under_load(prompts, NUM_TOKENS) as crowd:
        mesh.running.wait_until("all are served", lambda: len(crowd.ended) >= NUM_CLIENTS)
        mesh.kill("router-0")
        mesh.wait_back(pids, "router-0")
        num_served = len(crowd.ended)
        mesh.running.wait_until("more are served", lambda: len(crowd.ended) >= num_served + 2 * NUM_CLIENTS)
    assert crowd.wrongs(expected) == []
    assert max(one.took_s for one in crowd.readings) < ROUTE_LIMIT_S + 4
    assert {name for name, pid in mesh.running.pids.items() if pids[name] != pid} == {"router-0"}


@pytest.mark.slow
def test_requests_that_wait_at_a_router_that_dies_are_sent_to_the_other(mesh: MortalMesh) -> None:
    seated, late = prompts_of("while seats last", NUM_SEATS + 4), prompts_of("when all are taken", NUM_LATE)
    expected = mesh.undisturbed(late, NUM_TOKENS)
    pids = mesh.running.pids

    def num_queued(router: str) -> float:
        return mesh.running.metric(router, "kvmesh_route_queue_length")

    def longest_queue() -> str:
        return max(mesh.routers, key=num_queued)

    with mesh.reading(seated, NUM_LONG_TOKENS) as first:
        mesh.running.wait_until(
            "both batches are full", lambda: mesh.decoders_sum("kvmesh_sequences_running") == NUM_AT_ONCE
        )
        with mesh.reading(late, NUM_TOKENS) as second:
            mesh.running.wait_until("requests wait", lambda: num_queued(longest_queue()) >= NUM_LATE / 3)
            victim = longest_queue()
            mesh.kill(victim)
    assert [one for one in first.readings if not one.is_whole] == []
    assert second.wrongs(expected) == []
    mesh.wait_back(pids, victim)


def test_without_any_router_clients_get_a_typed_503_until_one_is_back(mesh: MortalMesh) -> None:
    pids = mesh.running.pids
    mesh.kill(*mesh.routers)
    began_s = time.monotonic()
    response = mesh.ask()
    assert seconds_since(began_s) < 2
    check_unavailable(response)
    mesh.running.wait_until("requests are served again", lambda: mesh.ask().status_code == 200, 20)
    mesh.wait_back(pids, *mesh.routers)
