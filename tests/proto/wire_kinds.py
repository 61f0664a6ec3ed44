"""Every message of `proto`, found by looking, with one example and a hypothesis strategy for each."""

import importlib
import itertools
import pkgutil
from collections.abc import Callable, Iterator
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
from hypothesis import strategies as st

import proto
from proto.codec import Decoder
from proto.control import CONTROL_REPLIES, CONTROL_REQUESTS, ControlReply, ControlRequest
from proto.reports import BEATS, AnyBeat
from proto.requests import GENERATE_REPLIES, ROUTE_REPLIES, GenerateReply, RouteReply
from proto.streams import STREAM_MESSAGES, StreamMessage
from proto.struct import PackedStruct, WireStruct

UNIONS: dict[str, tuple[Decoder[Any], Any]] = {
    "ControlRequest": (CONTROL_REQUESTS, ControlRequest),
    "ControlReply": (CONTROL_REPLIES, ControlReply),
    "AnyBeat": (BEATS, AnyBeat),
    "RouteReply": (ROUTE_REPLIES, RouteReply),
    "GenerateReply": (GENERATE_REPLIES, GenerateReply),
    "StreamMessage": (STREAM_MESSAGES, StreamMessage),
}


def _subclasses(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for child in kind.__subclasses__():
        yield child
        yield from _subclasses(child)


def _all_kinds() -> list[type[msgspec.Struct]]:
    for module in pkgutil.iter_modules(proto.__path__):
        importlib.import_module(f"proto.{module.name}")
    found = [*_subclasses(WireStruct), *_subclasses(PackedStruct)]
    return sorted(
        (kind for kind in found if kind.__module__.startswith("proto.")), key=lambda kind: kind.__name__
    )


KINDS = _all_kinds()


def example_of(kind: type[msgspec.Struct]) -> msgspec.Struct:
    """A message with every field off its default and every alternative inside its lists; always the same."""
    values = {field.name: _examples(field.type, field.name)[-1] for field in msgspec.structs.fields(kind)}
    return kind(**values)


_SCALARS: dict[Any, Callable[[str], object]] = {
    bool: lambda _: True,
    int: lambda name: 100 + len(name),
    float: lambda name: 0.5 + len(name),
    str: lambda name: f"some {name}",
    bytes: lambda name: name.encode().ljust(16, b"\xff")[:16],
}


def _examples(kind: Any, name: str) -> list[Any]:
    """One value for each alternative of a type."""
    if kind in _SCALARS:
        return [_SCALARS[kind](name)]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return [example_of(kind)]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return list(kind)
    args = get_args(kind)
    match get_origin(kind):
        case origin if origin in (Union, UnionType):
            return [value for arg in args if arg is not NoneType for value in _examples(arg, name)]
        case origin if origin is Literal:
            return list(args)
        case origin if origin is list:
            return [_examples(args[0], name)]
        case origin if origin is tuple:
            return [tuple(_examples(arg, name)[-1] for arg in args)]
        case origin if origin is dict:
            keys = itertools.count() if args[0] is int else (f"key {number}" for number in itertools.count())
            return [dict(zip(keys, _examples(args[1], name), strict=False))]
    raise TypeError(f"no example for {kind}")


_SCALAR_STRATEGIES: dict[Any, st.SearchStrategy[Any]] = {
    NoneType: st.none(),
    bool: st.booleans(),
    int: st.integers(-(1 << 63), (1 << 64) - 1),
    float: st.floats(allow_nan=False),
    str: st.text(max_size=20),
    bytes: st.binary(max_size=40),
}


def strategy_of(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a type."""
    if kind in _SCALAR_STRATEGIES:
        return _SCALAR_STRATEGIES[kind]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = msgspec.structs.fields(kind)
        return st.builds(kind, **{field.name: strategy_of(field.type) for field in fields})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from(kind)
    args = get_args(kind)
    match get_origin(kind):
        case origin if origin in (Union, UnionType):
            return st.one_of([strategy_of(arg) for arg in args])
        case origin if origin is Literal:
            return st.sampled_from(args)
        case origin if origin is list:
            return st.lists(strategy_of(args[0]), max_size=3)
        case origin if origin is tuple:
            return st.tuples(*[strategy_of(arg) for arg in args])
        case origin if origin is dict:
            return st.dictionaries(strategy_of(args[0]), strategy_of(args[1]), max_size=3)
    raise TypeError(f"no strategy for {kind}")
