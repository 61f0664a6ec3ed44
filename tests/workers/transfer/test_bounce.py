"""What goes through a bounce buffer comes out as it went in, whatever the sizes; and who gets a buffer."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from workers.transfer.bounce import BounceBuffers, plan_rounds
from workers.transfer.copy_plan import Copies
from workers.transfer.transfers import Operation

BUFFER = 5000
"""Its address; the pool is at 0, the peer's memory at 2000."""
PEER = 2000
MAX_RUN = 40


def runs(sizes: list[int]) -> list[tuple[int, int, int]]:
    """Runs of these sizes: offsets in the pool and at the peer, in another order there; none touch."""
    return [
        (number * MAX_RUN, (len(sizes) - 1 - number) * MAX_RUN, size) for number, size in enumerate(sizes)
    ]


def copy(memory: "np.ndarray[tuple[int], np.dtype[np.uint8]]", copies: Copies) -> None:
    for source, target, num_bytes in copies:
        memory[target : target + num_bytes] = memory[source : source + num_bytes]


@given(
    sizes=st.lists(st.integers(1, MAX_RUN), min_size=1, max_size=12),
    buffer_bytes=st.integers(1, 100),
    operation=st.sampled_from(["WRITE", "READ"]),
)
def test_the_rounds_of_a_post_move_what_its_copies_say(
    sizes: list[int], buffer_bytes: int, operation: Operation
) -> None:
    pairs = [(pool, PEER + peer, size) for pool, peer, size in runs(sizes)]
    rows = [row if operation == "WRITE" else (row[1], row[0], row[2]) for row in pairs]
    copies = Copies(np.array(rows, dtype=np.uint64))
    memory = np.random.default_rng(1).integers(0, 256, BUFFER + buffer_bytes, dtype=np.uint8)
    expected = memory.copy()
    copy(expected, copies)
    for own, outer in plan_rounds(operation, copies, BUFFER, buffer_bytes):
        first, second = (own, outer) if operation == "WRITE" else (outer, own)
        assert first.num_bytes == second.num_bytes <= buffer_bytes
        assert all(target >= BUFFER and target + size <= BUFFER + buffer_bytes for _, target, size in first)
        copy(memory, first)
        copy(memory, second)
    assert np.array_equal(memory[:BUFFER], expected[:BUFFER])


def test_a_post_takes_no_more_rounds_than_it_must() -> None:
    copies = Copies(np.array([(0, 9000, 70), (100, 9100, 50)], dtype=np.uint64))
    assert [each.own.num_bytes for each in plan_rounds("WRITE", copies, BUFFER, 60)] == [60, 60]
    assert not plan_rounds("WRITE", Copies(np.zeros((0, 3), dtype=np.uint64)), BUFFER, 60)


def test_no_peer_has_more_than_its_share_of_the_buffers() -> None:
    buffers = BounceBuffers(range(8))
    taken = [buffers.try_take("stopped") for _ in range(3)]
    assert taken[2] is None
    assert buffers.try_take("other") is not None
    for address in taken[:2]:
        assert address is not None
        buffers.put_back("stopped", address, was_stuck=False)
    assert buffers.try_take("stopped") is not None


def test_what_is_stuck_is_forgiven_a_peer_as_far_as_others_have_buffers_left() -> None:
    buffers = BounceBuffers(range(8))
    taken = []
    while (address := buffers.try_take("stopped")) is not None:
        taken.append(address)
        buffers.note_stuck("stopped")
    assert len(taken) == 4
    assert buffers.try_take("other") is not None
    for address in taken:
        buffers.put_back("stopped", address, was_stuck=True)
    assert [buffers.try_take("stopped") is not None for _ in range(3)] == [True, True, False]


def test_there_are_no_more_buffers_than_there_are() -> None:
    buffers = BounceBuffers(range(2))
    assert {buffers.try_take("one"), buffers.try_take("two")} == {0, 1}
    assert buffers.try_take("three") is None
