"""What the formats of calls share: text in, content and calls out, and nothing lost between them.

```
          marker              {                    }
 text ────────────► opened ───────► in a call ───────────► after a call ──► text
   ▲                  │ else            │  │ no JSON, though begun          (or another call)
   └────── content ◄──┴─────────────────┘  └─► spoiled: all is arguments, up to a marker
                        no call yet
```
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping

from frontend.parsing.call_reader import CallReader
from frontend.parsing.delta import CallDelta, Delta, join_calls
from frontend.parsing.json_scanner import BLANKS, Step
from frontend.parsing.markers import find_marker, num_begun
from frontend.parsing.tools import Tools

MAX_KEPT = 256
"""Characters before a call, most of them white space, that wait to be told apart."""

State = Callable[[str, int], int]
"""Takes the text from a place on, and says up to where; at least a character, or it changes the state."""


class CallParser(ABC):
    """One answer. All deltas joined are the same however the text was cut, and its work is linear.

    What of a call cannot be one, before its name and the beginning of its arguments are known, is content,
    as it stands. From then on it is a call: what its arguments are after a mistake is for the client to see.
    Markers that are special tokens come as such (`push_marker`) and are never content; those that are text
    are found in it: `openers` begin calls, `closers` end them, `others` stand within. White space before and
    after calls belongs to the syntax. `begins_bare`: who is led to call writes no opening marker.
    """

    openers: tuple[str, ...]
    closers: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    begins_bare = False

    def __init__(self, functions: frozenset[str]) -> None:
        self._functions = functions
        self._num_calls = 0
        self._num_whole = 0
        self._content: list[str] = []
        self._calls: tuple[CallDelta, ...] = ()
        self._pending = ""
        self._blanks: str | None = ""
        self._kept = ""
        self._reader: CallReader | None = None
        self._state: State = self.begin

    @property
    def num_held(self) -> int:
        """Characters of which it is not known yet what they are."""
        reading = self._reader.num_held if self._reader is not None else 0
        return len(self._pending) + len(self._blanks or "") + len(self._kept) + reading

    @property
    def has_called(self) -> bool:
        """Whether there are calls, and the arguments of each have ended."""
        return 0 < self._num_calls == self._num_whole

    def begin(self, text: str, place: int) -> int:
        """The first state."""
        return self.in_text(text, place)

    @abstractmethod
    def open(self, text: str, place: int) -> int:
        """The state after an opening marker, at what is no white space."""

    @abstractmethod
    def go_on(self, text: str, place: int) -> int:
        """The state after a call."""

    @classmethod
    @abstractmethod
    def rules(cls, tools: Tools, special: Mapping[str, int]) -> Iterator[str]:
        """The same syntax as rules of a grammar; `calls` is all that follows the first opening marker.

        Args:
            special: the numbers of those markers that are special tokens.
        """

    def push(self, text: str) -> Delta:
        text = self._pending + text
        self._pending = ""
        place = 0
        while place < len(text):
            place = self._state(text, place)
        return self._take_delta()

    def push_marker(self, marker: str) -> Delta:
        """A marker that is a special token; not each is of this format."""
        if marker not in (*self.openers, *self.closers, *self.others):
            return Delta()
        self.settle()
        if marker in self.openers:
            self._opened("")
        return self._take_delta()

    def finish(self) -> Delta:
        """The text has ended: what was held back is what it is."""
        self.settle()
        if self._blanks:
            self._content.append(self._blanks)
            self._blanks = None
        return self._take_delta()

    def _take_delta(self) -> Delta:
        delta = Delta(content="".join(self._content), calls=self._calls)
        self._content.clear()
        self._calls = ()
        return delta

    def settle(self) -> None:
        """Nothing comes that could make more of what is held back."""
        pending, self._pending = self._pending, ""
        if self._state == self.spoiled:
            self._tell_arguments(pending)
        elif self._state != self.go_on:  # there, the beginning of a closing marker
            self.fall_back(pending)
        self._reader = None
        self._state = self.in_text

    # what states do

    def to_state(self, state: State) -> None:
        self._state = state

    def is_in(self, state: State) -> bool:
        """With nothing held back in it."""
        return self._state == state and not self._pending

    def hold(self, text: str, place: int) -> int:
        """The rest of `text` waits for more."""
        self._pending = text[place:]
        return len(text)

    def keep(self, text: str) -> None:
        """More of what is content should no call follow."""
        self._kept += text

    def lead(self, text: str, place: int, then: State) -> int:
        """White space is kept, and `then` is the state at what follows it."""
        end = skip_blanks(text, place)
        self.keep(text[place:end])
        if len(self._kept) > MAX_KEPT:
            self.fall_back()
        elif end < len(text):
            return then(text, end)
        return end

    def fall_back(self, more: str = "") -> None:
        """What was read is no call, but text."""
        held = self._reader.held if self._reader is not None else ""
        text, self._kept, self._reader = self._kept + held + more, "", None
        self._state = self.in_text
        if text:
            self._tell_content(text)

    def begin_call(self, reader: CallReader) -> None:
        self._reader = reader
        self._state = self.in_call

    def expect_call(self, text: str, place: int, reader: CallReader) -> int:
        """The state at what is the first brace of a call, or no call."""
        if text[place] == "{":
            self.begin_call(reader)
        else:
            self.fall_back()
        return place

    def _opened(self, shown: str) -> None:
        """`shown`: how the marker stands in the text."""
        self._kept = shown
        self._state = self._lead_to_call

    def _tell_content(self, text: str) -> None:
        """White space that nothing but white space came before waits; after a call it is dropped."""
        if self._blanks is None:
            self._content.append(text)
            return
        solid = text.lstrip(BLANKS)
        is_after_call = self._num_calls > 0
        if not solid and (is_after_call or len(self._blanks) + len(text) <= MAX_KEPT):
            self._blanks += "" if is_after_call else text
            return
        self._content.append(solid if is_after_call else self._blanks + text)
        self._blanks = None

    def _tell_begun(self, name: str) -> None:
        self._kept = ""
        self._calls += (CallDelta(self._num_calls, name),)
        self._num_calls += 1
        self._blanks = ""

    def _tell_arguments(self, text: str) -> None:
        if text:
            self._calls = join_calls(self._calls, (CallDelta(self._num_calls - 1, arguments=text),))

    # states

    def in_text(self, text: str, place: int) -> int:
        found = find_marker(text, place, self.openers)
        end = found.start if found is not None else len(text) - num_begun(text, place, self.openers)
        if end > place:
            self._tell_content(text[place:end])
        if found is None:
            return self.hold(text, end)
        self._opened(found.marker)
        return found.end

    def _lead_to_call(self, text: str, place: int) -> int:
        return self.lead(text, place, self.open)

    def in_call(self, text: str, place: int) -> int:
        reader = self._reader
        assert reader is not None
        had_begun, step = reader.has_begun, Step.GOES_ON
        while place < len(text) and step is Step.GOES_ON:
            step = reader.advance(text[place])
            place += step in (Step.GOES_ON, Step.ENDS)
        if reader.has_begun:
            if not had_begun:
                self._tell_begun(reader.name)
            self._tell_arguments(reader.take_arguments())
            self._num_whole = self._num_calls - (not reader.is_whole)
        if step is not Step.GOES_ON:
            self._leave(reader)
        return place

    def _leave(self, reader: CallReader) -> None:
        if not reader.has_begun:
            self.fall_back()
            return
        self._reader = None
        self._state = self.go_on if reader.is_whole else self.spoiled

    def spoiled(self, text: str, place: int) -> int:
        """Arguments that are no JSON go on as the model writes them, until a marker says that they end."""
        markers = (*self.openers, *self.closers)
        found = find_marker(text, place, markers)
        end = found.start if found is not None else len(text) - num_begun(text, place, markers)
        self._tell_arguments(text[place:end])
        if found is None:
            return self.hold(text, end)
        self._state = self.in_text
        if found.marker in self.openers:
            self._opened(found.marker)
        return found.end


def skip_blanks(text: str, place: int) -> int:
    while place < len(text) and text[place] in BLANKS:
        place += 1
    return place
