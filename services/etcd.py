"""The wire to etcd: one channel, its calls with a deadline each, and their errors as ours.

The only file that imports the etcd client (its generated stubs) and gRPC. It keeps no wishes and retries
nothing: that is the work of `directory`, `lease` and `watch`.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]
import msgspec
from etcd3aio import _protobuf as wire
from etcd3aio import prefix_range_end

from proto.errors import (
    DeadlineExceeded,
    Disconnected,
    InternalFault,
    InvalidSetting,
    KvmeshError,
    Overloaded,
    PayloadTooLarge,
)
from services.etcd_endpoint import look_up

PAGE_ENTRIES = 512
MAX_WRITE_BYTES = 1_400_000  # etcd takes 1.5 MiB a request
PROGRESS_S = 2.0
STALL_S = 5.0

_OPTIONS = (
    ("grpc.lb_policy_name", "round_robin"),
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.keepalive_time_ms", 6_000),  # etcd hangs up on those who ask more often than every 5 s
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", 64 * 2**20),
    ("grpc.enable_http_proxy", 0),
)

_Answer = TypeVar("_Answer")


class Entry(msgspec.Struct, frozen=True):
    """A key and its value. `revision` is that of its last change, `lease_id` its lease; 0: none."""

    key: str
    value: bytes
    revision: int
    lease_id: int = 0


class Removal(msgspec.Struct, frozen=True):
    """A key that is gone since `revision`."""

    key: str
    revision: int


class Listing(msgspec.Struct, frozen=True):
    """All entries under a prefix, as they were at `revision` of the whole store."""

    entries: list[Entry]
    revision: int


class Guard(msgspec.Struct, frozen=True):
    """A condition of a transaction: `key` was last changed at `revision`; 0: it does not exist."""

    key: str
    revision: int


class Put(msgspec.Struct, frozen=True):
    key: str
    value: bytes

    @property
    def num_bytes(self) -> int:
        return len(self.key) + len(self.value)


class Refusal(msgspec.Struct, frozen=True):
    """A transaction that changed nothing, since `key` was not as its guard said."""

    key: str


def check_size(puts: Sequence[Put]) -> None:
    """Raises: PayloadTooLarge: more than etcd takes at once."""
    num_bytes = sum(put.num_bytes for put in puts)
    if num_bytes > MAX_WRITE_BYTES:
        raise PayloadTooLarge(num_bytes=num_bytes, limit_bytes=MAX_WRITE_BYTES)


class LeaseGone(Exception):
    """The lease of a put has expired; for `lease`, which takes another."""


class EtcdClient:
    """Typed calls over one channel. `is_connected` is what the last answer, or its absence, said.

    Raises, from every call:
        Disconnected: etcd is out of reach; a write may have happened or not.
        DeadlineExceeded: no answer within the call's limit; likewise.
        InvalidSetting: the other side is no etcd, or lets us do nothing.
        Overloaded: etcd is full.
    """

    def __init__(self, channel: Any, rpc_limit_s: float) -> None:
        self.is_connected = False
        self.listeners: list[Callable[[bool], None]] = []
        self._rpc_limit_s = rpc_limit_s
        self._kv = wire.KVStub(channel)
        self._lease = wire.LeaseStub(channel)
        self._watch = wire.WatchStub(channel)
        self._maintenance = wire.MaintenanceStub(channel)

    async def status(self, limit_s: float) -> str:
        """The version of the etcd on the other side."""
        answer = await self._call(self._maintenance.Status(wire.StatusRequest()), limit_s)
        return str(answer.version)

    async def get(self, key: str) -> Entry | None:
        answer = await self._unary(self._kv.Range, wire.RangeRequest(key=key.encode()))
        return _entry(answer.kvs[0]) if answer.kvs else None

    async def list(self, prefix: str) -> Listing:
        """Everything under `prefix`, read page by page at one revision."""
        listing = None
        while listing is None:
            listing = await self._list_at_one_revision(prefix)
        return listing

    async def _list_at_one_revision(self, prefix: str) -> Listing | None:
        """None when the revision was compacted away between two pages."""
        start, end, revision = prefix.encode(), prefix_range_end(prefix), 0
        entries: list[Entry] = []
        while True:
            request = wire.RangeRequest(key=start, range_end=end, limit=PAGE_ENTRIES, revision=revision)
            try:
                page = await self._unary(self._kv.Range, request)
            except _Compacted:
                return None
            entries.extend(_entry(found) for found in page.kvs)
            revision = revision or page.header.revision
            if not page.more:
                return Listing(entries, revision)
            start = page.kvs[-1].key + b"\0"

    async def transact(
        self, guards: Sequence[Guard], puts: Sequence[Put], deletes: Sequence[str] = (), lease_id: int = 0
    ) -> int | Refusal:
        """All of `puts` and `deletes`, or nothing when a guard fails; the revision they were made at.

        What is put lives by the lease, if one is named.

        Raises:
            PayloadTooLarge: more than etcd takes at once.
            LeaseGone: the lease has expired.
        """
        check_size(puts)
        request = wire.TxnRequest(
            compare=[_compare(guard) for guard in guards],
            success=[*(_put_op(put, lease_id) for put in puts), *(_delete_op(key) for key in deletes)],
            failure=[_read_op(guard.key) for guard in guards],
        )
        answer = await self._unary(self._kv.Txn, request)
        if answer.succeeded:
            return int(answer.header.revision)
        return Refusal(_failed_key(guards, answer.responses))

    async def write(self, puts: Sequence[Put], deletes: Sequence[str], lease_id: int = 0) -> int:
        """All of `puts`, under the lease if one is named, and all of `deletes`; the revision.

        Raises:
            PayloadTooLarge: more than etcd takes at once.
            LeaseGone: the lease has expired.
        """
        check_size(puts)
        request = wire.TxnRequest(
            success=[*(_put_op(put, lease_id) for put in puts), *(_delete_op(key) for key in deletes)]
        )
        return int((await self._unary(self._kv.Txn, request)).header.revision)

    async def grant(self, ttl_s: int) -> int:
        """A new lease."""
        return int((await self._unary(self._lease.LeaseGrant, wire.LeaseGrantRequest(TTL=ttl_s))).ID)

    async def renew(self, lease_ids: Sequence[int], limit_s: float) -> dict[int, float]:
        """Seconds that each of these leases now has; those that are no more are left out, or have 0."""

        async def ask() -> AsyncIterator[Any]:
            for lease_id in lease_ids:
                yield wire.LeaseKeepAliveRequest(ID=lease_id)

        call = self._lease.LeaseKeepAlive(ask())
        try:
            return await self._call(_read_ttls(call, len(lease_ids)), limit_s)
        finally:
            call.cancel()

    async def revoke(self, lease_id: int, limit_s: float) -> None:
        """Ends the lease; its keys vanish with it."""
        request = wire.LeaseRevokeRequest(ID=lease_id)
        await self._call(self._lease.LeaseRevoke(request), limit_s)

    async def follow(self, listing: Listing, prefix: str) -> AsyncGenerator[Entry | Removal, None]:
        """What happened under `prefix` after `listing`, for as long as nothing can have been missed.

        Ends when the caller must list again: the watch was cancelled or compacted, or the store is older
        than the listing. A server that is silent for `STALL_S`, though asked every `PROGRESS_S`, is lost.
        """
        known = listing.revision
        call = self._watch.Watch(_watch_requests(prefix, known + 1))
        try:
            while True:
                answer = await self._call(call.read(), STALL_S)
                if answer is grpc.aio.EOF or answer.canceled or answer.header.revision < known:
                    return
                for event in answer.events:
                    known = max(known, event.kv.mod_revision)
                    yield _removal(event.kv) if event.type else _entry(event.kv)
        finally:
            call.cancel()

    async def _unary(self, method: Callable[..., Awaitable[_Answer]], request: object) -> _Answer:
        return await self._call(method(request), self._rpc_limit_s)

    async def _call(self, call: Awaitable[_Answer], limit_s: float) -> _Answer:
        """Within our own limit: gRPC's is a moment on the wall clock. What is cut short gRPC ends as well."""
        try:
            async with asyncio.timeout(limit_s):
                answer = await call
        except grpc.aio.AioRpcError as error:
            translated = _translate(error, limit_s)
            self._note(not isinstance(translated, Disconnected | DeadlineExceeded))
            raise translated from error
        except TimeoutError as error:
            self._note(False)
            raise DeadlineExceeded(what="a call to etcd", limit_s=limit_s) from error
        self._note(True)
        return answer

    def _note(self, is_connected: bool) -> None:
        if is_connected != self.is_connected:
            self.is_connected = is_connected
            for listener in self.listeners:
                listener(is_connected)


class _Compacted(Exception):
    """The revision asked for is no longer kept."""


_ENDPOINTS = "directory.endpoints"


def _translate(error: grpc.aio.AioRpcError, limit_s: float) -> KvmeshError | LeaseGone | _Compacted:
    code, details = error.code().name, error.details() or ""
    match code:
        case "UNAVAILABLE" | "CANCELLED" | "ABORTED":
            found: KvmeshError | LeaseGone | _Compacted = Disconnected(peer="etcd")
        case "DEADLINE_EXCEEDED":
            found = DeadlineExceeded(what="a call to etcd", limit_s=limit_s)
        case "NOT_FOUND":
            found = LeaseGone()
        case "OUT_OF_RANGE":
            found = _Compacted()
        case "RESOURCE_EXHAUSTED":
            found = Overloaded(reason=f"etcd: {details}", retry_after_s=1)
        case "UNAUTHENTICATED" | "PERMISSION_DENIED":
            found = InvalidSetting(setting=_ENDPOINTS, reason=f"etcd refuses us: {details}")
        case "UNIMPLEMENTED":
            found = InvalidSetting(setting=_ENDPOINTS, reason=f"no etcd: {details}")
        case _:
            found = InternalFault(reason=f"etcd {code}: {details}")
    return found


async def _read_ttls(call: Any, num_leases: int) -> dict[int, float]:
    """Seconds that each lease has, of so many leases at most, as a stream of keep-alives answers."""
    left_s: dict[int, float] = {}
    while len(left_s) < num_leases:
        answer = await call.read()
        if answer is grpc.aio.EOF:
            break
        left_s[answer.ID] = float(answer.TTL)
    return left_s


async def _watch_requests(prefix: str, from_revision: int) -> AsyncIterator[Any]:
    created = wire.WatchCreateRequest(
        key=prefix.encode(), range_end=prefix_range_end(prefix), start_revision=from_revision, fragment=True
    )
    yield wire.WatchRequest(create_request=created)
    while True:
        await asyncio.sleep(PROGRESS_S)
        yield wire.WatchRequest(progress_request={})


def _entry(found: Any) -> Entry:
    return Entry(found.key.decode(), found.value, found.mod_revision, found.lease)


def _removal(found: Any) -> Removal:
    return Removal(found.key.decode(), found.mod_revision)


def _compare(guard: Guard) -> Any:
    return wire.Compare(
        key=guard.key.encode(),
        target=wire.Compare.MOD,
        result=wire.Compare.EQUAL,
        mod_revision=guard.revision,
    )


def _put_op(put: Put, lease_id: int) -> Any:
    return wire.RequestOp(request_put=wire.PutRequest(key=put.key.encode(), value=put.value, lease=lease_id))


def _delete_op(key: str) -> Any:
    return wire.RequestOp(request_delete_range=wire.DeleteRangeRequest(key=key.encode()))


def _read_op(key: str) -> Any:
    return wire.RequestOp(request_range=wire.RangeRequest(key=key.encode(), keys_only=True))


def _failed_key(guards: Sequence[Guard], reads: Sequence[Any]) -> str:
    for guard, read in zip(guards, reads, strict=True):
        kvs = read.response_range.kvs
        if (kvs[0].mod_revision if kvs else 0) != guard.revision:
            return guard.key
    return guards[0].key


@asynccontextmanager
async def open_channel(endpoints: Sequence[str]) -> AsyncIterator[Any]:
    """A channel to `host:port` endpoints; it connects when first used, and again for ever.

    One name stays a name, looked up at each connect; of several, the addresses are taken now.
    """
    if len(endpoints) == 1:
        target = f"dns:///{endpoints[0]}"
    else:
        target = f"ipv4:{','.join([await look_up(endpoint) for endpoint in endpoints])}"
    async with grpc.aio.insecure_channel(target, options=_OPTIONS) as channel:
        yield channel
