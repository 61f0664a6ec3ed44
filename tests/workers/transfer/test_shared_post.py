"""A post in portions: what two hands take of it is all of it, once, and it is over when all of that is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.errors import InternalFault, KvmeshError, NothingPosted, PeerGone
from tests.proto.pool_layouts import make_pool
from workers.transfer.copy_plan import Copies, Copy
from workers.transfer.hand import Hand
from workers.transfer.nixl_agent import NixlAgent
from workers.transfer.shared_post import SharedPost


def shared(sizes: list[int], portion_bytes: int) -> SharedPost:
    rows = [(place * 1000, place * 1000 + 500, size) for place, size in enumerate(sizes)]
    copies = Copies(np.array(rows, dtype=np.uint64).reshape(-1, 3))
    return SharedPost("WRITE", "peer", copies, "cpu", portion_bytes)


def take_all(post: SharedPost) -> list[list[Copy]]:
    portions = []
    while (copies := post.take()) is not None:
        portions.append(list(copies))
        post.end(None)
    return portions


@given(st.lists(st.integers(1, 9), max_size=40), st.integers(1, 100))
def test_portions_are_all_of_it_in_order_each_a_third_of_what_was_left(
    sizes: list[int], portion_bytes: int
) -> None:
    post = shared(sizes, portion_bytes)
    portions = take_all(post)
    assert [copy.num_bytes for portion in portions for copy in portion] == sizes
    assert [copy.source for portion in portions for copy in portion] == [1000 * n for n in range(len(sizes))]
    left = sum(sizes)
    for portion in portions:
        taken = sum(copy.num_bytes for copy in portion)
        wanted = min(left, max(left // 3, portion_bytes))
        assert wanted <= taken < wanted + 9
        left -= taken
    assert post.is_over and post.fault is None


def test_what_is_a_portion_whole_is_taken_whole() -> None:
    assert len(take_all(shared([4] * 10, 40))) == 1


def test_it_is_over_when_all_that_was_taken_has_ended() -> None:
    post = shared([4] * 4, 8)
    seen = [post.is_over]
    while post.take() is not None:
        seen.append(post.is_over)
    for _ in range(2):
        post.end(None)
        seen.append(post.is_over)
    assert seen == [False, False, False, False, True]


def test_after_a_fault_no_more_of_it_is_begun_and_what_moves_is_waited_for() -> None:
    post = shared([4] * 8, 4)
    assert post.take() is not None
    assert post.take() is not None
    post.end(PeerGone(peer="peer", reason="it failed"))
    assert post.take() is None
    seen = [post.is_over]
    post.end(None)
    seen.append(post.is_over)
    assert seen == [False, True]
    assert isinstance(post.fault, PeerGone)


def test_a_portion_that_its_hand_breaks_over_has_failed_and_is_not_awaited() -> None:
    post = shared([4] * 8, 4)
    hand = Hand(NixlAgent("never opened", make_pool()))
    with pytest.raises(AttributeError):
        hand.carry(post)
    assert post.is_over
    assert isinstance(post.fault, InternalFault)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_nothing_was_posted_only_if_that_is_so_of_all_that_failed(order: tuple[int, int]) -> None:
    faults: list[KvmeshError] = [
        NothingPosted(peer="peer", reason="refused"),
        PeerGone(peer="peer", reason="in the midst"),
    ]
    post = shared([4] * 8, 4)
    assert post.take() is not None
    assert post.take() is not None
    for number in order:
        post.end(faults[number])
    assert post.fault is faults[1]
