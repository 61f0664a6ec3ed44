"""Worker processes that many tests share: those that compute, and simulated ones, each kind a fleet."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proto.names import new_id
from proto.roles import Role
from services.servers import Server
from tests.tiny_model import write_tiny
from tests.workers.harness import Fleet
from workers.engine.simulated_model import SimulatedModel

CONTEXT_TOKENS = 2048
BLOCK_SIZE = 16
REMOTE_MIN_TOKENS = 24


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of random weights, named `tiny`."""
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny", context=CONTEXT_TOKENS)


def _open_fleet(nats: Server, etcd: Server, folder: Path) -> Fleet:
    return Fleet(nats, etcd, f"test-{new_id()}", folder)


@pytest.fixture(scope="session")
def computing(
    nats_server: Server, etcd_server: Server, tiny: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """Four workers with a real model: `local` sends no prompt away, `direct` asks for remote prefills,
    `queued` puts them into the queue, `prefill` does them."""
    fleet = _open_fleet(nats_server, etcd_server, tmp_path_factory.mktemp("computing"))
    common: dict[str, Any] = {"num_blocks": 300, "step_tokens": 128, "push_kib": 1, "grant_wait_s": 10.0}
    remote = {**common, "remote_min_tokens": REMOTE_MIN_TOKENS, "prefill_choice": "threshold"}
    fleet.start("local", Role.DECODE, tiny, remote_min_tokens=10**9, **common)
    fleet.start("direct", Role.DECODE, tiny, **remote)
    fleet.start("queued", Role.DECODE, tiny, asks_directly=False, **remote)
    fleet.start("prefill", Role.PREFILL, tiny, **common)
    yield from _ready(fleet)


@pytest.fixture(scope="session")
def simulated(
    nats_server: Server, etcd_server: Server, tiny: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """`decode` runs two sequences at once, `prefill` has two jobs in hand. A step takes 5 ms, and each token
    of a prompt 1 ms more."""
    fleet = _open_fleet(nats_server, etcd_server, tmp_path_factory.mktemp("simulated"))
    common: dict[str, Any] = {
        "engine": "simulated",
        "simulated": SimulatedModel(step_s=0.005, prefill_token_s=0.001, first_token=10, num_tokens=400),
        "num_blocks": 256,
        "step_tokens": 32,
        "grant_wait_s": 10.0,
        "max_sequences": 2,
    }
    remote = {**common, "remote_min_tokens": REMOTE_MIN_TOKENS, "prefill_choice": "threshold"}
    fleet.start("decode", Role.DECODE, tiny, **remote)
    fleet.start("prefill", Role.PREFILL, tiny, max_jobs=2, **common)
    yield from _ready(fleet)


def _ready(fleet: Fleet) -> Iterator[Fleet]:
    try:
        asyncio.run(fleet.wait_ready(*(worker.name for worker in fleet.workers)))
        yield fleet
    finally:
        fleet.close()
