"""One of the hands that copy: an agent, and what it has taken of shared posts. Belongs to one thread."""

from typing import Any

from proto.errors import InternalFault, KvmeshError
from workers.transfer.nixl_agent import NixlAgent, TransferState
from workers.transfer.shared_post import SharedPost


class Hand:
    """`moving` are the posts of which portions that it took have not ended."""

    def __init__(self, agent: NixlAgent) -> None:
        self._agent = agent
        self.moving: dict[SharedPost, list[Any]] = {}

    def carry(self, post: SharedPost) -> None:
        """Take portions and post them until none is left. Over shared memory each is copied on the way."""
        while (copies := post.take()) is not None:
            try:
                handle = self._agent.post(post.operation, post.agent, copies, post.remote_device)
            except KvmeshError as error:
                post.end(error)
            except Exception:  # ours to mend; until then it ends the thread, and nobody awaits the portion
                post.end(InternalFault(reason="a transfer could not be posted"))
                raise
            else:
                self.moving.setdefault(post, []).append(handle)
                self.look_at(post)

    def look_at(self, post: SharedPost) -> None:
        """Drive what moves of it, and end what has ended."""
        moving = [handle for handle in self.moving.pop(post, []) if not self._is_over(post, handle)]
        if moving:
            self.moving[post] = moving

    def _is_over(self, post: SharedPost, handle: Any) -> bool:
        fault: KvmeshError | None = None
        try:
            if self._agent.check(post.agent, handle) is TransferState.MOVING:
                return False
        except KvmeshError as error:
            fault = error
        self._agent.release(handle)
        post.end(fault)
        return True
