"""Marks in a text: where one stands, and what at its end may still become one."""

from collections.abc import Sequence

import msgspec


class Found(msgspec.Struct, frozen=True):
    start: int
    marker: str

    @property
    def end(self) -> int:
        return self.start + len(self.marker)


def find_marker(text: str, start: int, markers: Sequence[str]) -> Found | None:
    """The first one at or after `start`."""
    places = [(text.find(marker, start), marker) for marker in markers]
    found = [each for each in places if each[0] >= 0]
    return Found(*min(found)) if found else None


def num_begun(text: str, start: int, markers: Sequence[str]) -> int:
    """How many characters at the end of `text`, from `start` on, may be the beginning of a marker."""
    longest = max(map(len, markers), default=1) - 1
    for length in range(min(longest, len(text) - start), 0, -1):
        end = text[len(text) - length :]
        if any(marker.startswith(end) for marker in markers):
            return length
    return 0
