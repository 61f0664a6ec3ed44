"""What the router is for, in short: `kv` beside round-robin, and one prompt that everybody shares."""

import asyncio
from collections.abc import Iterator

import pytest

from services.replay.generators import Shape, shared_prefix
from services.replay.report import Limits
from services.servers import Server
from tests.mesh.simulated_mesh import SimulatedMesh
from workers.engine.simulated_model import SimulatedModel

NUM_WORKERS = 4
SEATS = 4
ANSWER_TOKENS = 16
NUM_PREFIXES = 16
PREFIX_BLOCKS = 2  # of a trace: 64 blocks of KV
POOL_BLOCKS = 320  # of each worker: all pools hold the prefixes once, and what runs
ENGINE = SimulatedModel(first_token=4, num_tokens=60, step_s=0.01, prefill_token_s=0.00002)


@pytest.fixture(scope="module")
def mesh(
    nats_server: Server, etcd_server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SimulatedMesh]:
    """Two models that differ in their policy alone, and one whose workers are soon full."""
    routing = {"policies": ["round_robin=round_robin"]}
    each = {"simulated": ENGINE, "num_blocks": POOL_BLOCKS, "context_tokens": 4096}
    folder = tmp_path_factory.mktemp("routing")
    with SimulatedMesh(folder, nats_server.url, etcd_server.url, routing) as mesh:
        mesh.start_crowd("kv", "kv", workers=NUM_WORKERS, **each)
        mesh.start_crowd("round-robin", "round_robin", workers=NUM_WORKERS, **each)
        mesh.start_crowd("narrow", "narrow", workers=NUM_WORKERS, max_sequences=SEATS, **each)
        mesh.wait_workers(3 * NUM_WORKERS)
        yield mesh


def test_kv_finds_twice_what_round_robin_finds_where_pools_hold_prefixes_once(mesh: SimulatedMesh) -> None:
    trace = shared_prefix(Shape(120, 20.0, 64, ANSWER_TOKENS), NUM_PREFIXES, PREFIX_BLOCKS)

    async def body() -> None:
        kv, round_robin = await asyncio.gather(
            *(mesh.play(policy, trace, Limits(), 1.0, 0) for policy in ("kv", "round_robin"))
        )
        assert not kv.errors and not round_robin.errors
        assert kv.hit_rate > 2 * round_robin.hit_rate

    asyncio.run(body())


def test_one_hot_prompt_uses_every_worker_and_is_hit_nearly_always(mesh: SimulatedMesh) -> None:
    at_once_per_s = NUM_WORKERS * SEATS / (ANSWER_TOKENS * ENGINE.step_s)
    trace = shared_prefix(Shape(200, at_once_per_s, 64, ANSWER_TOKENS, seed=1), 1, PREFIX_BLOCKS)

    async def body() -> None:
        report = await mesh.play("narrow", trace, Limits(), 1.0, 1)
        assert not report.errors
        assert len(report.shares) == NUM_WORKERS
        assert min(report.shares.values()) > 0.5 / NUM_WORKERS
        assert report.hit_rate > 0.8

    asyncio.run(body())
