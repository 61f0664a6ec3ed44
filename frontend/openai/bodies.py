"""The bodies of requests: decoded from JSON, and every fault of theirs named by its field."""

import re
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from frontend.openai.constraints import ConstraintFields
from frontend.openai.fields import CHAT_FIELDS, COMPLETION_FIELDS, FieldTable, check_fields
from proto.errors import InvalidRequest
from proto.logprobs import MAX_ALTERNATIVES

MAX_STOPS = 16
MAX_PROMPTS = 64
MAX_BIASES = 1024

StopString = Annotated[str, Meta(max_length=1024)]
TokenId = Annotated[int, Meta(ge=0, lt=2**32)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
NumBest = Annotated[int, Meta(ge=0, le=MAX_ALTERNATIVES)]


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool | None = False
    include_obfuscation: bool | None = False


class _Body(ConstraintFields, frozen=True, kw_only=True):
    """What both endpoints take. Null is the same as absent."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    max_tokens: Annotated[int, Meta(ge=1, lt=2**31)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    logit_bias: Annotated[dict[TokenId, Bias], Meta(max_length=MAX_BIASES)] | None = None
    seed: int | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=64)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    prompt_logprobs: NumBest | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: Annotated[str, Meta(max_length=256)] | None = None
    priority: Annotated[int, Meta(ge=-(2**31), lt=2**31)] | None = None
    worker_id: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    kvmesh: bool | None = None


class ChatBody(_Body, frozen=True, kw_only=True):
    """POST /v1/chat/completions. Messages are OpenAI's; a message's keys are checked in `plans`."""

    messages: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=4096)]
    max_completion_tokens: Annotated[int, Meta(ge=1, lt=2**31)] | None = None
    logprobs: bool | None = None
    top_logprobs: NumBest | None = None


class CompletionBody(_Body, frozen=True, kw_only=True):
    """POST /v1/completions. The prompt: a string, token ids, or a list of such; checked in `plans`."""

    prompt: str | list[Any]
    logprobs: NumBest | None = None


def read_chat(body: bytes) -> ChatBody:
    """Raises InvalidRequest."""
    return _read(body, _CHAT, CHAT_FIELDS)


def read_completion(body: bytes) -> CompletionBody:
    """Raises InvalidRequest."""
    return _read(body, _COMPLETION, COMPLETION_FIELDS)


_T = TypeVar("_T")
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_CHAT = msgspec.json.Decoder(ChatBody)
_COMPLETION = msgspec.json.Decoder(CompletionBody)
_PLACE = re.compile(r" - at (?:`key` in )?`\$\.?(.*?)(?:\[\.\.\.\])?`$")
_MISSING = re.compile(r"missing required field `(\w+)`")


def _read(body: bytes, decoder: msgspec.json.Decoder[_T], table: FieldTable) -> _T:
    try:
        check_fields(_FIELDS.decode(body), table)
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _name_field(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(field="body", reason=f"not JSON: {error}") from error


def _name_field(said: str) -> InvalidRequest:
    """msgspec says where: "Expected `int`, got `str` - at `$.max_tokens`"."""
    found = [_PLACE.search(said), _MISSING.search(said)]
    field = ".".join(part[1] for part in found if part is not None and part[1])
    return InvalidRequest(field=field or "body", reason=_PLACE.sub("", said))
