"""Prompt lookup finds what a search of the whole text finds, and indexes each token once."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from workers.engine.ngram_drafter import NUM_CANDIDATES, NgramDrafter

TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=60)
SIZES = st.tuples(st.integers(1, 3), st.integers(0, 3)).map(lambda sizes: (sizes[0], sum(sizes)))


def search(tokens: list[int], least: int, most: int) -> int:
    """The place that is to be found, by looking at all of them; 0: none."""
    places = [
        place
        for place in range(len(tokens) - 1, least - 1, -1)
        if tokens[place - least : place] == tokens[-least:]
    ][:NUM_CANDIDATES]
    lengths = [
        max(n for n in range(least, min(most, place) + 1) if tokens[place - n : place] == tokens[-n:])
        for place in places
    ]
    return places[lengths.index(max(lengths))] if places else 0


@given(tokens=TEXTS, sizes=SIZES, most=st.integers(1, 8), cuts=st.lists(st.integers(1, 60), max_size=4))
def test_a_guess_is_what_came_after_the_most_alike_of_the_last_places(
    tokens: list[int], sizes: tuple[int, int], most: int, cuts: list[int]
) -> None:
    drafter = NgramDrafter(*sizes)
    for end in sorted(cut for cut in cuts if cut < len(tokens)):
        drafter.propose(tokens[:end], most)
    place = search(tokens, *sizes)
    guess = drafter.propose(tokens, most)
    if not place:
        assert guess == []
    else:
        assert len(guess) == most
        whole = tokens + guess
        assert guess == [whole[place + step] for step in range(most)], "the text goes on as it did there"


class Counting(list[int]):
    """Counts the tokens that are read of it."""

    num_read = 0

    def __getitem__(self, where):  # type: ignore[no-untyped-def]
        self.num_read += len(range(*where.indices(len(self)))) if isinstance(where, slice) else 1
        return super().__getitem__(where)


def read_by_a_guess(tokens: Sequence[int], drafter: NgramDrafter) -> int:
    counting = Counting(tokens)
    drafter.propose(counting, 8)
    return counting.num_read


def test_a_guess_reads_no_more_of_a_long_text_than_of_a_short_one() -> None:
    period = [7, 8, 9, 10, 7, 8, 9, 11]
    drafter = NgramDrafter(3, 6)
    read = []
    for length in (400, 401, 8000, 8001):
        read.append(read_by_a_guess((period * 1001)[:length], drafter))
    assert read[1] <= 100
    assert read[3] <= 100
    assert read[2] > 7000, "all that is new is indexed"
