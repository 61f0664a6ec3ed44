"""Staging blocks: none is in two hands, none is free while it is copied, and all come back."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from workers.roles.lent_blocks import StagingTable

NUM_BLOCKS = 9


@dataclass(eq=False)
class Hand:
    """Who was lent blocks; `is_copying` while they are copied, `is_back` once they were put back."""

    blocks: list[int]
    is_copying: bool = False
    is_back: bool = False


@dataclass
class Lent:
    """A table, and all hands that are not done with their blocks."""

    table: StagingTable = field(default_factory=lambda: StagingTable(NUM_BLOCKS))
    hands: list[Hand] = field(default_factory=list)

    def take(self, num_blocks: int) -> None:
        num_free = self.table.num_free
        blocks = self.table.try_take(num_blocks)
        assert (blocks is None) == (num_blocks > num_free)
        if blocks is not None:
            self.hands.append(Hand(blocks))

    def turn(self, hand: Hand, verb: str) -> None:
        """As its life may go on: copied one time or several, put back before or after that has ended."""
        if hand not in self.hands:
            return
        if verb == "copy" and not hand.is_copying and not hand.is_back:
            self.table.begin_copy(hand.blocks)
            hand.is_copying = True
        elif verb == "copied" and hand.is_copying:
            self.table.end_copy(hand.blocks)
            hand.is_copying = False
        elif verb == "back" and not hand.is_back:
            self.table.put_back(hand.blocks)
            hand.is_back = True
        if hand.is_back and not hand.is_copying:
            self.hands.remove(hand)

    def check(self) -> None:
        held = [block for hand in self.hands for block in hand.blocks]
        assert len(held) == len(set(held))
        assert set(held) <= set(range(NUM_BLOCKS))
        assert self.table.num_free == NUM_BLOCKS - len(held)


@given(st.lists(st.tuples(st.sampled_from(["take", "copy", "copied", "back"]), st.integers(0, 5))))
def test_no_block_is_in_two_hands_and_all_come_back(moves: list[tuple[str, int]]) -> None:
    lent = Lent()
    for verb, number in moves:
        if verb == "take":
            lent.take(number)
        elif lent.hands:
            lent.turn(lent.hands[number % len(lent.hands)], verb)
        lent.check()
    for hand in list(lent.hands):
        for verb in ("copied", "back"):
            lent.turn(hand, verb)
    assert sorted(lent.table.try_take(NUM_BLOCKS) or []) == list(range(NUM_BLOCKS))


def test_neighbours_are_lent_together() -> None:
    table = StagingTable(NUM_BLOCKS)
    first, second = table.try_take(3), table.try_take(3)
    assert (first, second) == ([0, 1, 2], [3, 4, 5])
    table.put_back([5, 1, 0, 2])
    assert table.try_take(3) == [0, 1, 2]
