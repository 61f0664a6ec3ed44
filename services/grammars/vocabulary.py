"""The tokens of one model, the grammars over them, and where a text is in its grammar."""

import ctypes
from collections.abc import Sequence
from pathlib import Path

from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer

from proto.constraints import Constraint
from proto.errors import InvalidRequest, InvalidSetting
from services.grammars.source import grammar_source

MAX_LEXER_STATES = 50_000
"""Of one text in its grammar; each takes about half a KiB. The library's own bound is five times that."""
MAX_REASON_CHARS = 500

_LIMITS = LLParserLimits(max_lexer_states=MAX_LEXER_STATES, verbose_errors=False)
_WORD_BITS = 32
_NOTHING_FITS = "no text fits"


def check_grammar(constraint: Constraint) -> None:
    """Compiles it for no model in particular; what it says of special tokens is then unknown.

    Takes as long as the grammar asks for: see `trial`.

    Raises:
        InvalidRequest: no such grammar, with the library's reason.
    """
    source = grammar_source(constraint)
    is_error, messages = LLMatcher.validate_grammar_with_warnings(source, limits=_LIMITS)
    if is_error:
        raise _refused(constraint, messages[0])


class Matcher:
    """One text in its grammar, from its beginning. Made by `Vocabulary`; for one thread at a time.

    Each has a lexer of its own. A copy of another matcher would share that one's, whose states are counted
    and bounded for all its copies together: then it would depend on the others how long a text may go on.
    """

    def __init__(self, constraint: Constraint, inner: LLMatcher, mask_bytes: int) -> None:
        self._constraint = constraint
        self.inner = inner
        self.mask_bytes = mask_bytes

    @property
    def is_accepting(self) -> bool:
        """Whether the text may end here."""
        return self.inner.is_accepting()

    def advance(self, tokens: list[int]) -> None:
        """The text goes on with `tokens`.

        Raises:
            InvalidRequest: it may not, or the grammar takes too much to follow. The matcher is of no use
            any more.
        """
        if not self.inner.consume_tokens(tokens):
            raise self.fault()

    def fault(self) -> InvalidRequest:
        """Why it can be followed no further."""
        return _refused(self._constraint, self.inner.get_error() or _NOTHING_FITS)


class Vocabulary:
    """Takes a quarter of a second to make for 50,000 tokens, and 50 MiB.

    Args:
        vocab_size: the number of logits; those beyond the tokenizer's tokens are never allowed.

    Raises:
        InvalidSetting: a tokenizer of an unknown kind.
    """

    def __init__(self, tokenizer_path: Path, vocab_size: int, eos_tokens: Sequence[int]) -> None:
        ends = list(eos_tokens) or None
        try:
            self._tokenizer = LLTokenizer(tokenizer_path.read_text(), n_vocab=vocab_size, eos_token=ends)
        except ValueError as error:
            raise InvalidSetting(setting="tokenizer.json", reason=str(error)) from error
        self.mask_bytes = -(-vocab_size // _WORD_BITS) * _WORD_BITS // 8

    def compile(self, constraint: Constraint) -> Matcher:
        """Takes as long as the grammar asks for, most often milliseconds; frees the GIL.

        Raises:
            InvalidRequest: no such grammar, or no token can begin its text; with the library's reason.
        """
        source = grammar_source(constraint)
        inner = LLMatcher(self._tokenizer, source, log_level=0, limits=_LIMITS)
        matcher = Matcher(constraint, inner, self.mask_bytes)
        first = inner.compute_bitmask()
        if inner.is_error() or not any(first):
            raise matcher.fault()
        return matcher


class Masks:
    """Which tokens may come next, for many texts in their grammars at once.

    A mask has a bit for each token of the vocabulary: token t is bit t % 8 of byte t // 8.
    """

    def __init__(self, num_threads: int) -> None:
        self._executor = LLExecutor(num_threads)

    def fill(self, matchers: Sequence[Matcher]) -> list[bytearray]:
        """All of one vocabulary. Frees the GIL. One that can be followed no further gets an empty mask."""
        if not matchers:
            return []
        mask_bytes = matchers[0].mask_bytes
        region = bytearray(mask_bytes * len(matchers))
        held = ctypes.c_char.from_buffer(region)
        places = [(matcher.inner, place) for place, matcher in enumerate(matchers)]
        self._executor.unsafe_compute_mask_ptr(places, ctypes.addressof(held), mask_bytes, len(matchers))
        return [
            bytearray(mask_bytes) if matcher.inner.is_error() else region[start : start + mask_bytes]
            for matcher, start in zip(matchers, range(0, len(region), mask_bytes), strict=True)
        ]


def _refused(constraint: Constraint, said: str) -> InvalidRequest:
    if said.startswith("NoExtension"):
        said = _NOTHING_FITS
    reason = said.removesuffix("<non-verbose/>").strip()
    return InvalidRequest(field=constraint.field, reason=reason[:MAX_REASON_CHARS])
