"""What is under a prefix of the directory, and its changes: listed again whenever one may be missed."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from proto.errors import KvmeshError
from services.backoff import Backoff
from services.etcd import Entry, EtcdClient, Removal

log = logging.getLogger(__name__)


class Listed(msgspec.Struct, frozen=True):
    """Everything there is. What a reader knew before and does not find here is gone."""

    entries: list[Entry]


class Changed(msgspec.Struct, frozen=True):
    entry: Entry


class Removed(msgspec.Struct, frozen=True):
    key: str


Change = Listed | Changed | Removed


async def follow_prefix(client: EtcdClient, prefix: str) -> AsyncGenerator[Change, None]:
    """`Listed` first, then single changes; `Listed` again after every cancel, end, loss or compaction.

    While etcd is away it is silent and tries again, at most half a second apart.
    """
    backoff = Backoff()
    while True:
        try:
            listing = await client.list(prefix)
            yield Listed(listing.entries)
            async with aclosing(client.follow(listing, prefix)) as events:
                async for event in events:
                    backoff.reset()
                    yield Removed(event.key) if isinstance(event, Removal) else Changed(event)
        except KvmeshError as error:
            log.debug("watch of %s lost", prefix, extra={"reason": str(error)})
        await asyncio.sleep(backoff.next_s())
