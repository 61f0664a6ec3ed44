"""A process with a pool of its own, which others write and read.

It says first how it is reached, then answers each order, and says unasked what each landing found in its
pool at the moment when it was heard.
"""

import asyncio
import os
import socket
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Literal

import msgspec

from proto.jobs import Landing
from tests.workers.deafness import connections, deafen, hear_again
from tests.workers.transfer.pools import MemoryPool
from workers.transfer.nixl_transport import NixlTransport
from workers.transfer.transfer_thread import TransferThread
from workers.transfer.transfers import Transfer

LIMIT_S = 20.0


@dataclass(frozen=True)
class PoolOrder:
    """Do something to a block or to every connection; and say what is in the block's layers."""

    verb: Literal["fill", "clear", "show", "cut", "deafen", "hear"]
    block: int
    value: int = 0


@dataclass(frozen=True)
class Heard:
    """A landing, and what the layers of each block had in them then."""

    grant: str
    num_bytes: int
    found: list[list[int]]


def run_peer(link: Connection, agent: str, num_blocks: int, num_heads: int, environ: dict[str, str]) -> None:
    os.environ.update(environ)
    asyncio.run(_serve(link, agent, MemoryPool(num_blocks, num_heads)))


async def _serve(link: Connection, agent: str, pool: MemoryPool) -> None:
    def on_landing(landing: Landing) -> None:
        found = [pool.layers(block) for block in range(pool.layout.num_blocks)]
        link.send(Heard(landing.grant, landing.num_bytes, found))

    def on_moved(transfer: Transfer, took_s: float) -> None:
        raise AssertionError("this process moves nothing itself")

    transfers = TransferThread(NixlTransport(agent, pool.layout), on_landing, on_moved, LIMIT_S)
    async with transfers.running() as rank:
        transfers.expect(1)
        link.send(msgspec.msgpack.encode(rank))
        while True:
            order: PoolOrder = await asyncio.to_thread(link.recv)
            if order.verb == "fill":
                pool.fill(order.block, order.value)
            elif order.verb == "clear":
                pool.clear(order.block)
            elif order.verb == "cut":
                _cut_connections()
            elif order.verb == "deafen":
                deafen()
            elif order.verb == "hear":
                hear_again()
            link.send(pool.layers(order.block))


def _cut_connections() -> None:
    """As a network that drops both ends: what is connected over TCP can be used no more."""
    for found in connections():
        found.shutdown(socket.SHUT_RDWR)
