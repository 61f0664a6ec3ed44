"""How something in the transfer thread ended, awaited on the loop."""

import asyncio

from proto.errors import KvmeshError


class Outcome:
    """Settled once, from any thread; awaited on its loop. A waiter that is cancelled leaves it to others."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._future: asyncio.Future[KvmeshError | None] = loop.create_future()

    def settle(self, fault: KvmeshError | None) -> None:
        """Called by the other thread: None when all went well."""
        self._loop.call_soon_threadsafe(self._future.set_result, fault)

    async def wait(self) -> KvmeshError | None:
        return await asyncio.shield(self._future)
