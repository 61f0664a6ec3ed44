"""One mesh for all deaths, and the check that follows each: it is at rest again."""

from collections.abc import Iterator

import pytest

from tests.mesh.deaths.astray_clock import astray_clock
from tests.mesh.deaths.mortal_mesh import TIMES, MortalMesh, run_mortal_mesh
from tests.tiny_model import write_tiny_llama

NUM_AT_ONCE = 48
"""Sequences that the two decode workers compute at once."""
NUM_SEATS = 60
"""What routers fill of them: a quarter more."""
BOUNDS = {
    "KVMESH_FRONTEND_OUTAGE_LIMIT_S": "6",
    "KVMESH_DIRECTORY_LEASE_TTL_S": "3",
    "KVMESH_ROUTER_QUEUE_WAIT_S": "60",
    "KVMESH_WORKER_MAX_SEQUENCES": str(NUM_AT_ONCE // 2),
}
PREFILL = {"KVMESH_SIMULATED_PREFILL_TOKEN_S": "0.002", "KVMESH_WORKER_PREFILL_CHOICE": "threshold"}


@pytest.fixture(scope="package")
def long_lived_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MortalMesh]:
    """Two routers, two decode workers and a prefill worker, simulated: 20 ms a token, 2 ms a prompt token.

    Their wall clocks are astray, and so are the times in their logs.
    """
    folder = tmp_path_factory.mktemp("deaths")
    model = write_tiny_llama(folder / "tiny")
    flags = ("--engine", "simulated", "--routers", "2", "--decode", "2", "--prefill", "1")
    environ = TIMES | BOUNDS | PREFILL | astray_clock(folder / "clock")
    with run_mortal_mesh(folder, model, *flags, environ=environ) as mesh:
        yield mesh


@pytest.fixture
def mesh(long_lived_mesh: MortalMesh) -> Iterator[MortalMesh]:
    """The mesh that all tests share, at rest before and after each."""
    long_lived_mesh.running.wait_at_rest()
    yield long_lived_mesh
    long_lived_mesh.running.wait_at_rest()
