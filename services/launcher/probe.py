"""Asks a process on its admin port whether it is ready: one HTTP request, no client library."""

import asyncio
from contextlib import closing

PROBE_LIMIT_S = 2.0


async def is_ready(host: str, port: int, limit_s: float = PROBE_LIMIT_S) -> bool:
    """Whether `/readyz` answered 200 within `limit_s`."""
    try:
        async with asyncio.timeout(limit_s):
            return await _status(host, port, "/readyz") == 200
    except (OSError, TimeoutError, ValueError, IndexError):  # not up yet, busy, or no HTTP
        return False


async def _status(host: str, port: int, path: str) -> int:
    reader, writer = await asyncio.open_connection(host, port)
    with closing(writer):
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        line = await reader.readline()
    return int(line.split()[1])
