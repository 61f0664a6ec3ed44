"""A tokenizer from the bytes of `tokenizer.json`: text to tokens, and each token to its bytes."""

from tokenizers import Tokenizer

from frontend.text.token_bytes import PieceBytes, piece_bytes
from proto.errors import InvalidRequest, InvalidSetting


class TextTokenizer:
    """One model's, made by `load_tokenizer`. Encoding frees the GIL; several threads may encode at once.

    `token_bytes` is what one token adds to the text, and may be a part of a character: the joined bytes are
    the text, the joined strings would not be.
    """

    def __init__(self, tokenizer: Tokenizer, convert: PieceBytes) -> None:
        self._tokenizer = tokenizer
        self._convert = convert
        self._special = frozenset(
            number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special
        )
        self._known: dict[int, bytes] = {}

    @property
    def vocab_size(self) -> int:
        """Tokens that have a text; a model may have more logits, padded to a round number."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """`add_special_tokens`: yes for a bare prompt; no after a chat template, which writes its own.

        Raises:
            InvalidRequest: half of a surrogate pair, which JSON can write and UTF-8 cannot.
        """
        try:
            # of one, because only a batch frees the GIL (tokenizers 0.23); fast: without offsets
            batch = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        except (UnicodeEncodeError, TypeError) as error:
            raise InvalidRequest(field="prompt", reason="not valid Unicode text") from error
        return batch[0].ids

    def token_bytes(self, token: int) -> bytes:
        """What `token` adds to the text: nothing for a special token or one outside the vocabulary."""
        known = self._known.get(token)
        if known is None:
            known = self._known[token] = self._find_bytes(token)
        return known

    def spelling(self, token: int) -> bytes:
        """As `token_bytes`, and of a special token its name."""
        name = self._tokenizer.id_to_token(token) if token in self._special else None
        return self.token_bytes(token) if name is None else name.encode()

    def _find_bytes(self, token: int) -> bytes:
        piece = None if token in self._special else self._tokenizer.id_to_token(token)
        return b"" if piece is None else self._convert(piece)


def load_tokenizer(tokenizer_json: bytes) -> TextTokenizer:
    """The tokenizer in the bytes of a `tokenizer.json`; takes up to a second for large vocabularies.

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
    return TextTokenizer(tokenizer, piece_bytes(tokenizer_json))
