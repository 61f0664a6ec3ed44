"""Where the reader of one call waits: one wake-up however much has come, and no task or timer per token."""

import asyncio


class Waker:
    """Joins one reader with the requests that it reads. Belongs to one event loop."""

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None
        self._is_due = False

    def wake(self) -> None:
        self._is_due = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self) -> None:
        """Waits until something came since the last wait.

        Cancel: nothing is lost; the next wait returns at once if something came.
        """
        if not self._is_due:
            self._future = asyncio.get_running_loop().create_future()
            try:
                await self._future
            finally:
                self._future = None
        self._is_due = False
