"""The directory: who exists. Keys with revisions, leased keys, transactions and watches, over etcd."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Annotated

import msgspec

from proto.errors import Conflict, DeadlineExceeded, Disconnected, InvalidSetting
from services.backoff import Backoff
from services.etcd import Entry, EtcdClient, Guard, Put, Refusal, open_channel
from services.etcd_endpoint import find_stranger
from services.lease import LeaseKeeper
from services.renewals import Renewals
from services.tasks import open_tasks
from services.watch import Change, Changed, Listed, Removed, follow_prefix

__all__ = [
    "Change",
    "Changed",
    "Directory",
    "DirectorySettings",
    "Entry",
    "Guard",
    "Listed",
    "Put",
    "Removed",
    "open_directory",
]


LOOK_LIMIT_S = 2.0
RENEW_S = 1.0

log = logging.getLogger(__name__)


class DirectorySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How etcd is reached."""

    endpoints: Annotated[
        list[str],
        msgspec.Meta(description="host:port of each etcd member; one name may stand for many", min_length=1),
    ] = msgspec.field(default_factory=lambda: ["127.0.0.1:2379"])
    lease_ttl_s: Annotated[
        int, msgspec.Meta(description="seconds that a silent process's keys stay in the directory", ge=1)
    ] = 10
    connect_timeout_s: Annotated[
        float, msgspec.Meta(description="seconds a starting process waits for etcd", gt=0)
    ] = 30.0
    wrong_server_after_s: Annotated[
        float,
        msgspec.Meta(
            description="seconds a starting process bears an etcd that takes connections only", ge=0
        ),
    ] = 10.0
    rpc_timeout_s: Annotated[float, msgspec.Meta(description="seconds for one call of etcd", gt=0)] = 5.0


class Directory:
    """An open directory. A failed write may have happened: read again, or guard the next one.

    Raises, from every call:
        Disconnected: etcd is out of reach.
        DeadlineExceeded: no answer in time.
    """

    def __init__(self, client: EtcdClient, renewals: Renewals, settings: DirectorySettings) -> None:
        self._client = client
        self._renewals = renewals
        self._settings = settings
        self.lease = self._new_keeper(min(settings.lease_ttl_s / 4, RENEW_S))  # the process's own
        self.listeners = client.listeners  # called with `is_connected` whenever it changes

    @property
    def is_connected(self) -> bool:
        """Whether etcd answered the last call; the lease makes one each second, or more often."""
        return self._client.is_connected

    @property
    def lease_id(self) -> int:
        """The lease now held; 0 while there is none."""
        return self.lease.lease_id

    async def get(self, key: str) -> Entry | None:
        return await self._client.get(key)

    async def list(self, prefix: str) -> list[Entry]:
        """Every entry under `prefix`, in the order of keys, as at one moment."""
        return (await self._client.list(prefix)).entries

    async def put(self, key: str, value: bytes) -> int:
        """The revision of the change."""
        return await self.transact((), (Put(key, value),))

    async def delete(self, key: str) -> None:
        """Removes `key`; nothing when it does not exist."""
        await self._client.write((), (key,))

    async def create(self, key: str, value: bytes) -> bool:
        """Puts `key` if it does not exist; whether it did."""
        try:
            await self.transact((Guard(key, 0),), (Put(key, value),))
        except Conflict:
            return False
        return True

    async def swap(self, key: str, value: bytes, revision: int) -> int:
        """Puts `key` if its last change was at `revision`.

        Raises:
            Conflict: somebody changed it.
        """
        return await self.transact((Guard(key, revision),), (Put(key, value),))

    async def remove(self, key: str, revision: int) -> int:
        """Removes `key` if its last change was at `revision`; the revision of the removal.

        Raises:
            Conflict: somebody changed it.
        """
        return await self.transact((Guard(key, revision),), (), (key,))

    async def transact(
        self, guards: Sequence[Guard], puts: Sequence[Put], deletes: Sequence[str] = ()
    ) -> int:
        """All `puts` and `deletes` at one revision, if all `guards` hold.

        Raises:
            Conflict: a guard did not hold; nothing was changed.
        """
        result = await self._client.transact(guards, puts, deletes)
        if isinstance(result, Refusal):
            raise Conflict(key=result.key)
        return result

    async def own(self, key: str, value: bytes) -> int:
        """`key` holds `value` while this process lives, whatever becomes of etcd; again to change the value.

        Raises:
            DeadlineExceeded: etcd has it not yet; it will once it is back.
        """
        return await self.lease.own(key, value)

    async def disown(self, key: str) -> None:
        """Removes an owned key. Raises as `own`."""
        await self.lease.disown(key)

    @asynccontextmanager
    async def open_lease(self) -> AsyncIterator[LeaseKeeper]:
        """A lease beside the process's own, for the time of the body: what it owns vanishes with it."""
        keeper = self._new_keeper(self._settings.lease_ttl_s / 4)
        async with keeper.kept():
            yield keeper

    def _new_keeper(self, renew_s: float) -> LeaseKeeper:
        settings = self._settings
        return LeaseKeeper(
            self._client, self._renewals, settings.lease_ttl_s, settings.rpc_timeout_s, renew_s
        )

    def watch(self, prefix: str) -> AbstractAsyncContextManager[AsyncGenerator[Change, None]]:
        """`async with directory.watch(prefix) as changes: async for change in changes: ...`"""
        return aclosing(follow_prefix(self._client, prefix))


@asynccontextmanager
async def open_directory(settings: DirectorySettings) -> AsyncIterator[Directory]:
    """A directory for the time of the body; at its end everything owned vanishes.

    Raises:
        Disconnected: no etcd within `connect_timeout_s`.
        InvalidSetting: something else listens there.
    """
    async with open_channel(settings.endpoints) as channel:
        client = EtcdClient(channel, settings.rpc_timeout_s)
        await _wait_for_etcd(client, settings)
        client.listeners.append(_log_connection)
        renewals = Renewals(client, settings.lease_ttl_s / 3)
        async with open_tasks() as tasks:
            renewing = tasks.create_task(renewals.run(), name="lease renewals")
            try:
                directory = Directory(client, renewals, settings)
                async with directory.lease.kept():
                    yield directory
            finally:
                renewing.cancel()


def _log_connection(is_connected: bool) -> None:
    if is_connected:
        log.info("etcd is back")
    else:
        log.warning("etcd is out of reach; going on with what was last known")


async def _wait_for_etcd(client: EtcdClient, settings: DirectorySettings) -> None:
    try:
        async with asyncio.timeout(settings.connect_timeout_s):
            await _try_until_up(client, settings)
    except TimeoutError as error:
        raise Disconnected(peer=f"etcd at {', '.join(settings.endpoints)}") from error


async def _try_until_up(client: EtcdClient, settings: DirectorySettings) -> None:
    backoff = Backoff()
    silent_since_s: float | None = None
    while True:
        try:
            await client.status(limit_s=LOOK_LIMIT_S)
            return
        except (Disconnected, DeadlineExceeded):
            silent = await _find_silent(settings.endpoints)
        now_s = time.monotonic()
        silent_since_s = (silent_since_s or now_s - LOOK_LIMIT_S) if silent else None
        if silent_since_s is not None and now_s - silent_since_s >= settings.wrong_server_after_s:
            raise _no_etcd(f"{silent} takes connections and says nothing, as no etcd does that is well")
        await asyncio.sleep(backoff.next_s())


async def _find_silent(endpoints: Sequence[str]) -> str:
    """The first of them that takes connections and says nothing; empty when there is none.

    Raises:
        InvalidSetting: one speaks, and not as an etcd does.
    """
    silent = ""
    for endpoint in endpoints:
        said = await find_stranger(endpoint, LOOK_LIMIT_S)
        if said:
            raise _no_etcd(f"{endpoint} is no etcd; it says {said!r}")
        if said is not None:
            silent = silent or endpoint
    return silent


def _no_etcd(reason: str) -> InvalidSetting:
    return InvalidSetting(setting="directory.endpoints", reason=reason)
