"""What `/openapi.json` says of each route: its body, its answers, and the errors that it may end with."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from frontend.openai.fields import Refused
from services.faults import ErrorEnvelope

_SCHEMAS = "#/components/schemas/{name}"
_READ_ERRORS = (HTTPStatus.INTERNAL_SERVER_ERROR, HTTPStatus.SERVICE_UNAVAILABLE)
_MODEL_ERRORS = (*_READ_ERRORS, HTTPStatus.NOT_FOUND)
_CALL_ERRORS = (
    *_MODEL_ERRORS,
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.GATEWAY_TIMEOUT,
)


class Shape(msgspec.Struct, frozen=True):
    """One route's JSON. `event` is that of each event of a stream, `refused` the fields that its body names
    only to be told that they are not served; `items` what the lists in it hold, where the code reads that."""

    answer: type[msgspec.Struct]
    body: type[msgspec.Struct] | None = None
    event: type[msgspec.Struct] | None = None
    refused: Refused = {}
    items: Mapping[str, type[msgspec.Struct]] = {}
    names_model: bool = True

    def arguments(self) -> dict[str, Any]:
        """What FastAPI is told of the route beside its path."""
        extra = {} if self.body is None else {"requestBody": {"required": True, "content": _json(self.body)}}
        return {"responses": self._responses(), "openapi_extra": extra, "response_model": None}

    def _responses(self) -> dict[int | str, dict[str, Any]]:
        content = _json(self.answer)
        if self.event is not None:
            said = f"a {self.event.__name__} as JSON, or at the end `[DONE]`"
            data = {"data": {"type": "string", "description": said}}
            event = {"type": "object", "properties": data, "required": ["data"]}
            content["text/event-stream"] = {"schema": event}
        found: dict[int | str, dict[str, Any]] = {200: {"description": "OK", "content": content}}
        for status in self._errors():
            found[status.value] = {"description": status.phrase, "content": _json(ErrorEnvelope)}
            if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
                found[status.value]["headers"] = {"retry-after": {"schema": {"type": "integer"}}}
        return found

    def _errors(self) -> Sequence[HTTPStatus]:
        if self.body is not None:
            return _CALL_ERRORS
        return _MODEL_ERRORS if self.names_model else _READ_ERRORS

    def types(self) -> list[type[msgspec.Struct]]:
        named = [each for each in (self.answer, self.body, self.event) if each is not None]
        return [*named, *self.items.values()]


def document(app: FastAPI, shapes: Sequence[Shape]) -> None:
    """FastAPI documents the models of pydantic; ours are msgspec's."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _describe(app, shapes)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _describe(app: FastAPI, shapes: Sequence[Shape]) -> dict[str, Any]:
    described = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
    types = {each for shape in shapes for each in shape.types()}
    _, schemas = msgspec.json.schema_components([*types, ErrorEnvelope], ref_template=_SCHEMAS)
    for shape in shapes:
        if shape.body is not None:
            _complete(schemas[shape.body.__name__], shape)
    described["components"] = {"schemas": dict(sorted(schemas.items()))}
    for path in described["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)  # FastAPI's own; a path is any string here
    return described


def _complete(schema: dict[str, Any], shape: Shape) -> None:
    """No field that is not known, and of those that are refused only what asks for nothing."""
    for name, neutral in shape.refused.items():
        schema["properties"][name] = {"enum": [None, *neutral], "description": "not served"}
    for name, item in shape.items.items():
        found = schema["properties"][name]
        for array in (one for one in found.get("anyOf", [found]) if one["type"] == "array"):
            array["items"] = _reference(item)
    schema["additionalProperties"] = False


def _json(shape: type[msgspec.Struct]) -> dict[str, Any]:
    return {"application/json": {"schema": _reference(shape)}}


def _reference(shape: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": _SCHEMAS.format(name=shape.__name__)}
