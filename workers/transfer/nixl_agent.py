"""The border to NIXL: one agent, one registered pool, peers' memory; its errors become `PeerGone`.

No two threads call it at once (see `nixl_transport`): the agent does no locking of its own, and a post over
shared memory copies inside the call.

A connection that dies while nothing moves is known to be dead once the agent has looked at it, and what is
posted to it then is refused whole. But the library tells alike of what it refused and of what failed in the
midst of a post, whose bytes may land. So what is written after a while of quiet follows a look and a sign of
life: what is refused by then is `NothingPosted`, and between these two and the post nothing is driven. Not so
what is read, which lands here.
Source: NIXL's `ucx_utils.cpp` (`checkTxState`; the state changes in the error handler, when UCX is driven).
"""

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from typing import Any

import numpy as np

from proto.cards import RankAgent
from proto.errors import InternalFault, InvalidSetting, NothingPosted, PeerGone
from proto.layout import PoolLayout
from workers.transfer.copy_plan import Copies
from workers.transfer.transfers import Operation

os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")
# To wait for a host that does not answer takes two minutes, in which nothing would be driven.
os.environ.setdefault("UCX_TCP_CONN_NB", "y")

from nixl import _bindings as nixl_bindings
from nixl._api import nixl_agent, nixl_agent_config

# The bindings raise a dozen unrelated classes, each derived from Exception alone.
NIXL_ERRORS: tuple[type[Exception], ...] = tuple(
    found
    for name in dir(nixl_bindings)
    if name.endswith("Error") and isinstance(found := getattr(nixl_bindings, name), type)
)
OPEN_ERRORS: tuple[type[Exception], ...] = (*NIXL_ERRORS, RuntimeError)
_SIGN_OF_LIFE = b"\0"
"""A notice that says nothing, and that nobody is told of."""
QUIET_S = 10.0
"""Since a transfer was done, until the next write gives a sign of life: the write may then wait until the
other side has looked, which takes long where cores are few. Connections die of idleness after minutes."""


class TransferState(Enum):
    MOVING = "moving"
    DONE = "done"


class NixlAgent:
    """A NIXL agent over a pool. Not thread-safe.

    Args:
        agent: the agent's name, unique for ever: peers tell one life of a worker from the next by it.
        pool: the memory to register; it must outlive the agent.
        parameters: of NIXL's UCX backend, over its defaults.
    """

    def __init__(self, agent: str, pool: PoolLayout, parameters: Mapping[str, str] | None = None) -> None:
        self._name = agent
        self._pool = pool
        self._parameters = parameters or {}
        self._agent: Any = None
        self._registered: Any = None
        self._notices: list[bytes] = []
        self._done_s: dict[str, float] = {}

    def open(self) -> RankAgent:
        """Create the agent and register the pool.

        Raises:
            InvalidSetting: the backend has no such parameter.
            InternalFault: the library refuses the memory or the backend.
        """
        try:
            # Its progress thread never sleeps and would take a core from the engine; the looks of the
            # transfer thread drive the agent instead.
            self._agent = nixl_agent(self._name, nixl_agent_config(enable_prog_thread=False, backends=[]))
            self._check_parameters(self._agent.get_plugin_params("UCX"))
            self._agent.create_backend("UCX", dict(self._parameters))
            region = [(self._pool.address, self._pool.pool_bytes, device_number(self._pool.device), "")]
            self._registered = self._agent.register_memory(region, memory_kind(self._pool.device))
            return RankAgent(self._name, self._agent.get_agent_metadata(), self._pool)
        except OPEN_ERRORS as error:
            raise InternalFault(reason=f"NIXL does not start: {error}") from error

    def _check_parameters(self, known: Mapping[str, str]) -> None:
        """NIXL takes names that it does not know without a word."""
        for name in self._parameters:
            if name not in known:
                reason = f"{name!r} is none of {', '.join(sorted(known))}"
                raise InvalidSetting(setting="transfer.nixl", reason=reason)

    def close(self) -> None:
        """Give the registration back. A late write of a peer may still land: see the rules of quarantine."""
        if self._registered is not None:
            self._agent.deregister_memory(self._registered)
        self._agent = self._registered = None

    def add_peer(self, metadata: bytes) -> None:
        """Load a peer's metadata; its name is then a target for `post`."""
        try:
            self._agent.add_remote_agent(metadata)
        except NIXL_ERRORS as error:
            raise PeerGone(peer="a new peer", reason=str(error)) from error

    def remove_peer(self, agent: str) -> None:
        """Forget a peer, gone or not."""
        self._done_s.pop(agent, None)
        try:
            self._agent.remove_remote_agent(agent)
        except NIXL_ERRORS as error:
            raise PeerGone(peer=agent, reason=str(error)) from error

    def post(self, operation: Operation, agent: str, copies: Copies, remote_device: str) -> Any:
        """Start moving `copies` and return the handle that `check` and `release` take.

        The source of a copy is local for a WRITE and remote for a READ.

        Raises:
            NothingPosted: the peer is unknown, or nothing can be sent to it any more.
            PeerGone: it failed in the midst; some of it may land.
        """
        local_column, remote_column = (0, 1) if operation == "WRITE" else (1, 0)
        try:
            handle = self._agent.initialize_xfer(
                operation,
                self._descriptors(copies.table, local_column, self._pool.device),
                self._descriptors(copies.table, remote_column, remote_device),
                agent,
            )
            if operation == "WRITE":
                self._check_alive(agent)
        except NIXL_ERRORS as error:
            raise NothingPosted(peer=agent, reason=str(error)) from error
        try:
            self._agent.transfer(handle)
        except NIXL_ERRORS as error:
            raise PeerGone(peer=agent, reason=str(error)) from error
        return handle

    def _check_alive(self, agent: str) -> None:
        """Right before a write. Raises what the library does of a connection that is known to be dead."""
        done_s = self._done_s.get(agent)
        if done_s is not None and time.monotonic() - done_s >= QUIET_S:
            self._notices += self._look()
            self._agent.send_notif(agent, _SIGN_OF_LIFE)

    def check(self, agent: str, handle: Any) -> TransferState:
        """How far a posted transfer is. `DONE` means that the bytes lie at the target.

        Raises:
            PeerGone: it failed.
        """
        try:
            state = self._agent.check_xfer_state(handle)
        except NIXL_ERRORS as error:
            raise PeerGone(peer=agent, reason=str(error)) from error
        if state == "ERR":
            raise PeerGone(peer=agent, reason="the transfer failed")
        if state != "DONE":
            return TransferState.MOVING
        self._done_s[agent] = time.monotonic()
        return TransferState.DONE

    def release(self, handle: Any) -> None:
        """Free the handle of a transfer that is over.

        Never call it while one moves: the library says that all is well, and the bytes land later.
        """
        with suppress(*NIXL_ERRORS):
            self._agent.release_xfer_handle(handle)

    def notify(self, agent: str, notice: bytes) -> None:
        """Send a notice to a peer, after all that was checked `DONE` before.

        Raises:
            PeerGone: the peer's process has ended.
        """
        try:
            self._agent.send_notif(agent, notice)
        except NIXL_ERRORS as error:
            raise PeerGone(peer=agent, reason=str(error)) from error

    def take_notices(self) -> list[bytes]:
        """The notices that have come since the last call, of all peers. Also drives what moves."""
        notices, self._notices = self._notices, []
        return notices + self._look()

    def _look(self) -> list[bytes]:
        heard = self._agent.get_new_notifs().values()
        return [notice for notices in heard for notice in notices if notice != _SIGN_OF_LIFE]

    def _descriptors(self, table: "np.ndarray[Any, Any]", column: int, device: str) -> Any:
        rows = np.empty_like(table)
        rows[:, 0] = table[:, column]
        rows[:, 1] = table[:, 2]
        rows[:, 2] = device_number(device)
        return self._agent.get_xfer_descs(rows, memory_kind(device))


def memory_kind(device: str) -> str:
    return "DRAM" if device == "cpu" else "VRAM"


def device_number(device: str) -> int:
    """The ordinal in a device name such as `cuda:1`; 0 where there is none."""
    number = device.rpartition(":")[2]
    return int(number) if number.isdigit() else 0
