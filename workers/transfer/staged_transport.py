"""A transport for a pool that NIXL cannot reach: what is posted goes through bounce buffers of the host."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from proto.cards import RankAgent
from proto.errors import KvmeshError
from workers.transfer.bounce import BounceBuffers, Round, plan_rounds
from workers.transfer.copy_plan import Copies
from workers.transfer.nixl_agent import TransferState
from workers.transfer.nixl_transport import NixlTransport, Posted
from workers.transfer.own_copies import OwnCopies
from workers.transfer.staging import Staging
from workers.transfer.transfers import Operation


@dataclass(slots=True)
class StagedPost:
    """`rounds` are to come, `now` is the one that moves, if any does. The buffer is kept until the release:
    of a write that is stuck nobody knows when it was last read from."""

    operation: Operation
    agent: str
    remote_device: str
    buffer: int
    rounds: deque[Round]
    now: Round | None = None
    posted: Posted | None = None
    is_stuck: bool = False


class StagedTransport:
    """The `KvTransport` of a rank with staging. `nixl` has the staging's whole region for its pool."""

    def __init__(self, nixl: NixlTransport, staging: Staging, copies: OwnCopies) -> None:
        self._nixl = nixl
        self._staging = staging
        self._copies = copies
        self._buffers = BounceBuffers(staging.buffers)

    def open(self, wake: Callable[[], None]) -> RankAgent:
        """Peers see the staging blocks, as the pool."""
        return msgspec.structs.replace(self._nixl.open(wake), pool=self._staging.blocks)

    def close(self) -> None:
        self._nixl.close()

    def add_peer(self, agent: str, metadata: bytes) -> None:
        self._nixl.add_peer(agent, metadata)

    def remove_peer(self, agent: str) -> None:
        self._nixl.remove_peer(agent)

    def try_post(
        self, operation: Operation, agent: str, copies: Copies, remote_device: str
    ) -> StagedPost | None:
        """None where all buffers are taken, or this peer's share of them is."""
        buffer = self._buffers.try_take(agent)
        if buffer is None:
            return None
        rounds = deque(plan_rounds(operation, copies, buffer, self._staging.buffer_bytes))
        post = StagedPost(operation, agent, remote_device, buffer, rounds)
        try:
            self._begin_round(post)
        except KvmeshError:
            self._buffers.put_back(agent, buffer, was_stuck=False)
            raise
        return post

    def check(self, agent: str, post: StagedPost) -> TransferState:
        while post.posted is not None:
            if self._nixl.check(agent, post.posted) is TransferState.MOVING:
                return TransferState.MOVING
            self._end_round(post)
            self._begin_round(post)
        return TransferState.DONE

    def note_stuck(self, post: StagedPost) -> None:
        post.is_stuck = True
        self._buffers.note_stuck(post.agent)
        if post.posted is not None:
            self._nixl.note_stuck(post.posted)

    def release(self, post: StagedPost) -> None:
        self._release_round(post)
        self._buffers.put_back(post.agent, post.buffer, post.is_stuck)

    def notify(self, agent: str, notice: bytes) -> None:
        self._nixl.notify(agent, notice)

    def take_notices(self) -> list[bytes]:
        return self._nixl.take_notices()

    def _begin_round(self, post: StagedPost) -> None:
        post.now = post.rounds.popleft() if post.rounds else None
        if post.now is None:
            return
        if post.operation == "WRITE":
            self._copies.copy(post.now.own)
        post.posted = self._nixl.try_post(post.operation, post.agent, post.now.outer, post.remote_device)

    def _end_round(self, post: StagedPost) -> None:
        if post.operation == "READ" and post.now is not None:
            self._copies.copy(post.now.own)
        self._release_round(post)

    def _release_round(self, post: StagedPost) -> None:
        if post.posted is not None:
            self._nixl.release(post.posted)
        post.posted = None
