"""What leaves in one post: only what has one peer and one direction, never too much, each told of its own."""

import numpy as np
import pytest

from proto.errors import KvmeshError, PeerGone
from workers.transfer.copy_plan import Copies
from workers.transfer.post import MAX_POST_BYTES, Post
from workers.transfer.transfers import Operation, Transfer


class Told:
    """Transfers by name, and what each was told."""

    def __init__(self) -> None:
        self.of: dict[str, list[str]] = {}

    def transfer(
        self,
        name: str,
        num_bytes: int = 10,
        *,
        operation: Operation = "WRITE",
        agent: str = "a",
        device: str = "cpu",
        may_start: bool = True,
    ) -> Transfer:
        told = self.of[name] = []

        def on_done(fault: KvmeshError | None) -> None:
            told.append("done" if fault is None else "failed")

        return Transfer(
            operation,
            agent,
            Copies(np.array([(len(self.of), 0, num_bytes)], dtype=np.uint64)),
            device,
            lambda: may_start,
            lambda: told.append("refused"),
            on_done,
            lambda limit_s: told.append(f"stalled for {limit_s}"),
        )

    def moved(self, transfer: Transfer, took_s: float) -> None:
        name = list(self.of)[_id(transfer) - 1]
        self.of[name].append(f"moved in {took_s}")


def _id(transfer: Transfer) -> int:
    """Its number in the order in which they were made, from 1: the address that it copies from."""
    return next(iter(transfer.copies)).source


def test_transfers_of_one_kind_leave_together_in_their_order() -> None:
    told = Told()
    post = Post(told.transfer("one"))
    assert post.try_join(told.transfer("two", 20))
    assert post.try_join(told.transfer("three", 30))
    assert [copy.num_bytes for copy in post.copies] == [10, 20, 30]
    assert (post.operation, post.agent, post.remote_device, post.num_bytes) == ("WRITE", "a", "cpu", 60)


def test_what_goes_elsewhere_or_the_other_way_waits_for_a_post_of_its_own() -> None:
    told = Told()
    post = Post(told.transfer("one"))
    assert not post.try_join(told.transfer("read", operation="READ"))
    assert not post.try_join(told.transfer("other peer", agent="b"))
    assert not post.try_join(told.transfer("other device", device="cuda:0"))
    assert [_id(transfer) for transfer in post.transfers] == [1]


def test_no_post_becomes_too_large() -> None:
    told = Told()
    post = Post(told.transfer("large", MAX_POST_BYTES - 10))
    assert post.try_join(told.transfer("fits"))
    assert not post.try_join(told.transfer("does not"))


def test_those_that_may_not_start_are_refused_and_the_others_leave() -> None:
    told = Told()
    post = Post(told.transfer("one"))
    assert post.try_join(told.transfer("ended", may_start=False))
    assert post.try_join(told.transfer("three"))
    post.drop_unstartable()
    assert told.of == {"one": [], "ended": ["refused"], "three": []}
    assert [_id(transfer) for transfer in post.transfers] == [1, 3]


@pytest.mark.parametrize("fault", [None, PeerGone(peer="a", reason="it ended")])
def test_each_is_told_of_its_share_of_the_time_and_of_the_end(fault: KvmeshError | None) -> None:
    told = Told()
    post = Post(told.transfer("one", 10))
    assert post.try_join(told.transfer("two", 30))
    post.tell_stalled(5.0)
    post.tell_moved(told.moved, 8.0)
    post.end(fault)
    end = "done" if fault is None else "failed"
    assert told.of == {
        "one": ["stalled for 5.0", "moved in 2.0", end],
        "two": ["stalled for 5.0", "moved in 6.0", end],
    }
