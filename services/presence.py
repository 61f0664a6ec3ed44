"""That a process is there: its key while it serves, its beats until it has said that it leaves."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from proto import subjects
from proto.cards import Presence
from proto.codec import encode
from proto.errors import KvmeshError
from proto.reports import Beat
from services.bus import Bus
from services.directory import Directory
from services.liveness import BeatSettings, send_beats

log = logging.getLogger(__name__)


@asynccontextmanager
async def registered(directory: Directory, key: str, presence: Presence) -> AsyncIterator[None]:
    """In the directory for the time of the body; while etcd is away, as soon as it is back. Should it be away
    at the end, or the body fail, the lease ends it."""
    try:
        await directory.own(key, encode(presence))
    except KvmeshError as error:
        log.warning("not registered yet: %s", error)
    yield
    try:
        await directory.disown(key)
    except KvmeshError as error:
        log.warning("still registered: %s", error)


@asynccontextmanager
async def beating(
    bus: Bus, ns: str, process: str, beat: Callable[[bool], Beat], settings: BeatSettings
) -> AsyncIterator[None]:
    """Beats for the time of the body; the last one says that it leaves. `beat` is told whether it does."""
    is_leaving = False
    subject = subjects.beat(ns, process)
    async with send_beats(bus, subject, lambda: encode(beat(is_leaving)), settings):
        try:
            yield
        finally:
            is_leaving = True
