"""Where the lines come from: cards of the directory, beats of the bus, and holdings asked of each worker."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from proto import keys, subjects
from proto.cards import WorkerCard
from proto.codec import decode, encode
from proto.control import CONTROL_REPLIES, AskHoldings, Holdings
from proto.errors import DeadlineExceeded, Disconnected, InternalFault, InvalidRequest, NoResponder
from proto.reports import BEATS, AnyBeat, LoadReport
from proto.roles import Order
from services.bus import Bus, BusSettings, open_bus
from services.directory import Directory, DirectorySettings, open_directory
from services.liveness import BeatSettings, Liveness, watch_beats
from services.planner.election import line_up
from services.status.rows import WorkerRow, make_rows
from services.status.status_settings import Address

ASK_LIMIT_S = 2.0
log = logging.getLogger(__name__)

_Kept = TypeVar("_Kept", WorkerCard, Order)


class MeshView:
    """A mesh as it is seen from outside. See `open_view`."""

    def __init__(self, bus: Bus, directory: Directory, liveness: Liveness[AnyBeat], ns: str) -> None:
        self._bus = bus
        self._directory = directory
        self._liveness = liveness
        self._ns = ns
        self._cards: dict[str, WorkerCard] = {}
        self._orders: dict[str, Order] = {}
        self._planners: list[str] = []
        self._beat_came = asyncio.Event()
        liveness.on_beat(self._on_beat)

    def _on_beat(self, process: str, beat: AnyBeat) -> None:
        self._beat_came.set()

    async def wait_beats(self, limit_s: float) -> None:
        """Returns when every worker with a card has beaten since the view was opened, or at the limit."""
        await self.look()
        try:
            async with asyncio.timeout(limit_s):
                while not all(self._liveness.is_alive(worker) for worker in self._cards):
                    self._beat_came.clear()
                    await self._beat_came.wait()
        except TimeoutError:
            return

    async def look(self) -> list[WorkerRow]:
        """Every worker now; while etcd is away, by the cards and orders of the last look."""
        try:
            self._cards = await self._read_all(keys.workers(self._ns), WorkerCard)
            self._orders = await self._read_all(keys.orders(self._ns), Order)
        except (Disconnected, DeadlineExceeded) as error:
            log.warning("the cards are old: %s", error)
        beating = set(self._liveness.alive())
        heard = {process: self._liveness.last(process) for process in self._cards.keys() | beating}
        reports = {process: beat for process, beat in heard.items() if isinstance(beat, LoadReport)}
        return make_rows(self._cards, reports, beating, self._orders)

    async def _read_all(self, prefix: str, kind: type[_Kept]) -> dict[str, _Kept]:
        """What lies under `prefix`, by the ids at the ends of the keys."""
        found = {}
        for entry in await self._directory.list(prefix):
            try:
                found[keys.last_part(entry.key)] = decode(entry.value, kind)
            except InvalidRequest as error:
                log.warning("what lies at %s cannot be read: %s", entry.key, error)
        return found

    async def planners(self) -> list[str]:
        """The one that leads, then those that stand by; while etcd is away, those of the last look."""
        try:
            self._planners = line_up(await self._directory.list(keys.planners(self._ns)))
        except (Disconnected, DeadlineExceeded) as error:
            log.warning("the planners are old: %s", error)
        return self._planners

    async def ask_holdings(self, worker: str) -> Holdings:
        """
        Raises:
            NoResponder, DeadlineExceeded, Disconnected: the worker gives no answer.
            InternalFault, InvalidRequest: it gives another one.
        """
        subject = subjects.worker_control(self._ns, worker)
        answer = await self._bus.request(subject, encode(AskHoldings()), ASK_LIMIT_S)
        reply = CONTROL_REPLIES.decode(answer)
        if not isinstance(reply, Holdings):
            raise InternalFault(reason=f"{worker} answered AskHoldings with {type(reply).__name__}")
        return reply

    async def all_holdings(self) -> dict[str, Holdings | None]:
        """Of every worker with a card; None for one that gives no answer."""
        holdings: dict[str, Holdings | None] = {}
        for worker in sorted(await self._read_all(keys.workers(self._ns), WorkerCard)):
            try:
                holdings[worker] = await self.ask_holdings(worker)
            except (NoResponder, DeadlineExceeded) as error:
                log.info("no holdings: %s", error)
                holdings[worker] = None
        return holdings


@asynccontextmanager
async def open_view(address: Address, connect_limit_s: float) -> AsyncIterator[MeshView]:
    """A view for the time of the body.

    Raises:
        Disconnected: NATS or etcd is out of reach.
        InvalidSetting: something else listens there.
    """
    bus_settings = BusSettings(url=address.nats_url, connect_timeout_s=connect_limit_s)
    directory_settings = DirectorySettings(
        endpoints=address.etcd_endpoint.split(","), connect_timeout_s=connect_limit_s
    )
    async with (
        open_bus(bus_settings, "kvmesh-status") as bus,
        open_directory(directory_settings) as directory,
        watch_beats(bus, address.ns, BeatSettings(), BEATS.decode) as liveness,
    ):
        yield MeshView(bus, directory, liveness, address.ns)
