"""What an answer looks like to its client, whatever its dialect: events of a stream, or all in one piece."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec

from frontend.generation import Usage
from frontend.parsing.delta import Delta, WholeCall
from frontend.shown_tokens import ShownToken
from frontend.text_choice import ChoiceFacts
from frontend.token_scores import TokenScores


class WholeChoice(msgspec.Struct, frozen=True):
    """A choice that has ended. `facts` are those of the `kvmesh` extension; `tokens` and `prompt` the tokens
    of its text and those of its prompt but the first, where their log-probabilities were asked for.
    `reasoning` came before the text, `calls` beside it."""

    index: int
    text: str
    finish: str
    facts: ChoiceFacts
    tokens: list[ShownToken] | None = None
    prompt: list[TokenScores] | None = None
    reasoning: str = ""
    calls: list[WholeCall] = []


class Form(Protocol):
    """Events are bytes, framed as `events` has them, so that they can be joined."""

    def opening(self, index: int) -> bytes:
        """The event that begins a choice; empty where there is none."""

    def text(self, index: int, text: str, tokens: Sequence[ShownToken]) -> bytes:
        """The event that carries a piece of text."""

    def finish(self, index: int, finish: str, facts: ChoiceFacts) -> bytes:
        """The event that ends a choice."""

    def usage(self, usage: Usage) -> bytes:
        """The event with the usage; empty if it was not asked for."""

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> bytes:
        """The answer in one piece."""


@runtime_checkable
class CountingForm(Form, Protocol):
    """One whose events may say how far the answer is: those that leave together say the same."""

    @property
    def tells_usage_as_it_comes(self) -> bool: ...

    def note_usage(self, usage: Usage) -> None:
        """How far it is with the events that are written next. Only where it tells so."""


@runtime_checkable
class SpeechForm(Form, Protocol):
    """One that shows what a chat's answer is made of, and not its text alone."""

    def delta(self, index: int, delta: Delta, tokens: Sequence[ShownToken]) -> bytes:
        """The event that carries reasoning or calls, beside a piece of text."""
