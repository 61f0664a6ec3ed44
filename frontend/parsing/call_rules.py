"""What the grammars of all formats share: marks, and arguments that are of their functions' schemas.

In the notation of Lark, with the grammar library's extensions: `%json`, a rule's `suffix`, and special tokens
by their numbers.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from frontend.parsing.tools import ToolFunction, Tools

MAX_CALLS = 16
ANY_OBJECT = {"type": "object"}

_WRITTEN = {"whitespace_flexible": False, "key_separator": ": ", "item_separator": ", "}
"""As templates write calls that were made."""


def mark_term(marker: str, special: Mapping[str, int]) -> str:
    """`special`: the numbers of those markers that are special tokens."""
    number = special.get(marker)
    return json.dumps(marker) if number is None else f"<[{number}]>"


def more_calls(tools: Tools, rule: str) -> str:
    """`rule`, a further call, as often as there may be one."""
    return f"({rule}){{0,{MAX_CALLS - 1}}}" if tools.is_parallel else ""


def object_rules(functions: Sequence[ToolFunction], key: str) -> Iterator[str]:
    """`call`: an object of a name and, under `key`, its arguments."""
    starts = (json.dumps(f'{{"name": "{each.name}", "{key}": ') for each in functions)
    yield "call: " + " | ".join(f'{start} args{at} "}}"' for at, start in enumerate(starts))
    yield from argument_rules(functions)


def argument_rules(functions: Sequence[ToolFunction]) -> Iterator[str]:
    """`args0`, `args1`, ...: the arguments of each function."""
    for at, function in enumerate(functions):
        # what the library does not know of a schema is let be, unless that is to be held to strictly
        guidance = _WRITTEN | {"lenient": not function.is_strict}
        yield f"args{at}: {json_rule(ANY_OBJECT | function.parameters, guidance)}"


def json_rule(schema: dict[str, Any], guidance: Mapping[str, object]) -> str:
    return "%json " + json.dumps(schema | {"x-guidance": dict(guidance)})
