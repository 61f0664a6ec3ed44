"""The fields that offer tools to an answer, and say whether it must call one."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from frontend.parsing.tools import ToolFunction, Tools
from proto.errors import InvalidRequest

MAX_TOOLS = 128
MAX_SCHEMA_BYTES = 64 * 1024
"""Of the schemas of all functions together; a grammar made of them has a bound of its own."""

# `$` alone would let a line break follow
FunctionName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}$(?!\n)")]
_encode = msgspec.json.Encoder().encode


class Function(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`parameters` is a JSON schema of an object; without it the function takes none.

    `strict`: the arguments are led to be of it, also where the model chooses itself whether to call.
    """

    name: FunctionName
    description: str | UnsetType | None = UNSET
    parameters: dict[str, Any] | UnsetType | None = UNSET
    strict: bool | UnsetType | None = UNSET


class FunctionTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["function"]
    function: Function


class ChosenFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: FunctionName


class ChosenTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer must be a call of that function."""

    type: Literal["function"]
    function: ChosenFunction


ToolChoice = Literal["none", "auto", "required"] | ChosenTool
ToolList = Annotated[list[FunctionTool], Meta(max_length=MAX_TOOLS)]


def read_tools(
    offered: Sequence[FunctionTool], choice: ToolChoice | None, *, is_parallel: bool
) -> Tools | None:
    """What the answer may call; None: nothing.

    Raises:
        InvalidRequest: two functions of one name, no schema of an object, or a choice of what is not there.
    """
    if not offered:
        if choice not in (None, "none", "auto"):
            raise InvalidRequest(field="tool_choice", reason="only with tools")
        return None
    functions = _read_functions(offered)
    if choice == "none":
        return None
    if isinstance(choice, ChosenTool):
        return Tools((_find(functions, choice.function.name),), must_call=True, is_parallel=False)
    return Tools(functions, must_call=choice == "required", is_parallel=is_parallel)


def shown_tools(offered: Sequence[FunctionTool]) -> list[dict[str, Any]]:
    """The tools as a chat template is shown them."""
    shown: list[dict[str, Any]] = msgspec.to_builtins(offered)
    return shown


def _find(functions: Sequence[ToolFunction], name: str) -> ToolFunction:
    for function in functions:
        if function.name == name:
            return function
    raise InvalidRequest(field="tool_choice", reason=f"{name!r} is not among the tools")


def _read_functions(offered: Sequence[FunctionTool]) -> tuple[ToolFunction, ...]:
    functions = tuple(
        _read_function(tool.function, f"tools[{place}].function") for place, tool in enumerate(offered)
    )
    seen: set[str] = set()
    for place, function in enumerate(functions):
        if function.name in seen:
            raise InvalidRequest(field=f"tools[{place}].function.name", reason="an earlier one has that name")
        seen.add(function.name)
    num_bytes = sum(len(_encode(function.parameters)) for function in functions)
    if num_bytes > MAX_SCHEMA_BYTES:
        reason = f"{num_bytes} bytes of parameters; at most {MAX_SCHEMA_BYTES} are taken"
        raise InvalidRequest(field="tools", reason=reason)
    return functions


def _read_function(function: Function, field: str) -> ToolFunction:
    if not function.parameters:
        nothing = {"type": "object", "properties": {}, "additionalProperties": False}
        return ToolFunction(function.name, nothing, function.strict is True)
    if function.parameters.get("type", "object") != "object":
        raise InvalidRequest(field=f"{field}.parameters.type", reason="object")
    return ToolFunction(function.name, function.parameters, function.strict is True)
