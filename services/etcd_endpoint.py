"""Where etcd should listen: its address looked up, and what else listens there found out."""

import asyncio
import json
import socket

from proto.errors import InvalidSetting


async def look_up(endpoint: str) -> str:
    """`host:port` with the host's IPv4 address.

    Raises:
        InvalidSetting: no such host.
    """
    host, _, port = endpoint.rpartition(":")
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, family=socket.AF_INET)
    except OSError as error:
        reason = f"{endpoint!r}: {error.strerror or error}"
        raise InvalidSetting(setting="directory.endpoints", reason=reason) from error
    return f"{found[0][4][0]}:{port}"


async def find_stranger(endpoint: str, limit_s: float) -> str | None:
    """What listens at `endpoint`, if it shows that it is no etcd: the beginning of what it said.

    None: an etcd, or nothing. Empty: something that takes connections and is silent, as an etcd is that waits
    for its peers.
    """
    host, _, port = endpoint.rpartition(":")
    try:
        async with asyncio.timeout(limit_s):
            reader, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return None
    try:
        async with asyncio.timeout(limit_s):
            said = await _ask_version(reader, writer, host)
    except TimeoutError:
        return ""
    except OSError:
        return None
    finally:
        writer.close()
    head, _, body = said.partition(b"\r\n\r\n")
    if not said or (head.startswith(b"HTTP/") and _has_etcd_version(body)):
        return None
    return said[:60].decode("ascii", "replace").strip()


async def _ask_version(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> bytes:
    """The first bytes of the answer to what every etcd answers over HTTP."""
    writer.write(f"GET /version HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
    await writer.drain()
    return await reader.read(4096)


def _has_etcd_version(body: bytes) -> bool:
    try:
        return "etcdserver" in json.loads(body)
    except ValueError:
        return False
