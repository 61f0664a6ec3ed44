"""Names in subjects and keys: ids that are made here, and model names that are escaped."""

import re
import secrets

from proto.errors import InvalidRequest

_SAFE = re.compile(r"[A-Za-z0-9_-]")
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def new_id() -> str:
    """A fresh id of 96 random bits, safe in subjects and keys."""
    return secrets.token_hex(12)


def check_id(name: str, field: str) -> str:
    """`name`, when it can stand in a subject and a key.

    Raises:
        InvalidRequest: empty, over 64 characters, or with a character other than letters, digits, `_`, `-`.
    """
    if not _ID.fullmatch(name):
        raise InvalidRequest(field=field, reason=f"{name!r} is not 1 to 64 letters, digits, '_' or '-'")
    return name


def escape(model: str) -> str:
    """A model name as one subject token: `org/Model-1.5` becomes `org=2fModel-1=2e5`.

    Every byte outside `A-Z a-z 0-9 _ -` is written as `=` and two hex digits, so the result has no dot,
    slash, star or space, and `unescape` gives back the name.
    """
    return "".join(
        char if _SAFE.fullmatch(char) else "".join(f"={byte:02x}" for byte in char.encode("utf-8", "replace"))
        for char in model
    )


def unescape(token: str) -> str:
    """The inverse of `escape`."""
    raw = re.sub(rb"=([0-9a-f]{2})", lambda found: bytes([int(found[1], 16)]), token.encode())
    return raw.decode("utf-8", "replace")
