"""Texts that a model without any sense would write, led by a grammar; and the model's vocabulary."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from tokenizers import Tokenizer

from frontend.text.tokenizer import TextTokenizer, load_tokenizer
from proto.constraints import Constraint
from services.grammars.vocabulary import Masks, Matcher, Vocabulary
from tests.frontend.text.tokenizers import byte_level, saved, sentence_piece, token_id

NUM_PADDED = 9
"""Logits beyond the tokenizer's last token."""
NUM_FREE = 60
MASKS = Masks(num_threads=2)


class Writer:
    """One model's tokens. `end` is its end-of-sequence token."""

    def __init__(self, tokenizer: Tokenizer, end: str) -> None:
        self.text: TextTokenizer = load_tokenizer(saved(tokenizer))
        self.end = token_id(tokenizer, end)
        self.vocab_size = self.text.vocab_size + NUM_PADDED
        with TemporaryDirectory() as folder:
            path = Path(folder, "tokenizer.json")
            path.write_bytes(saved(tokenizer))
            self.vocabulary = Vocabulary(path, self.vocab_size, [self.end])

    def allowed(self, matcher: Matcher) -> list[int]:
        (found,) = self.allowed_of([matcher])
        return found

    def allowed_of(self, matchers: Sequence[Matcher]) -> list[list[int]]:
        """The tokens that each may go on with."""
        return [tokens_in(mask) for mask in MASKS.fill(matchers)]

    def write(self, constraint: Constraint, random: Random) -> str:
        """Any of the texts that `constraint` takes: at random, and after a while whatever comes to an end."""
        matcher = self.vocabulary.compile(constraint)
        tokens: list[int] = []
        while True:
            token = self._choose(self.allowed(matcher), random, is_hurried=len(tokens) >= NUM_FREE)
            if token == self.end:
                return b"".join(map(self.text.token_bytes, tokens)).decode()
            matcher.advance([token])
            tokens.append(token)

    def _choose(self, allowed: list[int], random: Random, *, is_hurried: bool) -> int:
        if not is_hurried:
            return random.choice(allowed)
        if self.end in allowed:
            return self.end
        closing = [token for token in allowed if self.text.token_bytes(token) in (b'"', b"}", b"]")]
        return random.choice(closing or allowed)


def tokens_in(mask: bytes | bytearray) -> list[int]:
    """The tokens whose bits are set."""
    return [8 * place + bit for place, byte in enumerate(mask) if byte for bit in range(8) if byte >> bit & 1]


@cache
def byte_writer() -> Writer:
    return Writer(byte_level(), "<|end|>")


@cache
def piece_writer() -> Writer:
    return Writer(sentence_piece(), "</s>")
