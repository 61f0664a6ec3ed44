"""A tokenizer from the bytes of `tokenizer.json`: text to tokens, and each token to its bytes."""

import re
from array import array
from collections.abc import Callable
from hashlib import blake2b

from tokenizers import Tokenizer

from frontend.text.segments import Encode, SegmentCache, TokenArray, find_cuts
from frontend.text.token_bytes import PieceBytes, piece_bytes
from proto.errors import InvalidRequest, InvalidSetting

Compute = Callable[["TextTokenizer", list[str], bool, float], list[TokenArray]]
"""As `compute_here`, wherever; within so many seconds, or it raises DeadlineExceeded."""


def compute_here(
    tokenizer: "TextTokenizer", texts: list[str], add_special_tokens: bool, limit_s: float
) -> list[TokenArray]:
    return tokenizer.encode_batch(texts, add_special_tokens)


class TextTokenizer:
    """One model's, made by `load_tokenizer`. Encoding frees the GIL; several threads may encode at once.

    `token_bytes` is what one token adds to the text, and may be a part of a character: the joined bytes are
    the text, the joined strings would not be. `source` is the file that it is made of, `digest` names it.
    """

    def __init__(
        self,
        source: bytes,
        tokenizer: Tokenizer,
        convert: PieceBytes,
        cuts: re.Pattern[str] | None,
        kept_bytes: int,
    ) -> None:
        self.source = source
        self.digest = blake2b(source, digest_size=16).digest()
        self._tokenizer = tokenizer
        self._convert = convert
        self._segments = cuts and SegmentCache(cuts, self._token_of, kept_bytes)
        self._special = frozenset(
            number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special
        )
        self._known: dict[int, bytes] = {}
        self._whole: dict[int, str | None] = {}

    @property
    def vocab_size(self) -> int:
        """Tokens that have a text; a model may have more logits, padded to a round number."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    @property
    def num_kept_bytes(self) -> int:
        """What the parts of chats that are kept take."""
        return 0 if self._segments is None else self._segments.num_bytes

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """As `encode_array`, in this thread."""

        def encode(texts: list[str]) -> list[TokenArray]:
            return self.encode_batch(texts, add_special_tokens)

        return self.encode_array(text, add_special_tokens, encode).tolist()

    def encode_array(self, text: str, add_special_tokens: bool, encode: Encode) -> TokenArray:
        """The tokens of `text`; `encode` has those of the parts of it that are not known, as `encode_batch`.

        `add_special_tokens`: yes for a bare prompt; no after a chat template, which writes its own.

        Raises:
            InvalidRequest: half of a surrogate pair, which JSON can write and UTF-8 cannot.
        """
        try:
            if self._segments is not None and not add_special_tokens:
                return self._segments.encode(text, encode)
            (tokens,) = encode([text])
            return tokens
        except (UnicodeEncodeError, TypeError) as error:
            raise InvalidRequest(field="prompt", reason="not valid Unicode text") from error

    def encode_batch(self, texts: list[str], add_special_tokens: bool) -> list[TokenArray]:
        """The tokens of each, nothing looked up and nothing kept."""
        # only a batch frees the GIL (tokenizers 0.23); fast: without offsets
        batch = self._tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
        return [array("I", encoding.ids) for encoding in batch]

    def _token_of(self, piece: str) -> int:
        token = self._tokenizer.token_to_id(piece)
        assert token is not None  # it is one of the tokenizer's own
        return token

    def token_bytes(self, token: int) -> bytes:
        """What `token` adds to the text: nothing for a special token or one outside the vocabulary."""
        known = self._known.get(token)
        if known is None:
            known = self._known[token] = self._find_bytes(token)
        return known

    def whole_text(self, token: int) -> str | None:
        """What `token` adds to a text that stands between two characters; None where it ends within one, or
        spells none."""
        try:
            return self._whole[token]
        except KeyError:
            text = self._whole[token] = _try_decode(self.token_bytes(token))
            return text

    def spelling(self, token: int) -> bytes:
        """As `token_bytes`, and of a special token its name."""
        name = self._tokenizer.id_to_token(token) if token in self._special else None
        return self.token_bytes(token) if name is None else name.encode()

    def piece(self, token: int) -> str:
        """Its entry in the vocabulary, spaces and bytes as the vocabulary writes them."""
        return self._tokenizer.id_to_token(token) or ""

    def special_token(self, name: str) -> int | None:
        """The special token that is called so."""
        token = self._tokenizer.token_to_id(name)
        return token if token in self._special else None

    def _find_bytes(self, token: int) -> bytes:
        piece = None if token in self._special else self._tokenizer.id_to_token(token)
        return b"" if piece is None else self._convert(piece)


def _try_decode(spelling: bytes) -> str | None:
    try:
        return spelling.decode()
    except UnicodeDecodeError:
        return None


def load_tokenizer(tokenizer_json: bytes, kept_bytes: int = 0) -> TextTokenizer:
    """The tokenizer in the bytes of a `tokenizer.json`; takes up to a second for large vocabularies.

    Args:
        kept_bytes: parts of chats are kept with their tokens, up to so many bytes.

    Raises:
        InvalidSetting: no tokenizer, or one that joins its tokens in a way not known here.
    """
    try:
        tokenizer = Tokenizer.from_buffer(tokenizer_json)
    except ValueError as error:
        raise InvalidSetting(setting="tokenizer.json", reason=str(error)) from error
    # a file may ask for cut or padded prompts; here the model's limits decide
    tokenizer.no_truncation()
    tokenizer.no_padding()
    convert = piece_bytes(tokenizer_json)
    cuts = find_cuts(tokenizer_json, tokenizer)
    return TextTokenizer(tokenizer_json, tokenizer, convert, cuts, kept_bytes)
