"""Keep `golden_messages.json`: the bytes of every message that this or an earlier version has sent.

Run after a change of a message: `python -m tests.proto.make_golden_messages`. It adds today's bytes where
they are new, and removes nothing: what was once on the wire must stay readable.
"""

from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from proto.codec import encode
from tests.proto.wire_kinds import KINDS, example_of

GOLDEN_PATH = Path(__file__).with_name("golden_messages.json")


class Golden(msgspec.Struct, frozen=True):
    """One message as it was sent: its kind, its bytes in hex, and what they said, by field name."""

    kind: str
    payload: str
    facts: dict[str, Any]


def facts_of(value: Any) -> Any:
    """What a message says, in JSON's terms; fields by name, however they travel."""
    match value:
        case msgspec.Struct():
            return {name: facts_of(getattr(value, name)) for name in value.__struct_fields__}
        case dict():
            return {str(key): facts_of(item) for key, item in value.items()}
        case list() | tuple():
            return [facts_of(item) for item in value]
        case bytes():
            return value.hex()
        case Enum():
            return value.value
    return value


def read_golden() -> list[Golden]:
    return msgspec.json.decode(GOLDEN_PATH.read_bytes(), type=list[Golden])


def golden_of_today() -> list[Golden]:
    examples = {kind.__name__: example_of(kind) for kind in KINDS}
    return [Golden(name, encode(example).hex(), facts_of(example)) for name, example in examples.items()]


def main() -> None:
    kept = read_golden() if GOLDEN_PATH.exists() else []
    known = {(golden.kind, golden.payload) for golden in kept}
    kept += [golden for golden in golden_of_today() if (golden.kind, golden.payload) not in known]
    lines = [msgspec.json.encode(golden).decode() for golden in sorted(kept, key=lambda golden: golden.kind)]
    GOLDEN_PATH.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
