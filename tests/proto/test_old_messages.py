"""Two versions in one mesh understand each other: an older sender, a newer one, and bytes sent long ago."""

from typing import Any

import msgspec
import pytest

from proto.codec import decode, encode
from tests.proto.make_golden_messages import Golden, facts_of, golden_of_today, read_golden
from tests.proto.wire_kinds import KINDS, UNIONS, example_of

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
BY_NAME = {kind.__name__: kind for kind in KINDS}


@pytest.mark.parametrize("golden", read_golden(), ids=lambda golden: golden.kind)
def test_bytes_sent_long_ago_still_say_the_same(golden: Golden) -> None:
    message = decode(bytes.fromhex(golden.payload), BY_NAME[golden.kind])
    assert _lacks(facts_of(message), golden.facts) == []


@pytest.mark.parametrize("golden", read_golden(), ids=lambda golden: golden.kind)
def test_a_message_of_a_union_sent_long_ago_is_still_of_that_union(golden: Golden) -> None:
    kind = BY_NAME[golden.kind]
    homes = [decoder for decoder, members in UNIONS.values() if kind in members.__args__]
    assert [type(decoder.decode(bytes.fromhex(golden.payload))) for decoder in homes] == [kind] * len(homes)


def test_todays_bytes_of_every_message_are_kept() -> None:
    """When this fails: `python -m tests.proto.make_golden_messages`, and commit what it adds."""
    kept = {(golden.kind, golden.payload) for golden in read_golden()}
    assert [golden.kind for golden in golden_of_today() if (golden.kind, golden.payload) not in kept] == []


@every_kind
def test_an_example_has_every_field_off_its_default(kind: type[msgspec.Struct]) -> None:
    example, bare = example_of(kind), _as_an_older_sender_means(example_of(kind))
    for field in msgspec.structs.fields(kind):
        if not field.required:
            assert getattr(example, field.name) != getattr(bare, field.name)


@every_kind
def test_a_newer_senders_extra_fields_are_ignored(kind: type[msgspec.Struct]) -> None:
    example = example_of(kind)
    payload = msgspec.msgpack.encode(_newer_wire_form(example))
    assert payload != encode(example)
    assert decode(payload, kind) == example


@every_kind
def test_an_older_senders_missing_fields_take_their_defaults(kind: type[msgspec.Struct]) -> None:
    example = example_of(kind)
    assert decode(msgspec.msgpack.encode(_older_wire_form(example)), kind) == _as_an_older_sender_means(
        example
    )


def _lacks(now: Any, then: Any, path: str = "$") -> list[str]:
    """Where `now` says other than `then`; fields that did not exist then may say what they like."""
    if isinstance(then, dict) and isinstance(now, dict):
        return [found for key in then for found in _lacks(now.get(key), then[key], f"{path}.{key}")]
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        return [
            found for spot in range(len(then)) for found in _lacks(now[spot], then[spot], f"{path}[{spot}]")
        ]
    return [] if now == then else [path]


def _wire_form(message: msgspec.Struct, values: dict[str, Any], extra: dict[str, Any]) -> Any:
    """A message as msgpack will carry it, from the wire forms of its fields."""
    config = message.__struct_config__
    if config.array_like:
        return [*values.values(), *extra.values()]
    tag = {config.tag_field: config.tag} if config.tag_field else {}
    return {**tag, **values, **extra}


def _newer_wire_form(value: Any) -> Any:
    match value:
        case msgspec.Struct():
            values = {name: _newer_wire_form(getattr(value, name)) for name in value.__struct_fields__}
            return _wire_form(value, values, {"added_text": "new", "added_map": {"a": [1, None]}})
        case list() | tuple():
            return [_newer_wire_form(item) for item in value]
    return value


def _required(message: msgspec.Struct) -> list[str]:
    return [field.name for field in msgspec.structs.fields(type(message)) if field.required]


def _older_wire_form(value: Any) -> Any:
    match value:
        case msgspec.Struct():
            values = {name: _older_wire_form(getattr(value, name)) for name in _required(value)}
            return _wire_form(value, values, {})
        case list() | tuple():
            return [_older_wire_form(item) for item in value]
    return value


def _as_an_older_sender_means(value: Any) -> Any:
    match value:
        case msgspec.Struct():
            return type(value)(
                **{name: _as_an_older_sender_means(getattr(value, name)) for name in _required(value)}
            )
        case list():
            return [_as_an_older_sender_means(item) for item in value]
    return value
