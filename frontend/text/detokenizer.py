"""A stream's tokens to text, piece by piece, without ever breaking a character.

`tokenizers.decoders.DecodeStream` was tried and loses a U+FFFD that the tokens truly spell, as well as all
that is held back at the end, so the bytes are joined here and decoded by the standard library.
"""

import codecs
from collections.abc import Iterable

from frontend.text.tokenizer import TextTokenizer


class Detokenizer:
    """One stream's. All pushes and the flush joined are the text of all tokens, however they were cut.

    Holds back at most three bytes: the beginning of a character that is not complete. The work is constant
    for each token.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_within = False

    def push(self, tokens: Iterable[int]) -> str:
        """The text that these tokens complete; U+FFFD stands for bytes that can be no character."""
        text = self._decoder.decode(b"".join(map(self._tokenizer.token_bytes, tokens)))
        self._is_within = bool(self._decoder.getstate()[0])
        return text

    def push_one(self, token: int) -> str:
        """As `push`. What most tokens spell is known, and nothing is decoded."""
        if not self._is_within:
            text = self._tokenizer.whole_text(token)
            if text is not None:
                return text
        return self.push((token,))

    @property
    def is_within_character(self) -> bool:
        """Whether the beginning of a character is held back."""
        return self._is_within

    def flush(self) -> str:
        """What is held back at the end: nothing, or one U+FFFD if the last character never came."""
        self._is_within = False
        return self._decoder.decode(b"", final=True)
