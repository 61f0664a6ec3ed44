"""Tasks that end as one expects: a single error comes out as itself, and a cancellation counts."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager


@asynccontextmanager
async def open_tasks() -> AsyncIterator[asyncio.TaskGroup]:
    """`asyncio.TaskGroup`, except that a group of one error is raised as that error.

    Cancel: as `TaskGroup`: every task is cancelled and awaited.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
    except BaseExceptionGroup as group:
        raise only_error(group) from None


def only_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that `group` holds, when it holds one; else the group."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


@contextmanager
def heed_cancellation() -> Iterator[None]:
    """A cancellation that comes during the body is raised at its end, even if what was awaited swallowed it.

    `asyncio.wait_for` before Python 3.12 does, when an answer or an error comes at the same moment: a loop
    that awaits a library built on it could then not be ended. Source: CPython issue 86296.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        yield
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError
