"""What the bodies of both endpoints have in common, and how a fault of theirs is named by its field."""

import re
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from frontend.openai.constraints import ConstraintFields
from frontend.openai.fields import Refused, check_fields
from proto.errors import InvalidRequest
from proto.logprobs import MAX_ALTERNATIVES

MAX_STOPS = 16
MAX_CHOICES = 128
MAX_BIASES = 1024

ModelName = Annotated[str, Meta(min_length=1, max_length=256)]
StopString = Annotated[str, Meta(max_length=1024)]
TokenId = Annotated[int, Meta(ge=0, lt=2**32)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
NumTokens = Annotated[int, Meta(ge=1, lt=2**31)]
NumEach = Annotated[int, Meta(ge=1, le=MAX_CHOICES)]
NumBest = Annotated[int, Meta(ge=0, le=MAX_ALTERNATIVES)]
Name = Annotated[str, Meta(max_length=256)]
MetadataKey = Annotated[str, Meta(max_length=64)]
MetadataValue = Annotated[str, Meta(max_length=512)]
Metadata = Annotated[dict[MetadataKey, MetadataValue], Meta(max_length=16)]


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`continuous_usage_stats`, vLLM's: every event says how far the answer is."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class RequestBody(ConstraintFields, frozen=True, kw_only=True):
    """What both endpoints take. Null is the same as absent.

    What a client says of itself, its users and its prompts (`user` to `prompt_cache_retention`) asks for
    nothing here: nothing is stored, nobody is watched, and prompts find their caches by what they begin with.
    """

    model: ModelName
    n: NumEach | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    logit_bias: Annotated[dict[TokenId, Bias], Meta(max_length=MAX_BIASES)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=64)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    prompt_logprobs: NumBest | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    service_tier: Literal["auto", "default"] | None = None
    cache_salt: Annotated[str, Meta(max_length=256)] | None = None
    priority: Annotated[int, Meta(ge=-(2**31), lt=2**31)] | None = None
    worker_id: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    kvmesh: bool | None = None
    user: Name | None = None
    safety_identifier: Name | None = None
    metadata: Metadata | None = None
    prompt_cache_key: Name | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None


_B = TypeVar("_B", bound=msgspec.Struct)
_T = TypeVar("_T")
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_PLACE = re.compile(r" - at (?:`key` in )?`\$\.?(.*?)(?:\[\.\.\.\])?`$")
_MISSING = re.compile(r"missing required field `(\w+)`")


def read_body(body: bytes, decoder: msgspec.json.Decoder[_B], refused: Refused) -> _B:
    """Raises InvalidRequest."""
    given = decode_body(body, _FIELDS)
    check_fields(given, decoder.type.__struct_fields__, refused)
    return decode_body(body, decoder)


def decode_body(body: bytes, decoder: msgspec.json.Decoder[_T]) -> _T:
    """Raises InvalidRequest."""
    try:
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
