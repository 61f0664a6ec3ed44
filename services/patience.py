"""What is awaited, told again each second to a person who waits at a terminal, with the time it has taken."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from services.tasks import open_tasks

TELL_S = 1.0

Say = Callable[[str], None]


class Wait:
    """`what` is awaited, and told each second while it is not empty. See `open_wait`."""

    def __init__(self, say: Say, what: str) -> None:
        self.what = what
        self._say = say
        self._began_s = time.monotonic()

    def tell(self, what: str) -> None:
        """It is awaited from now on, and told at once if it is news."""
        if what != self.what:
            self.what = what
            self._say(what)

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(TELL_S)
            if self.what:
                self._say(f"{self.what}, after {time.monotonic() - self._began_s:.0f} s")


@asynccontextmanager
async def open_wait(say: Say, what: str) -> AsyncIterator[Wait]:
    """For the time of the body. A body that is over within a second has told nothing by itself."""
    wait = Wait(say, what)
    async with open_tasks() as tasks:
        telling = tasks.create_task(wait.run(), name="telling")
        try:
            yield wait
        finally:
            telling.cancel()
