"""A task group whose single error comes out as itself, so that callers can name what they expect."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


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
