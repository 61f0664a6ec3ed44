"""Tasks end as one expects."""

import asyncio
from contextlib import suppress

import pytest

from services.tasks import heed_cancellation, open_tasks


@pytest.mark.parametrize("error", [None, ConnectionRefusedError()], ids=["an answer", "an error"])
def test_a_cancellation_that_a_library_swallowed_is_raised_all_the_same(error: OSError | None) -> None:
    async def body() -> None:
        is_waiting = asyncio.Event()

        async def swallow() -> None:
            is_waiting.set()
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                if error is not None:
                    raise error from None

        async def loop_for_ever() -> None:
            while True:
                with suppress(OSError), heed_cancellation():
                    await swallow()

        task = asyncio.create_task(loop_for_ever())
        await is_waiting.wait()
        task.cancel()
        async with asyncio.timeout(2):
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(body())


def test_what_was_cancelled_before_may_still_clean_up() -> None:
    async def body() -> None:
        cleaned: list[str] = []

        async def work() -> None:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                with heed_cancellation():
                    await asyncio.sleep(0)
                cleaned.append("up")

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert cleaned == ["up"]

    asyncio.run(body())


def test_a_single_error_comes_out_as_itself() -> None:
    async def body() -> None:
        async with open_tasks() as tasks:
            tasks.create_task(_fail(), name="fail")

    with pytest.raises(LookupError):
        asyncio.run(body())


async def _fail() -> None:
    raise LookupError
