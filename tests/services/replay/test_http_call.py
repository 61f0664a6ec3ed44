"""One call on a connection of its own."""

import asyncio
import gc
import random
from contextlib import suppress
from typing import Any

from proto.errors import Disconnected
from services.replay.http_call import Server, call


def test_a_call_that_is_cancelled_as_its_connection_is_lost_says_nothing_to_the_loop() -> None:
    """At random moments about the loss, of which dozens were too late for the call to hear of it."""
    chosen = random.Random(7)
    said: list[dict[str, Any]] = []

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
        async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as listening:
            server = Server("127.0.0.1", listening.sockets[0].getsockname()[1])

            async def leave_early() -> None:
                with suppress(TimeoutError, Disconnected):
                    async with asyncio.timeout(chosen.random() * 0.004):
                        await call(server, server.request("GET", "/"), lambda _, __: None)

            for _ in range(100):
                await asyncio.gather(*(leave_early() for _ in range(4)))

    asyncio.run(run())
    gc.collect()
    assert not said
