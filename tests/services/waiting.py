"""Waiting for what nothing announces, within a bound."""

import asyncio
from collections.abc import Callable


async def wait_for(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 (any condition, within a bound)
            await asyncio.sleep(0.01)
