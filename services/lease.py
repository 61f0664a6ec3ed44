"""A lease, and the keys that live by it: kept alive, taken anew when lost, put again.

```
            renewed in time                    no such lease any more
 held ───────────────────────► held    held ─────────────────────────► none ──► held, every key pending
```
One task does all writing, so a key's values reach etcd in the order in which they were wished. A key that
was lost with its lease is put again unless another process has it by then: whoever was stopped for long wakes
beside its successor, and takes nothing from it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from proto.errors import DeadlineExceeded, KvmeshError
from services.backoff import Backoff
from services.etcd import MAX_WRITE_BYTES, EtcdClient, Guard, LeaseGone, Put, Refusal, check_size
from services.renewals import Renewals
from services.tasks import open_tasks

MAX_WRITES = 100  # etcd takes 128 operations a transaction
REVOKE_LIMIT_S = 1.0

log = logging.getLogger(__name__)


class LeaseKeeper:
    """Wishes of what to own, and the task (`run`) that makes etcd agree with them.

    `lease_id` is 0 while there is none. Units: `renew_s` seconds between two renewals, well under `ttl_s`: an
    etcd that was replaced by an empty one in between is noticed that late.
    """

    def __init__(
        self, client: EtcdClient, renewals: Renewals, ttl_s: int, limit_s: float, renew_s: float
    ) -> None:
        self.lease_id = 0
        self._client = client
        self._renewals = renewals
        self._ttl_s = ttl_s
        self._limit_s = limit_s
        self._renew_s = renew_s
        self._wanted: dict[str, bytes] = {}
        self._pending: dict[str, asyncio.Future[int]] = {}
        self._lost: set[str] = set()
        self._kick = asyncio.Event()

    async def own(self, key: str, value: bytes) -> int:
        """`key` holds `value` while this process lives; the revision at which etcd had it.

        Cancel: the wish stays.

        Raises:
            DeadlineExceeded: etcd does not have it yet; the wish stays, and is put once etcd is back.
            PayloadTooLarge: no wish was made.
        """
        check_size((Put(key, value),))
        self._wanted[key] = value
        return await self._settled(key)

    async def disown(self, key: str) -> None:
        """`key` is removed. Raises as `own`, and likewise the wish stays."""
        self._wanted.pop(key, None)
        await self._settled(key)

    async def _settled(self, key: str) -> int:
        settled = self._pending.setdefault(key, asyncio.get_running_loop().create_future())
        self._kick.set()
        try:
            async with asyncio.timeout(self._limit_s):
                return await asyncio.shield(settled)
        except TimeoutError as error:
            raise DeadlineExceeded(what=f"etcd's taking of {key}", limit_s=self._limit_s) from error

    async def run(self) -> None:
        """Keeps the lease and settles wishes, for ever, whatever etcd says."""
        backoff = Backoff()
        while True:
            self._kick.clear()
            try:
                await self._keep()
            except KvmeshError as error:
                log.debug("the lease could not be kept", extra={"reason": str(error)})
                pause_s = backoff.next_s()
            else:
                backoff.reset()
                pause_s = self._renew_s
            await self._wait_kicked(pause_s)

    async def _wait_kicked(self, limit_s: float) -> None:
        try:
            async with asyncio.timeout(limit_s):
                await self._kick.wait()
        except TimeoutError:
            return

    async def _keep(self) -> None:
        if not self.lease_id or not await self._renewals.renew(self.lease_id):
            await self._take_lease()
        try:
            await self._reclaim_lost()
            while self._pending.keys() - self._lost:
                await self._settle_some()
        except LeaseGone:
            await self._take_lease()
            self._kick.set()

    async def _take_lease(self) -> None:
        if self.lease_id:
            self._lost.update(self._wanted)
        self.lease_id = 0
        self.lease_id = await self._client.grant(self._ttl_s)
        loop = asyncio.get_running_loop()
        for key in self._wanted:
            self._pending.setdefault(key, loop.create_future())
        if self._lost:
            log.warning("the lease was lost; taken anew", extra={"num_keys": len(self._lost)})

    async def _reclaim_lost(self) -> None:
        """Puts what was lost with an earlier lease; what another process has, once that one is gone."""
        for key in [key for key in self._pending if key in self._lost]:
            value = self._wanted.get(key)
            if value is None:
                self._note_settled({key: None}, 0)
            else:
                await self._try_put(key, value)

    async def _try_put(self, key: str, value: bytes) -> None:
        entry = await self._client.get(key)
        if entry is not None and entry.lease_id != self.lease_id:
            log.debug("another process has a key of ours", extra={"key": key})
            return
        guard = Guard(key, 0 if entry is None else entry.revision)
        result = await self._client.transact((guard,), (Put(key, value),), lease_id=self.lease_id)
        if not isinstance(result, Refusal):
            self._note_settled({key: value}, result)

    async def _settle_some(self) -> None:
        """Writes some of what is pending; what was wished anew meanwhile stays pending."""
        batch = self._batch()
        puts = [Put(key, value) for key, value in batch.items() if value is not None]
        deletes = [key for key, value in batch.items() if value is None]
        self._note_settled(batch, await self._client.write(puts, deletes, self.lease_id))

    def _note_settled(self, batch: dict[str, bytes | None], revision: int) -> None:
        for key, value in batch.items():
            self._lost.discard(key)
            settled = self._pending.pop(key, None) if self._wanted.get(key) is value else None
            if settled is not None:
                settled.set_result(revision)

    def _batch(self) -> dict[str, bytes | None]:
        """As many pending wishes as one write takes; None: to be removed."""
        batch: dict[str, bytes | None] = {}
        num_bytes = 0
        for key in [key for key in self._pending if key not in self._lost]:
            value = self._wanted.get(key)
            num_bytes += len(key) + len(value or b"")
            if batch and (num_bytes > MAX_WRITE_BYTES or len(batch) == MAX_WRITES):
                break
            batch[key] = value
        return batch

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Runs for the time of the body; at its end the lease is given up."""
        async with open_tasks() as tasks:
            keeping = tasks.create_task(self.run(), name="directory lease")
            try:
                yield
            finally:
                keeping.cancel()
                await asyncio.wait((keeping,))
                await self.give_up()

    async def give_up(self) -> None:
        """Ends the lease: what was owned vanishes at once, or with its time to live when etcd is away."""
        try:
            if self.lease_id:
                await self._client.revoke(self.lease_id, REVOKE_LIMIT_S)
        except (KvmeshError, LeaseGone):
            log.info("the lease could not be revoked; its keys go in %d s", self._ttl_s)
