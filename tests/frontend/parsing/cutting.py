"""Texts cut into pieces, and what a parser makes of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from frontend.parsing.answer_parser import AnswerParser
from frontend.parsing.call_parser import CallParser
from frontend.parsing.delta import Delta

FUNCTIONS = frozenset({"look_up", "add"})

CUTS = st.lists(st.integers(1, 12), max_size=8)


@dataclass
class Said:
    """An answer as a client puts it together from its deltas."""

    reasoning: str = ""
    content: str = ""
    calls: list[list[str]] = field(default_factory=list)

    def add(self, delta: Delta) -> None:
        self.reasoning += delta.reasoning
        self.content += delta.content
        for call in delta.calls:
            if call.name is not None:
                assert call.index == len(self.calls)
                self.calls.append([call.name, ""])
            assert call.index == len(self.calls) - 1  # only the last one goes on
            self.calls[-1][1] += call.arguments


def cut(text: str, cuts: Sequence[int]) -> list[str]:
    """Pieces of the lengths in `cuts`, over and over; whole without any."""
    pieces, turn = [], 0
    while text:
        length = cuts[turn % len(cuts)] if cuts else len(text)
        pieces.append(text[:length])
        text = text[length:]
        turn += 1
    return pieces


def parse(make: Callable[[], AnswerParser], text: str, cuts: Sequence[int] = ()) -> Said:
    parser, said = make(), Said()
    for piece in cut(text, cuts):
        said.add(parser.push(piece))
    said.add(parser.finish())
    assert parser.num_held == 0
    return said


def calls_only(parser: type[CallParser]) -> Callable[[], AnswerParser]:
    return lambda: AnswerParser(None, parser(FUNCTIONS))
