"""How one vocabulary entry becomes bytes of text, as the `decoder` of `tokenizer.json` says.

Two ways are in use. Byte-level vocabularies write each byte as one printable character. Vocabularies of the
SentencePiece kind write text, with a mark for the space, and single bytes as `<0xE4>`.
"""

import re
from collections.abc import Callable

import msgspec

from proto.errors import InvalidSetting

PieceBytes = Callable[[str], bytes]

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class _Pattern(msgspec.Struct, frozen=True):
    String: str = ""


class _Decoder(msgspec.Struct, frozen=True):
    """The part of a decoder's description that is read here."""

    type: str
    decoders: list["_Decoder"] = []
    pattern: _Pattern = _Pattern()
    content: str = ""
    replacement: str = ""


class _Described(msgspec.Struct, frozen=True):
    decoder: _Decoder | None = None


def piece_bytes(tokenizer_json: bytes) -> PieceBytes:
    """The function for the pieces of this tokenizer.

    A text begins where the prompt ended, so the space that SentencePiece's decoders strip at the very
    beginning of a text stays.

    Raises:
        InvalidSetting: a kind of decoder that is not known here.
    """
    try:
        decoder = msgspec.json.decode(tokenizer_json, type=_Described).decoder
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidSetting(setting="tokenizer.json", reason=str(error)) from error
    steps = _steps(decoder)
    kinds = {step.type for step in steps}
    if kinds == {"ByteLevel"}:
        return _byte_level_piece
    if steps and kinds <= {"Replace", "Metaspace", "ByteFallback", "Fuse", "Strip"}:
        return _text_piece([_replacement(step) for step in steps if step.type in ("Replace", "Metaspace")])
    raise InvalidSetting(setting="tokenizer.json", reason=f"cannot decode by {sorted(kinds) or 'nothing'}")


def _steps(decoder: _Decoder | None) -> list[_Decoder]:
    if decoder is None:
        return []
    return decoder.decoders if decoder.type == "Sequence" else [decoder]


def _replacement(step: _Decoder) -> tuple[str, str]:
    found = (step.replacement, " ") if step.type == "Metaspace" else (step.pattern.String, step.content)
    if not found[0]:
        raise InvalidSetting(setting="tokenizer.json", reason="cannot decode by a pattern")
    return found


def _text_piece(replacements: list[tuple[str, str]]) -> PieceBytes:
    def convert(piece: str) -> bytes:
        if byte := _BYTE_PIECE.fullmatch(piece):
            return bytes([int(byte[1], 16)])
        for old, new in replacements:
            piece = piece.replace(old, new)
        return piece.encode()

    return convert


def _byte_level_piece(piece: str) -> bytes:
    try:
        return bytes([_BYTE_OF[char] for char in piece])
    except KeyError:  # an added token, kept as text
        return piece.encode()


def _byte_alphabet() -> dict[str, int]:
    """Printable Latin-1 characters stand for themselves, the other bytes for U+0100 and up.

    Source: `bytes_to_unicode` of GPT-2's encoder.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {
        **{chr(byte): byte for byte in printable},
        **{chr(0x100 + place): byte for place, byte in enumerate(others)},
    }


_BYTE_OF = _byte_alphabet()
