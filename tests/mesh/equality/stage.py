"""One cell on one mesh: warms what shall be warm, asks as the cell says, and counts what really happened."""

import asyncio
from dataclasses import dataclass

import httpx

from proto.names import new_id
from tests.mesh.equality.asking import Heard, ask
from tests.mesh.equality.cells import Cell, Delivery, Load, Warmth
from tests.mesh.equality.recompute import Expected
from tests.mesh.equality.rows import BLOCK, Tokens
from tests.mesh.running_mesh import RunningMesh

LIMIT_S = 60.0
NUM_BLOCKS = 456
ENVIRON = {
    "KVMESH_WORKER_BLOCK_SIZE": str(BLOCK),
    "KVMESH_WORKER_NUM_BLOCKS": str(NUM_BLOCKS),
    "KVMESH_WORKER_REMOTE_MIN_TOKENS": str(BLOCK),
    "KVMESH_WORKER_PREFILL_CHOICE": "threshold",
    "KVMESH_WORKER_STEP_TOKENS": "128",  # the longest prompts are computed in two chunks
}
SPECULATING = {
    "KVMESH_WORKER_SPECULATIVE": "ngram",
    "KVMESH_WORKER_NGRAM_MIN_TOKENS": "1",  # short answers say few things twice
}


@dataclass(frozen=True)
class Counts:
    """What the workers of a mesh count. A mesh without prefill workers has served and moved nothing."""

    preemptions: float
    jobs_served: float
    bytes_pulled: float
    bytes_pushed: float
    prefilled_remotely: float

    def __sub__(self, before: "Counts") -> "Counts":
        return Counts(
            self.preemptions - before.preemptions,
            self.jobs_served - before.jobs_served,
            self.bytes_pulled - before.bytes_pulled,
            self.bytes_pushed - before.bytes_pushed,
            self.prefilled_remotely - before.prefilled_remotely,
        )


@dataclass(frozen=True)
class Told:
    """One request that was asked, and what came. `salt` is its own: it shares no KV with any other."""

    expected: Expected
    salt: str
    heard: Heard


def count(mesh: RunningMesh, *, has_prefill: bool) -> Counts:
    return Counts(
        preemptions=mesh.metric("decode-0", "kvmesh_preemptions"),
        jobs_served=mesh.metric("prefill-0", "kvmesh_prefill_jobs_served_total") if has_prefill else 0,
        bytes_pulled=mesh.metric("prefill-0", "kvmesh_kv_bytes_pulled_total") if has_prefill else 0,
        bytes_pushed=mesh.metric("prefill-0", "kvmesh_kv_bytes_pushed_total") if has_prefill else 0,
        prefilled_remotely=mesh.metric("decode-0", "kvmesh_prefills_total", where="remote"),
    )


def num_primed(prompt: Tokens, warmth: Warmth) -> int:
    """How many of the prompt's tokens are cached when it is asked; its last one never counts."""
    match warmth:
        case Warmth.COLD:
            return 0
        case Warmth.HALF:
            return len(prompt) // 2 // BLOCK * BLOCK
        case Warmth.WARM:
            return (len(prompt) - 1) // BLOCK * BLOCK


def can_be_sent(expected: Expected, delivery: Delivery) -> bool:
    """What the prompt's tokens are worth is not told in a stream."""
    return delivery is Delivery.WHOLE or expected.asks.prompt_logprobs is None


class Stage:
    """Plays cells on a mesh."""

    def __init__(self, mesh: RunningMesh) -> None:
        self._url = mesh.url
        (self._model,) = mesh.models()

    async def play(self, cell: Cell, table: list[Expected], crowd: Expected) -> list[Told]:
        """Asks every row of `table` that can be asked so, where the pool shall be too small with `crowd` just
        before them."""
        before = [crowd] if cell.load is Load.PREEMPTED else []
        rows = [each for each in table if can_be_sent(each, cell.delivery)]
        asked = [(expected, new_id()) for expected in (*before, *rows)]
        limits = httpx.Limits(max_connections=len(asked))
        async with httpx.AsyncClient(
            base_url=self._url, timeout=LIMIT_S, limits=limits, trust_env=False
        ) as http:
            if cell.load is Load.ALONE:
                return [await self._play_one(http, cell, *each) for each in asked]
            for expected, salt in asked:
                await self._prime(http, expected, salt, cell.warmth)
            return await asyncio.gather(*(self._ask(http, *each, cell.delivery) for each in asked))

    async def _play_one(self, http: httpx.AsyncClient, cell: Cell, expected: Expected, salt: str) -> Told:
        await self._prime(http, expected, salt, cell.warmth)
        return await self._ask(http, expected, salt, cell.delivery)

    async def _ask(self, http: httpx.AsyncClient, expected: Expected, salt: str, delivery: Delivery) -> Told:
        row = expected.row
        body = {**row.body(expected.asks), "model": self._model, "cache_salt": salt}
        return Told(expected, salt, await ask(http, row.endpoint, body, delivery))

    async def _prime(self, http: httpx.AsyncClient, expected: Expected, salt: str, warmth: Warmth) -> None:
        """Brings the beginning of the prompts into the decode worker's cache.

        Half a prompt goes block by block, each too short to be prefilled elsewhere: the prefill worker has
        none of it, and must pull it.
        """
        for prompt in expected.prompts:
            num_tokens = num_primed(prompt, warmth)
            if warmth is Warmth.WARM and num_tokens:
                await self._prefill(http, prompt, salt)
            elif warmth is Warmth.HALF:
                for end in range(BLOCK, num_tokens + 1, BLOCK):
                    await self._prefill(http, prompt[:end], salt)

    async def _prefill(self, http: httpx.AsyncClient, prompt: Tokens, salt: str) -> None:
        body = {"model": self._model, "prompt": prompt, "max_tokens": 1, "cache_salt": salt}
        await ask(http, "completions", body, Delivery.WHOLE)
