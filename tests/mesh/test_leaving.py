"""Clients that leave at random moments of every phase: all is then where it began, with no new traffic."""

import asyncio
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from proto import subjects
from services.bus import BusSettings, open_bus
from services.jetstream import ApiReply, ask_api
from services.replay.http_call import Server, call, parse_url
from tests.mesh.running_mesh import RunningMesh, run_mesh
from tests.tiny_model import write_tiny_llama

SEED_VARIABLE = "TEST_SEED"
NUM_TOGETHER = 32
LIMIT_S = 90.0
LONG_LIMIT_S = 600.0
PATIENCE_S = (0.05, 0.2, 0.5, 1.0, 2.0, 4.0)
"""Each client's is a part of one of these: it leaves before it was routed, in the middle, or near its end."""
PROMPT_TOKENS = (1, 16, 40, 200, 400)
PHASES = {
    "router-0": {"kvmesh_route_queue_length"},
    "decode-0": {
        "kvmesh_prefill_queue_length",  # waiting for a prefill here
        "kvmesh_decode_queue_length",  # awaiting the KV of a prefill elsewhere
        "kvmesh_blocks_granted",
        "kvmesh_sequences_running",
        "kvmesh_attempts_served",
        "kvmesh_streams_kept",
    },
    "prefill-0": {"kvmesh_jobs_in_hand", "kvmesh_grants_held", "kvmesh_blocks_used"},
    "frontend-0": {"kvmesh_requests_running", "kvmesh_streams_live"},
}
"""Gauges that have risen when clients were in every phase."""
ENVIRON = {
    "KVMESH_SIMULATED_STEP_S": "0.004",
    "KVMESH_SIMULATED_PREFILL_TOKEN_S": "0.0005",
    "KVMESH_SIMULATED_FIRST_TOKEN": "20",
    "KVMESH_SIMULATED_NUM_TOKENS": "200",
    "KVMESH_WORKER_REMOTE_MIN_TOKENS": "32",
    "KVMESH_WORKER_PREFILL_CHOICE": "threshold",
    "KVMESH_WORKER_MAX_SEQUENCES": "6",
    "KVMESH_WORKER_MAX_WAITING": "8",
    "KVMESH_WORKER_MAX_JOBS": "1",
    "KVMESH_WORKER_NUM_BLOCKS": "400",
    "KVMESH_WORKER_STEP_TOKENS": "64",
    "KVMESH_WORKER_PUSH_KIB": "1",
    "KVMESH_ROUTER_QUEUE_WAIT_S": "300",
}


class _StreamState(msgspec.Struct, frozen=True):
    messages: int
    last_seq: int


class _StreamInfo(ApiReply, frozen=True):
    state: _StreamState


@pytest.fixture
def chosen() -> random.Random:
    """Seeded anew each time; the seed is shown when the test fails, and may be given again."""
    seed = int(os.environ.get(SEED_VARIABLE, random.SystemRandom().randrange(10**6)))
    print(f"{SEED_VARIABLE}={seed}")
    return random.Random(seed)


def open_mesh(folder: Path, *flags: str) -> Iterator[RunningMesh]:
    model = write_tiny_llama(folder / "tiny")
    with run_mesh(folder / "state", str(model), "--engine", "simulated", *flags, environ=ENVIRON) as mesh:
        mesh.wait_until("all workers are ready", lambda: "ready after" in mesh.output(), 60)
        yield mesh


@pytest.fixture
def small_mesh(tmp_path: Path) -> Iterator[RunningMesh]:
    yield from open_mesh(tmp_path)


@pytest.fixture
def large_mesh(tmp_path: Path) -> Iterator[RunningMesh]:
    yield from open_mesh(tmp_path, "--decode", "2", "--prefill", "2", "--routers", "2")


def test_clients_that_leave_in_any_phase_leave_nothing_behind(
    small_mesh: RunningMesh, chosen: random.Random
) -> None:
    asyncio.run(see_clients_leave(small_mesh, chosen, 150))
    check_empty(small_mesh)


@pytest.mark.slow
@pytest.mark.timeout(2 * LONG_LIMIT_S)
def test_five_hundred_clients_leave_nothing_behind_on_many_workers(
    large_mesh: RunningMesh, chosen: random.Random
) -> None:
    asyncio.run(see_clients_leave(large_mesh, chosen, 500, LONG_LIMIT_S))
    check_empty(large_mesh)


async def see_clients_leave(
    mesh: RunningMesh, chosen: random.Random, num_clients: int, limit_s: float = LIMIT_S
) -> None:
    """`NUM_TOGETHER` at any time, until so many requests have lost their client, and some in each phase.

    Each request has a connection of its own: a pool of them loses some to those who leave while they wait for
    one, and has none left in the end.
    """
    unseen = {(child, gauge) for child, gauges in PHASES.items() for gauge in gauges}
    server = parse_url(mesh.url)
    async with asyncio.timeout(limit_s), asyncio.TaskGroup() as tasks:
        clients = [
            tasks.create_task(_come_and_leave(server, chosen), name=f"client {number}")
            for number in range(NUM_TOGETHER)
        ]
        while unseen or await _count(mesh, "cancelled") < num_clients:
            for child, gauge in list(unseen):
                if await asyncio.to_thread(mesh.metric, child, gauge):
                    unseen.discard((child, gauge))
        for client in clients:
            client.cancel()
    assert await _count(mesh, "length") > 0, "no client was served"


async def _count(mesh: RunningMesh, reason: str) -> float:
    counter = "kvmesh_requests_total"
    return await asyncio.to_thread(mesh.metric, "frontend-0", counter, reason=reason)


async def _come_and_leave(server: Server, chosen: random.Random) -> None:
    """One after the other, each for as long as its patience lasts."""
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(chosen.choice(PATIENCE_S) * chosen.random()):
                await _ask(server, _body(chosen))


def _body(chosen: random.Random) -> dict[str, object]:
    """Some prompts are cold, some share a prefix that workers have by now."""
    num_tokens = chosen.choice(PROMPT_TOKENS)
    start = chosen.choice((30, chosen.randrange(30, 200)))
    return {
        "model": "tiny",
        "prompt": [start + index % 97 for index in range(num_tokens)],
        "max_tokens": chosen.choice((1, 30, 300)),
        "stream": chosen.random() < 0.7,
        "ignore_eos": True,
    }


async def _ask(server: Server, body: dict[str, object]) -> None:
    pieces: list[tuple[int, bytes]] = []
    request = server.request("POST", "/v1/completions", json.dumps(body).encode())
    await call(server, request, lambda status, piece: pieces.append((status, piece)))
    said = b"".join(piece for _, piece in pieces)
    assert {status for status, _ in pieces} == {200}, said
    assert b'"error"' not in said, said


def check_empty(mesh: RunningMesh) -> None:
    """On every process's metrics, in the work queue, and in what workers say of their blocks."""
    mesh.wait_at_rest()
    jobs = asyncio.run(_read_queue(mesh))
    assert jobs.last_seq, "no job was ever queued"
    assert not jobs.messages
    for worker, holdings in _read_pools(mesh).items():
        assert holdings["free_blocks"] == holdings["total_blocks"], worker
        assert not holdings["active_blocks"], worker
        assert not any(holdings[kind] for kind in ("granted", "pinned", "quarantined", "held")), worker


async def _read_queue(mesh: RunningMesh) -> _StreamState:
    file = mesh.file
    async with open_bus(BusSettings(url=file.nats_url), "looks at the queue") as bus:
        stream = subjects.prefill_stream(file.namespace)
        return (await ask_api(bus, f"STREAM.INFO.{stream}", None, _StreamInfo)).state


def _read_pools(mesh: RunningMesh) -> dict[str, dict[str, object]]:
    command = [
        sys.executable,
        "-m",
        "services.cli",
        "status",
        "--pools",
        "--json",
        "--state",
        str(mesh.state),
    ]
    pools = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert isinstance(pools, dict)
    assert len(pools) == sum(child.kind == "worker" for child in mesh.file.processes)
    return pools
