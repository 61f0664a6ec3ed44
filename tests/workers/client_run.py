"""A test's body, run with a client of a fleet's model `tiny`."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from tests.workers.harness import Client, Fleet, open_client

Body = Callable[[Client], Awaitable[None]]


def run_client(fleet: Fleet, body: Body, *, idle: Sequence[str] = ()) -> None:
    """`body`, once the workers `idle` say that no job of an earlier test is left with them."""

    async def run() -> None:
        async with open_client(fleet, "tiny") as client:
            for worker in idle:
                await client.wait_report(worker, lambda report: report.num_jobs == 0)
            await body(client)

    asyncio.run(run())
