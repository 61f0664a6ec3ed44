"""An answer that another worker takes over in its middle, with its KV, is that of a full recompute."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from proto.control import Done
from proto.hand_over import Drain, Undrain
from proto.names import new_id
from proto.reports import BEATS, AnyBeat, LoadReport
from proto.roles import DrainMode
from services.bus import Bus, BusSettings, open_bus
from services.drain import wait_drained
from services.liveness import BeatSettings, watch_beats
from services.patience import open_wait
from services.worker_ask import ask_worker
from tests.mesh.equality.asking import Heard, ask
from tests.mesh.equality.cells import Delivery
from tests.mesh.equality.recompute import Expected, Recompute
from tests.mesh.equality.rows import CONTEXT, Asks, Row, some_tokens
from tests.mesh.equality.stage import ENVIRON, SPECULATING
from tests.mesh.running_mesh import RunningMesh, run_mesh
from tests.tiny_model import write_tiny

NUM_TOKENS = 150
NUM_ROUNDS = 5
"""An answer may be over before its worker hears that it shall let go: then they are asked anew."""
LIMIT_S = 60.0
LONG: dict[str, object] = {"type": "array", "items": {"type": "boolean"}, "minItems": 40}
PENALISED = Asks(
    NUM_TOKENS,
    temperature=0.8,
    seed=7,
    ignore_eos=True,
    frequency_penalty=0.3,
    repetition_penalty=1.2,
    logprobs=1,
)
ROWS = [
    Row("greedy", [some_tokens(45, 40)], Asks(NUM_TOKENS, temperature=0, ignore_eos=True)),
    Row("seeded, penalised and told of", [some_tokens(30, 42)], PENALISED),
    Row("of a schema", [some_tokens(31, 43)], Asks(NUM_TOKENS, temperature=0.8, seed=8, guided_json=LONG)),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("handed over") / "tiny", context=CONTEXT)


@pytest.fixture(scope="module")
def pair(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    """Two decode workers, which guess."""
    flags = ("--decode", "2", "--prefill", "0")
    with run_mesh(tmp_path_factory.mktemp("pair"), str(model), *flags, environ=ENVIRON | SPECULATING) as mesh:
        mesh.wait_until("both are ready", lambda: "ready after" in mesh.output(), LIMIT_S)
        yield mesh


async def wait_busy(bus: Bus, ns: str) -> str:
    """A worker under whose hands answers are."""
    found: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def hear(_: str, beat: AnyBeat) -> None:
        if isinstance(beat, LoadReport) and beat.num_running and not found.done():
            found.set_result(beat.worker)

    async with watch_beats(bus, ns, BeatSettings(), BEATS.decode) as liveness, asyncio.timeout(LIMIT_S):
        liveness.on_beat(hear)
        return await found


async def ask_and_drain(pair: RunningMesh, table: list[Expected]) -> list[Heard]:
    """All rows at once; who has some of them is drained, and takes work again afterwards."""
    (model,) = pair.models()
    told: list[str] = []
    deliveries = [Delivery.STREAMED, Delivery.WHOLE, Delivery.STREAMED]

    async def ask_one(http: httpx.AsyncClient, expected: Expected, delivery: Delivery) -> Heard:
        body = {**expected.row.body(expected.asks), "model": model, "cache_salt": new_id()}
        return await ask(http, expected.row.endpoint, body, delivery)

    async with (
        httpx.AsyncClient(base_url=pair.url, timeout=LIMIT_S, trust_env=False) as http,
        open_bus(BusSettings(url=pair.file.nats_url), "operator") as bus,
        asyncio.TaskGroup() as tasks,
    ):
        asking = [
            tasks.create_task(ask_one(http, *each), name=each[0].row.name)
            for each in zip(table, deliveries, strict=True)
        ]
        worker = await wait_busy(bus, pair.file.namespace)
        drain = Drain(DrainMode.MOVE, LIMIT_S)
        await ask_worker(bus, pair.file.namespace, worker, drain, Done, LIMIT_S)
        async with open_wait(told.append, "") as wait:
            await wait_drained(bus, pair.file.namespace, worker, LIMIT_S, wait)
        await ask_worker(bus, pair.file.namespace, worker, Undrain(), Done, LIMIT_S)
        return [await each for each in asking]


@pytest.mark.slow
def test_an_answer_handed_over_in_its_middle_is_that_of_a_full_recompute(
    model: Path, pair: RunningMesh
) -> None:
    recompute = Recompute(model, CONTEXT)
    table = [recompute.expect(row) for row in ROWS]
    num_moved = 0
    for _ in range(NUM_ROUNDS):
        heard = asyncio.run(ask_and_drain(pair, table))
        for expected, each in zip(table, heard, strict=True):
            expected.check(each)
        num_moved += sum(facts.attempts > 1 for each in heard for facts in each.facts)
        if num_moved:
            break
    assert num_moved, "every answer was over before it could be handed over"
    pair.wait_at_rest()
