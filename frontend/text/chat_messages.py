"""OpenAI's messages in the form that chat templates expect."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import Enum, auto
from typing import Literal

import msgspec

from proto.errors import InvalidRequest

Message = Mapping[str, object]


class TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of several that a content is made of."""

    type: Literal["text"]
    text: str


class ChatEnd(Enum):
    """Where the prompt of a chat ends: where the assistant begins to speak, within its last message, which
    goes on, or after that."""

    OPEN = auto()
    WITHIN = auto()
    CLOSED = auto()


class Chat(msgspec.Struct, frozen=True):
    """What a client sends for a template, as decoded from JSON.

    `messages` and `tools` are OpenAI's; `options` is what it tells this model's template besides, such as
    `enable_thinking`.
    """

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, object]] = ()
    options: Mapping[str, object] = {}
    end: ChatEnd = ChatEnd.OPEN


def plain_message(message: Message, field: str) -> dict[str, object]:
    """`message` with its content as one string, and the arguments of its tool calls as values.

    Text parts are joined by a line break. Keys that are null are left out: templates ask whether a key is
    there.

    Args:
        message: as decoded from JSON.
        field: how the client would name it, for the error: `messages[3]`.

    Raises:
        InvalidRequest: a part is no text, or a call none of a function.
    """
    plain = {key: value for key, value in message.items() if value is not None}
    if isinstance(plain.get("content"), list):
        plain["content"] = _join_parts(plain["content"], f"{field}.content")
    if "tool_calls" in plain:
        plain["tool_calls"] = _plain_calls(plain["tool_calls"], f"{field}.tool_calls")
    return plain


def _join_parts(parts: object, field: str) -> str:
    try:
        return "\n".join(part.text for part in msgspec.convert(parts, list[TextPart]))
    except msgspec.ValidationError as error:
        raise InvalidRequest(field=field, reason=f"only parts of text are taken: {error}") from error


def _plain_calls(calls: object, field: str) -> list[object]:
    if not isinstance(calls, list):
        raise InvalidRequest(field=field, reason="not a list")
    return [_plain_call(call, f"{field}[{place}]") for place, call in enumerate(calls)]


def _plain_call(call: object, field: str) -> object:
    """The client sends arguments as a string of JSON; templates write them with `tojson` themselves.

    What a model wrote and is no JSON stays as it is: its client sends back what it was told.
    """
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise InvalidRequest(field=field, reason="not a call of a function")
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return call
    with suppress(msgspec.DecodeError, UnicodeEncodeError):
        decoded = msgspec.json.decode(arguments or "{}", type=dict[str, object])
        return {**call, "function": {**function, "arguments": decoded}}
    return call
