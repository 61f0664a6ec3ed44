"""The functions that an answer may call, and whether it must."""

from typing import Any

import msgspec


class ToolFunction(msgspec.Struct, frozen=True):
    """`parameters` is a JSON schema, of an object. `is_strict`: its arguments must be of that schema."""

    name: str
    parameters: dict[str, Any]
    is_strict: bool = False


class Tools(msgspec.Struct, frozen=True):
    """`functions` are those that may be called, at least one."""

    functions: tuple[ToolFunction, ...]
    must_call: bool = False
    is_parallel: bool = True

    @property
    def names(self) -> frozenset[str]:
        return frozenset(function.name for function in self.functions)
