"""Texts tokenised in parts, cut at special tokens, and the parts that come again kept with their tokens.

A chat is sent whole each time, longer by a message. Its messages stand between special tokens, where no other
token can reach across: what is between two of them has the same tokens wherever it stands.
"""

import re
import sys
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TypeAlias

import msgspec
from tokenizers import AddedToken, Tokenizer

_LEAST_KEPT_CHARS = 64
_ENTRY_BYTES = 400
"""What an entry takes besides its characters and tokens: the objects, and its place in the table."""


class _PreTokenizer(msgspec.Struct, frozen=True):
    type: str
    pretokenizers: list["_PreTokenizer"] = []


class _Described(msgspec.Struct, frozen=True):
    pre_tokenizer: _PreTokenizer | None = None


def find_cuts(tokenizer_json: bytes, tokenizer: Tokenizer) -> re.Pattern[str] | None:
    """Matches the special tokens at which a text may be cut, in one group; None: there are none.

    None too for Metaspace, which writes its mark at the beginning of a text only, and where an added token
    minds what stands beside it.
    """
    described = msgspec.json.decode(tokenizer_json, type=_Described).pre_tokenizer
    added = list(tokenizer.get_added_tokens_decoder().values())
    if "Metaspace" in _kinds(described) or any(token.single_word for token in added):
        return None
    texts = [token.content for token in added]
    cuts = [token.content for token in added if _cuts_by_itself(token)]
    apart = [cut for cut in cuts if not any(_overlap(cut, text) for text in texts if text != cut)]
    return re.compile(f"({'|'.join(map(re.escape, apart))})") if apart else None


def _kinds(described: _PreTokenizer | None) -> set[str]:
    if described is None:
        return set()
    return {described.type}.union(*map(_kinds, described.pretokenizers))


def _cuts_by_itself(token: AddedToken) -> bool:
    return token.special and not (token.normalized or token.lstrip or token.rstrip)


def _overlap(one: str, other: str) -> bool:
    """Whether a text could hold both with a character in common."""
    if one in other or other in one:
        return True
    reach = min(len(one), len(other))
    return any(one[-size:] == other[:size] or other[-size:] == one[:size] for size in range(1, reach))


TokenArray: TypeAlias = "array[int]"
"""Token ids of 32 bits, one behind the other: 100,000 of them are copied or packed in a moment."""

Encode = Callable[[list[str]], Iterable[TokenArray]]
"""The tokens of several texts, each by itself."""


class SegmentCache:
    """Tokens of the segments seen last, of one tokenizer, up to `max_bytes` in all. Any thread may ask.

    Args:
        cuts: as `find_cuts` gives them.
    """

    def __init__(self, cuts: re.Pattern[str], token_of: Callable[[str], int], max_bytes: int) -> None:
        self._cuts = cuts
        self._token_of = token_of
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._kept: OrderedDict[str, TokenArray] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def encode(self, text: str, encode: Encode) -> TokenArray:
        """The tokens of `text`; `encode` has those of what is not kept."""
        parts = self._cuts.split(text)
        segments, specials = parts[::2], parts[1::2]
        known = self._look_up(segments)
        new = [segment for segment in dict.fromkeys(segments) if segment not in known]
        known |= zip(new, encode(new), strict=True)
        self._keep(known, new)
        tokens = known[segments[0]][:]
        for special, segment in zip(specials, segments[1:], strict=True):
            tokens.append(self._token_of(special))
            tokens += known[segment]
        return tokens

    def _look_up(self, segments: Iterable[str]) -> dict[str, TokenArray]:
        known = {"": array("I")}
        with self._lock:
            for segment in segments:
                if (tokens := self._kept.get(segment)) is not None:
                    self._kept.move_to_end(segment)
                    known[segment] = tokens
        return known

    def _keep(self, known: dict[str, TokenArray], new: Iterable[str]) -> None:
        kept = {text: known[text] for text in new if len(text) >= _LEAST_KEPT_CHARS}
        with self._lock:
            for segment in kept.keys() - self._kept.keys():
                self._kept[segment] = kept[segment]
                self._num_bytes += _size(segment, kept[segment])
            while self._num_bytes > self._max_bytes:
                self._num_bytes -= _size(*self._kept.popitem(last=False))


def _size(segment: str, tokens: TokenArray) -> int:
    return sys.getsizeof(segment) + len(tokens) * tokens.itemsize + _ENTRY_BYTES
