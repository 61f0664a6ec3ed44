"""Clients who ask for every kind of answer, side by side, and some leave early; each answer is judged."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx
import msgspec

from proto.names import new_id
from tests.mesh.equality.asking import Answer, ask
from tests.mesh.equality.cells import Delivery
from tests.mesh.equality.rows import BLOCK, ROWS, Asks, Row, StopAt, some_tokens

LIMIT_S = 90.0
LEAVING_SHARE = 0.15
PATIENCE_S = 1.0
SHARED_SALT = "shared"
LONG_TOKENS = 120
LONG = Asks(LONG_TOKENS, temperature=0, ignore_eos=True)

LONG_ROWS = [
    Row("greedy for long", [some_tokens(40, 31)], LONG),
    Row("greedy for longer", [some_tokens(9 * BLOCK, 32)], LONG),
    Row(
        "seeded for long", [some_tokens(30, 33)], Asks(LONG_TOKENS, temperature=0.8, seed=9, ignore_eos=True)
    ),
    Row("two for long", 2 * [some_tokens(50, 34)], LONG),
    Row("stopped after long", [some_tokens(45, 35)], LONG, StopAt.SPLIT_STRING),
]
"""Answers that are still running when their worker is told to take another role."""
MIXED_ROWS = [*(row for row in ROWS if row.asks.prompt_logprobs is None), *LONG_ROWS]


@dataclass(frozen=True)
class Known:
    """A row as it is asked, and what the mesh answers when nothing disturbs it."""

    row: Row
    asks: Asks
    answer: Answer


async def learn(http: httpx.AsyncClient, model: str) -> list[Known]:
    """Each of the rows, in peace. Where it shall stop, its own text tells at which string."""
    by_name = {row.name: await _learn_one(http, model, row) for row in MIXED_ROWS}
    return [by_name[row.name] for row in MIXED_ROWS]


async def _learn_one(http: httpx.AsyncClient, model: str, row: Row) -> Known:
    asks = row.asks
    if row.stop_at is not None:
        text = (await _ask_row(http, model, row, asks)).choices[0].text
        asks = msgspec.structs.replace(asks, stop=[text[-4:-1]])
    return Known(row, asks, await _ask_row(http, model, row, asks))


async def _ask_row(http: httpx.AsyncClient, model: str, row: Row, asks: Asks) -> Answer:
    body = {**row.body(asks), "model": model, "cache_salt": new_id()}
    return (await ask(http, row.endpoint, body, Delivery.WHOLE)).answer


@dataclass
class Verdicts:
    """`num_right` are those of an undisturbed mesh; `num_left` clients were gone before they could tell."""

    num_right: int = 0
    num_left: int = 0
    failed: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)

    @property
    def num_asked(self) -> int:
        return self.num_right + self.num_left + len(self.failed) + len(self.changed)


class Mixture:
    """Belongs to the event loop. `come` is one client, who asks until all is over."""

    def __init__(self, http: httpx.AsyncClient, model: str, table: Sequence[Known], seed: int) -> None:
        self.verdicts = Verdicts()
        self.is_over = False
        self._http = http
        self._model = model
        self._table = table
        self._random = random.Random(seed)
        self._news = asyncio.Event()

    async def come(self) -> None:
        while not self.is_over:
            await self._ask_one()
            self._news.set()

    async def wait_asked(self, num_asked: int) -> None:
        async with asyncio.timeout(LIMIT_S):
            while self.verdicts.num_asked < num_asked:
                self._news.clear()
                await self._news.wait()

    async def _ask_one(self) -> None:
        known = self._random.choice(self._table)
        delivery = self._random.choice(list(Delivery))
        body = {**known.row.body(known.asks), "model": self._model, "cache_salt": self._salt()}
        is_leaving = self._random.random() < LEAVING_SHARE
        try:
            async with asyncio.timeout(self._random.uniform(0, PATIENCE_S) if is_leaving else LIMIT_S):
                heard = await ask(self._http, known.row.endpoint, body, delivery)
        except TimeoutError:
            self._note_silence(known, is_leaving)
        except (AssertionError, ValueError, httpx.HTTPError) as error:
            self.verdicts.failed.append(f"{known.row.name}, {delivery.value}: {error!r}")
        else:
            self._judge(known, heard.answer)

    def _salt(self) -> str:
        """Half of the requests find what others left in caches, the rest finds nothing."""
        return SHARED_SALT if self._random.random() < 0.5 else new_id()

    def _note_silence(self, known: Known, is_leaving: bool) -> None:
        if is_leaving:
            self.verdicts.num_left += 1
        else:
            self.verdicts.failed.append(f"{known.row.name}: no answer within {LIMIT_S} s")

    def _judge(self, known: Known, found: Answer) -> None:
        if found == known.answer:
            self.verdicts.num_right += 1
        else:
            self.verdicts.changed.append(f"{known.row.name}: {found}, not {known.answer}")
