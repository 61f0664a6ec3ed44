"""Every message comes back from its bytes; unions refuse what they do not know; garbage is a refusal."""

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proto.codec import decode, encode
from proto.errors import InvalidRequest
from proto.requests import Accepted, Choice, Decision
from proto.struct import PackedStruct, WireStruct
from tests.proto.wire_kinds import KINDS, UNIONS, example_of, strategy_of

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
every_union = pytest.mark.parametrize("union", UNIONS)


@every_kind
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_message_comes_back_from_its_bytes(kind: type[msgspec.Struct], data: st.DataObject) -> None:
    message = data.draw(strategy_of(kind))
    assert decode(encode(message), kind) == message


@every_kind
def test_a_message_is_frozen(kind: type[msgspec.Struct]) -> None:
    message = example_of(kind)
    for name in kind.__struct_fields__:
        with pytest.raises(AttributeError):
            setattr(message, name, getattr(message, name))


@every_kind
def test_only_what_is_sent_at_every_step_travels_without_names(kind: type[msgspec.Struct]) -> None:
    assert issubclass(kind, PackedStruct) != issubclass(kind, WireStruct)
    assert kind.__struct_config__.array_like == issubclass(kind, PackedStruct)
    assert not kind.__struct_config__.forbid_unknown_fields


@every_union
def test_a_union_gives_back_each_of_its_messages(union: str) -> None:
    decoder, members = UNIONS[union]
    for kind in get_args(members):
        message = decoder.decode(encode(example_of(kind)))
        assert type(message) is kind
        assert message == example_of(kind)


@every_union
def test_a_union_refuses_every_message_that_is_not_its_own(union: str) -> None:
    decoder, members = UNIONS[union]
    tags = {kind.__struct_config__.tag for kind in get_args(members)}
    strangers = [kind for kind in KINDS if kind.__struct_config__.tag not in tags]
    for kind in strangers:
        with pytest.raises(InvalidRequest):
            decoder.decode(encode(example_of(kind)))


@every_union
@given(tag=st.text(max_size=12))
def test_a_union_refuses_an_unknown_tag(union: str, tag: str) -> None:
    decoder, members = UNIONS[union]
    known = {kind.__struct_config__.tag: kind for kind in get_args(members)}
    example = msgspec.to_builtins(example_of(get_args(members)[0]), builtin_types=(bytes,))
    payload = msgspec.msgpack.encode({**example, "type": f"not {tag}"})
    assert f"not {tag}" not in known
    with pytest.raises(InvalidRequest):
        decoder.decode(payload)


def test_no_two_messages_of_one_union_share_a_tag() -> None:
    for _, members in UNIONS.values():
        tags = [kind.__struct_config__.tag for kind in get_args(members)]
        assert len(set(tags)) == len(tags)
        assert None not in tags


@every_union
@given(payload=st.binary(max_size=200))
def test_garbage_for_a_union_is_an_invalid_request_and_nothing_else(union: str, payload: bytes) -> None:
    decoder, members = UNIONS[union]
    _is_message_or_refused(decoder.decode, payload, get_args(members))


@every_kind
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_damaged_message_is_an_invalid_request_or_another_message(
    kind: type[msgspec.Struct], data: st.DataObject
) -> None:
    payload = encode(example_of(kind))
    start = data.draw(st.integers(0, len(payload)))
    end = data.draw(st.integers(start, min(len(payload), start + 4)))
    damaged = payload[:start] + data.draw(st.binary(max_size=4)) + payload[end:]
    _is_message_or_refused(lambda raw: decode(raw, kind), damaged, (kind,))


def _is_message_or_refused(read: Any, payload: bytes, kinds: tuple[type, ...]) -> None:
    try:
        message = read(payload)
    except InvalidRequest:
        return
    assert type(message) in kinds


@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1x", b"\x81\x91"])
def test_bottomless_nesting_is_an_invalid_request(opening: bytes) -> None:
    for decoder, _ in UNIONS.values():
        with pytest.raises(InvalidRequest):
            decoder.decode(opening * 100_000)
    with pytest.raises(InvalidRequest):
        decode(b"\x82\xa4junk" + opening * 100_000, Accepted)


def test_a_promised_length_that_never_comes_is_an_invalid_request() -> None:
    for promise in (
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
    ):
        with pytest.raises(InvalidRequest):
            decode(promise, Accepted)


def test_a_refusal_names_the_message_and_what_is_wrong_with_it() -> None:
    payload = msgspec.msgpack.encode(
        {"decision": {"router": "r1"}, "request": "q1", "model": "m", "new_tokens": 0}
    )
    with pytest.raises(InvalidRequest) as refused:
        decode(payload, Choice)
    assert refused.value.values["field"] == "Choice"
    assert "number" in str(refused.value)


def test_whole_numbers_do_for_seconds() -> None:
    payload = msgspec.msgpack.encode(
        {"router": "r1", "number": 1, "worker": "w1", "epoch": 0, "prefix_tokens": 0, "cost_s": 2}
    )
    assert decode(payload, Decision).cost_s == 2.0
