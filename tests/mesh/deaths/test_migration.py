"""Decode workers are killed at random under 64 streams, and all else is restarted: every text is right."""

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.mesh.deaths.crowd import Crowd, Reading
from tests.mesh.deaths.mortal_mesh import MortalMesh, prompts_of, seconds_since

SEED_VARIABLE = "TEST_SEED"
NUM_STREAMS = 64
NUM_TOKENS = 60
LONG_S = 300.0
EACH_S = 60.0
REQUEST_LIMIT_S = 90.0
"""Far below what a request may take: a queue, three lost workers, and its text several times over."""


class Killer:
    """Kills one decode worker at a time, at a random moment after the last one is back.

    A request survives three lost workers. So that none can meet more, as many as there are streams end
    between two deaths.
    """

    def __init__(self, mesh: MortalMesh, crowd: Crowd, chosen: random.Random) -> None:
        self.num_killed = 0
        self.num_nats_restarts = 0
        self._mesh = mesh
        self._crowd = crowd
        self._random = chosen

    def kill_one(self) -> None:
        """On return it is back, and as many requests have ended since its death as there are streams."""
        mesh, pids = self._mesh, self._mesh.running.pids
        victim = self._random.choice(mesh.decoders)
        num_pieces = self._num_pieces() + self._random.randrange(NUM_STREAMS * NUM_TOKENS // 2)
        mesh.running.wait_until("a random moment", lambda: self._num_pieces() >= num_pieces, 60)
        num_ended = len(self._crowd.ended)
        mesh.kill(victim)
        self.num_killed += 1
        mesh.wait_back(pids, victim)
        mesh.running.wait_until("streams end", lambda: len(self._crowd.ended) >= num_ended + NUM_STREAMS, 60)

    def _num_pieces(self) -> int:
        """What all clients have of their texts, together."""
        return sum(len(reading.pieces) for reading in list(self._crowd.readings))


@contextmanager
def migrating(mesh: MortalMesh) -> Iterator[Killer]:
    """64 clients that read one text after the other; at the end every one of these was whole and right."""
    seed = int(os.environ.get(SEED_VARIABLE, random.SystemRandom().randrange(10**6)))
    print(f"{SEED_VARIABLE}={seed}")
    prompts = prompts_of("before its worker was killed at random", NUM_STREAMS)
    expected = mesh.undisturbed(prompts, NUM_TOKENS)
    moves = mesh.running.metric("frontend-0", "kvmesh_request_moves_total")
    with mesh.under_load(prompts, NUM_TOKENS) as crowd:
        mesh.running.wait_until("the first streams run", lambda: len(crowd.readings) >= NUM_STREAMS)
        killer = Killer(mesh, crowd, random.Random(seed))
        yield killer
    num_moved = mesh.running.metric("frontend-0", "kvmesh_request_moves_total") - moves
    print(f"{len(crowd.ended)} requests, {killer.num_killed} workers killed, {num_moved:.0f} moves")
    wrongs = crowd.wrongs(expected)
    assert [one for one in wrongs if not (killer.num_nats_restarts and is_refused(one))] == []
    assert [one for one in crowd.readings if one.took_s > REQUEST_LIMIT_S] == []
    assert num_moved > 0


def is_refused(reading: Reading) -> bool:
    """Told at once to come again, as whoever comes while NATS is away, or before the routers are back on it:
    nothing of it had begun."""
    said = "".join(reading.faults)
    is_told = '"code":"disconnected"' in said or '"code":"no_responder"' in said
    return reading.status == 503 and is_told and not reading.pieces


@pytest.mark.slow
def test_workers_killed_at_random_under_64_streams_cost_no_request(mesh: MortalMesh) -> None:
    with migrating(mesh) as killer:
        killer.kill_one()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_five_minutes_of_deaths_cost_no_request(mesh: MortalMesh) -> None:
    began_s = time.monotonic()
    with migrating(mesh) as killer:
        while seconds_since(began_s) < LONG_S:
            killer.kill_one()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_five_minutes_of_deaths_and_restarts_of_all_other_parts_cost_no_request(mesh: MortalMesh) -> None:
    """Router, etcd and NATS each once a minute, one after the other."""
    began_s = time.monotonic()
    with migrating(mesh) as killer:
        num_restarts = 0
        while seconds_since(began_s) < LONG_S:
            killer.kill_one()
            if seconds_since(began_s) >= num_restarts * EACH_S / 3:
                restart_next(mesh, killer, num_restarts)
                num_restarts += 1


def restart_next(mesh: MortalMesh, killer: Killer, number: int) -> None:
    """The router is killed and started by its launcher; etcd comes back with its keys, and NATS at once."""
    match number % 3:
        case 0:
            pids = mesh.running.pids
            mesh.kill("router-0")
            mesh.wait_back(pids, "router-0")
        case 1:
            mesh.etcd.kill()
            mesh.etcd.restart()
        case _:
            killer.num_nats_restarts += 1
            with mesh.without_nats():
                pass
