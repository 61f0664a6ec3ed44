"""A constraint in the grammar library's terms, and what of it is refused before the library sees it."""

import json
import re
from typing import TYPE_CHECKING, Any

import msgspec
from llguidance import LLMatcher, grammar_from

from proto.constraints import Constraint, check_size
from proto.errors import InvalidRequest

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

MAX_DEPTH = 64
MAX_CHOICES = 1000
MAX_SPACES = 40
"""The most white space in one place of a JSON text: a model that is led may go on with spaces for ever. So
many hold a line break and the indentation of ten levels."""

GUIDANCE: "JsonCompileOptions" = {"whitespace_pattern": f"[ \\t\\r\\n]{{1,{MAX_SPACES}}}", "lenient": False}
"""How a schema is held to: what the library does not know it refuses, whatever the schema says to that."""

_TOO_DEEP = f"a schema of more than {MAX_DEPTH} levels"
_GBNF_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
_json = msgspec.json.Decoder()
_choices = msgspec.json.Decoder(list[str])


def grammar_source(constraint: Constraint) -> str:
    """What the library compiles; it may still find fault with it.

    Raises:
        InvalidRequest: too long, too deep, or not what its kind says.
    """
    check_size(constraint)
    match constraint.kind:
        case "json_object":
            return _of_schema({"type": "object"})
        case "json_schema":
            return _of_schema(_read_schema(constraint))
        case "regex":
            return LLMatcher.grammar_from_regex(constraint.text)
        case "choice":
            choices = map(json.dumps, _read_choices(constraint))  # its escapes are Lark's, too
            return LLMatcher.grammar_from_lark("start: " + " | ".join(choices))
        case "grammar":
            return _read_grammar(constraint)


def _of_schema(schema: dict[str, Any]) -> str:
    return LLMatcher.grammar_from_json_schema(schema, overrides=GUIDANCE)


def _read_schema(constraint: Constraint) -> dict[str, Any]:
    try:
        schema = _json.decode(constraint.text)
    except msgspec.DecodeError as error:
        raise _refused(constraint, f"not JSON: {error}") from error
    except RecursionError as error:
        raise _refused(constraint, _TOO_DEEP) from error
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise _refused(constraint, "a JSON schema is an object, or true")
    if _is_deeper(schema, MAX_DEPTH):
        raise _refused(constraint, _TOO_DEEP)
    return schema


def _is_deeper(value: object, max_depth: int) -> bool:
    """Whether lists and objects lie within each other at more than `max_depth` levels."""
    level = [value]
    for _ in range(max_depth + 1):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return False
    return True


def _inside(value: object) -> list[Any]:
    match value:
        case dict():
            return list(value.values())
        case list():
            return value
    return []


def _read_choices(constraint: Constraint) -> list[str]:
    try:
        choices = _choices.decode(constraint.text)
    except msgspec.DecodeError as error:
        raise _refused(constraint, f"not a list of strings: {error}") from error
    if not 1 <= len(choices) <= MAX_CHOICES:
        raise _refused(constraint, f"1 to {MAX_CHOICES} choices, not {len(choices)}")
    return choices


def _read_grammar(constraint: Constraint) -> str:
    if not _GBNF_RULE.search(constraint.text):
        return LLMatcher.grammar_from_lark(constraint.text)
    try:
        return grammar_from("gbnf", constraint.text)
    except ValueError as error:
        raise _refused(constraint, str(error)) from error


def _refused(constraint: Constraint, reason: str) -> InvalidRequest:
    return InvalidRequest(field=constraint.field, reason=reason)
