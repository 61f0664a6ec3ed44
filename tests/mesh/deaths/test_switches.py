"""Something dies in mid-switch of a worker's role: one of the two roles stands, and no client can tell."""

import asyncio
import itertools
import os
import random
from collections.abc import Iterator

import pytest

from proto.roles import RoleStage
from tests.mesh.deaths.crowd import Crowd
from tests.mesh.deaths.mortal_mesh import MortalMesh, prompts_of
from tests.mesh.deaths.turncoat import PATIENT_S, REFUSED, Saboteur, Turncoat

SEED_VARIABLE = "TEST_SEED"
NUM_CLIENTS = 8
NUM_TOKENS = 50
STAGES: tuple[RoleStage, ...] = ("handing over", "ending grants", "checking", "announcing")
VICTIMS = ("worker", "taker", "router", "etcd", "nats")


@pytest.fixture
def turncoat(mesh: MortalMesh) -> Iterator[Turncoat]:
    """Beside the two decode workers and the prefill worker of the mesh, which are there after its end."""
    turncoat = Turncoat(mesh)
    turncoat.start()
    try:
        mesh.running.wait_until("it may be chosen", lambda: mesh.num_known_workers() == {3}, PATIENT_S)
        yield turncoat
    finally:
        turncoat.end()
        mesh.running.wait_until("it is not chosen", lambda: mesh.num_known_workers() == {2})


@pytest.fixture
def chosen() -> random.Random:
    """Seeded anew each time; the seed is shown when the test fails, and may be given again."""
    seed = int(os.environ.get(SEED_VARIABLE, random.SystemRandom().randrange(10**6)))
    print(f"{SEED_VARIABLE}={seed}")
    return random.Random(seed)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_something_dies_at_each_stage_of_a_switch_and_one_role_stands(
    mesh: MortalMesh, turncoat: Turncoat, chosen: random.Random
) -> None:
    victims = chosen.sample(VICTIMS, len(STAGES))
    strike_in_turn(mesh, Saboteur(mesh, turncoat, chosen), list(zip(victims, STAGES, strict=True)))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_everything_dies_at_every_stage_of_a_switch_and_one_role_stands(
    mesh: MortalMesh, turncoat: Turncoat, chosen: random.Random
) -> None:
    strikes = 2 * list(itertools.product(VICTIMS, STAGES))
    chosen.shuffle(strikes)
    strike_in_turn(mesh, Saboteur(mesh, turncoat, chosen), strikes)


def strike_in_turn(mesh: MortalMesh, saboteur: Saboteur, strikes: list[tuple[str, RoleStage]]) -> None:
    """Under clients who read one text after the other; each is whole, and what it would have been.

    Only without a bus may they be told to come again, before anything else.
    """
    prompts = prompts_of("before it was betrayed", NUM_CLIENTS)
    expected = mesh.undisturbed(prompts, NUM_TOKENS)
    with mesh.under_load(prompts, NUM_TOKENS) as crowd:
        mesh.running.wait_until("the streams run", lambda: crowd.least_pieces() > 0)
        for victim, stage in strikes:
            pids = mesh.running.pids
            stood = asyncio.run(saboteur.strike(victim, stage))
            print(f"{victim} dies at {stage!r}: {stood.role} in epoch {stood.epoch} {stood.reason}")
            wait_all_back(mesh, pids)
            wait_served(mesh, crowd)
    wrongs = crowd.wrongs(expected)
    assert [one for one in wrongs if one.status != REFUSED or not saboteur.may_refuse(one)] == []


def wait_all_back(mesh: MortalMesh, pids: dict[str, int]) -> None:
    """Whom its launcher has started again is ready."""
    mesh.wait_back(pids, *(name for name, pid in mesh.running.pids.items() if pids[name] != pid))


def wait_served(mesh: MortalMesh, crowd: Crowd) -> None:
    """As many requests end as there are clients, so that none meets every death."""

    def num_whole() -> int:
        return sum(one.is_whole for one in crowd.ended)

    num_wanted = num_whole() + NUM_CLIENTS
    mesh.running.wait_until("all are served", lambda: num_whole() >= num_wanted, PATIENT_S)
