"""The fields that say what an answer must be: OpenAI's `response_format`, and what others have beside it."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from proto.constraints import Constraint, ConstraintKind
from proto.errors import InvalidRequest

_encode = msgspec.json.Encoder().encode
# `$` alone would let a line break follow
SchemaName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}$(?!\n)")]
Schema = dict[str, Any] | bool


class NamedSchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`strict` changes nothing: a schema that is given holds."""

    name: SchemaName
    schema: Schema | None = None
    description: str | None = None
    strict: bool | None = None


class TextFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """Anything."""


class ObjectFormat(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="json_object"
):
    """Any JSON object."""


class SchemaFormat(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="json_schema"
):
    """JSON of that schema; any object without one."""

    json_schema: NamedSchema


ResponseFormat = TextFormat | ObjectFormat | SchemaFormat


class StructuredOutputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of them says what the answer is. `json`: a schema, or the text of one."""

    json: Schema | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class ConstraintFields(msgspec.Struct, frozen=True, kw_only=True):
    """What both endpoints take. Null is the same as absent."""

    response_format: ResponseFormat | None = None
    guided_json: Schema | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None


CONSTRAINT_FIELDS = ConstraintFields.__struct_fields__


def read_constraint(fields: ConstraintFields) -> Constraint | None:
    """What the answer must be, if that was said.

    Raises:
        InvalidRequest: it was said twice.
    """
    found = [
        *_of_format(fields.response_format),
        *_of_guides(fields),
        *_of_outputs(fields.structured_outputs),
    ]
    if len(found) > 1:
        reason = f"{found[0].field} says already what the answer must be"
        raise InvalidRequest(field=found[1].field, reason=reason)
    return found[0] if found else None


def schema_constraint(schema: Schema, field: str) -> Constraint:
    """JSON of that schema. `field` is named when it cannot be used."""
    return Constraint("json_schema", _encode(schema).decode(), field)


def _of_format(said: ResponseFormat | None) -> list[Constraint]:
    field = "response_format"
    match said:
        case ObjectFormat():
            return [Constraint("json_object", field=field)]
        case SchemaFormat(NamedSchema(schema=None)):
            return [Constraint("json_object", field=field)]
        case SchemaFormat(NamedSchema(schema=schema)):
            return _of_json(schema, field)
    return []


def _of_guides(fields: ConstraintFields) -> list[Constraint]:
    return [
        *_of_json(fields.guided_json, "guided_json"),
        *_of_text("regex", fields.guided_regex, "guided_regex"),
        *_of_choice(fields.guided_choice, "guided_choice"),
        *_of_text("grammar", fields.guided_grammar, "guided_grammar"),
    ]


def _of_outputs(said: StructuredOutputs | None) -> list[Constraint]:
    if said is None:
        return []
    field = "structured_outputs"
    return [
        *_of_json(said.json, field),
        *_of_text("regex", said.regex, field),
        *_of_choice(said.choice, field),
        *_of_text("grammar", said.grammar, field),
        *([Constraint("json_object", field=field)] if said.json_object else []),
    ]


def _of_json(schema: Schema | str | None, field: str) -> list[Constraint]:
    match schema:
        case None:
            return []
        case str():
            return [Constraint("json_schema", schema, field)]
    return [schema_constraint(schema, field)]


def _of_text(kind: ConstraintKind, text: str | None, field: str) -> list[Constraint]:
    return [] if text is None else [Constraint(kind, text, field)]


def _of_choice(choices: list[str] | None, field: str) -> list[Constraint]:
    return [] if choices is None else [Constraint("choice", _encode(choices).decode(), field)]
