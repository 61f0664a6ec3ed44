"""What must stay true while a worker serves; the process ends when it does not, and somebody restarts it."""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping

from proto import keys, subjects
from proto.cards import ModelCard
from proto.codec import decode, encode
from proto.errors import DeadlineExceeded, Disconnected, Fault, InternalFault, InvalidSetting
from proto.reports import AnyBeat, LoadReport
from proto.roles import WorkerState
from services.backoff import Backoff
from services.bus import Bus
from services.directory import Change, Changed, Directory, Entry, Listed, Removed
from services.liveness import Liveness
from workers.engine.engine import Engine
from workers.registration import check_alike
from workers.roles.term import Term
from workers.transfer.own_memory import OwnMemory

LOOK_S = 0.25
PROBE_S = 2.0
DOUBT_S = 2.0
"""A process that was stopped finds its threads silent when it wakes, for as long as each needs for a look;
and the step that it was in too long."""
BACK_S = 10.0
"""How long after its own silence a worker yields at once to another of its name, which came in its place."""
YIELD_S = 3.0
"""How long a worker waits for another of its name to end, before it ends itself."""

log = logging.getLogger(__name__)


async def check_names_free(bus: Bus, ns: str, workers: Iterable[str]) -> None:
    """
    Raises:
        InvalidSetting: another worker answers under one of these names.
    """
    by_subject = {subjects.worker_control(ns, worker): worker for worker in workers}
    for subject in await bus.find_responders(list(by_subject), PROBE_S):
        raise _name_taken(by_subject[subject])


async def guard_names(terms: Mapping[str, Term], liveness: Liveness[AnyBeat]) -> None:
    """Of two workers of one name one ends.

    Whoever may have been taken for lost ends: the other one came in its place. Of two that began at one
    moment the two agree on which.

    Args: `terms`: of all workers of this process, by their names; may change meanwhile.

    Raises:
        InvalidSetting: another worker beats under this name.
    """
    taken: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    rivals: dict[str, tuple[str, float]] = {}

    def hear(_: str, beat: AnyBeat) -> None:
        if not isinstance(beat, LoadReport) or beat.state is WorkerState.LEAVING:
            return
        term = terms.get(beat.worker)
        if term is None or term.incarnation == beat.incarnation or taken.done():
            return
        known, since_s = rivals.get(beat.worker, ("", 0.0))
        if known != beat.incarnation:
            since_s = time.monotonic()
            rivals[beat.worker] = (beat.incarnation, since_s)
        must_yield = beat.incarnation > term.incarnation and time.monotonic() - since_s >= YIELD_S
        if must_yield or liveness.was_lost(BACK_S):
            taken.set_result(beat.worker)

    liveness.on_beat(hear)
    raise _name_taken(await taken)


def _name_taken(worker: str) -> InvalidSetting:
    return InvalidSetting(setting="worker.name", reason=f"another worker named {worker!r} is there")


async def guard_model(directory: Directory, ns: str, ours: ModelCard) -> None:
    """The model's card stays in the directory while we serve it, and stays one that we serve.

    An etcd that came back empty has lost it. And of two workers that publish different cards at one moment
    one ends: they must not serve one model together.

    Raises:
        InvalidSetting: the model's card has become one that we do not serve.
    """
    key = keys.model(ns, ours.name)
    async with directory.watch(key) as changes:
        async for change in changes:
            for entry in _entries(change):
                if entry.key == key:
                    check_alike(ours, decode(entry.value, ModelCard))
            if _says_gone(change, key):
                await _put_again(directory, key, ours)


def _entries(change: Change) -> Iterable[Entry]:
    match change:
        case Listed(entries):
            return entries
        case Changed(entry):
            return (entry,)
        case _:
            return ()


def _says_gone(change: Change, key: str) -> bool:
    if isinstance(change, Listed):
        return all(entry.key != key for entry in change.entries)
    return isinstance(change, Removed) and change.key == key


async def _put_again(directory: Directory, key: str, ours: ModelCard) -> None:
    """Unless somebody else was quicker, whose card the watch brings."""
    backoff = Backoff()
    while True:
        try:
            if await directory.create(key, encode(ours)):
                log.warning("the model's card was gone; put again", extra={"model": ours.name})
            return
        except (Disconnected, DeadlineExceeded):
            await asyncio.sleep(backoff.next_s())


def _describe(fault: Fault | None) -> str:
    return f"the engine: {fault.values}" if fault is not None else ""


async def guard_threads(engine: Engine, memory: OwnMemory) -> None:
    """
    Raises:
        InternalFault: the engine has ended or hangs, or the transfers of a rank have ended or hang.
    """
    num_faults = 0
    while True:
        await asyncio.sleep(LOOK_S)
        has_ended = engine.has_ended
        fault = _describe(engine.fault) or memory.fault
        num_faults = num_faults + 1 if fault else 0
        if has_ended or num_faults * LOOK_S >= DOUBT_S:
            raise InternalFault(reason=fault)
