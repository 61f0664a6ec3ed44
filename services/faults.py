"""Errors as OpenAI's envelope: a status, headers that say when to come back, and one JSON object."""

import msgspec

from proto.errors import (
    DeadlineExceeded,
    InvalidRequest,
    KvmeshError,
    Overloaded,
    PromptTooLong,
    UnknownModel,
)

MAX_SAID_CHARS = 1024
_MAX_PARAM_CHARS = 256
_RETRY_AFTER_S = 1
_KIND = "invalid_request_error"


class ErrorBody(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorEnvelope(msgspec.Struct, frozen=True):
    error: ErrorBody


def said_of(error: KvmeshError) -> str:
    """What a client is told: it may quote what the client sent, and that may be megabytes."""
    return _cut(str(error), MAX_SAID_CHARS)


def error_json(error: KvmeshError) -> bytes:
    """`{"error": {"message", "type", "param", "code"}}`."""
    return msgspec.json.encode(
        ErrorEnvelope(ErrorBody(said_of(error), _type(error), _param(error), error.code))
    )


def http_error_json(status: int, reason: str) -> bytes:
    """The envelope of an error that HTTP itself knows: no such path, no such method."""
    code = reason.lower().replace(" ", "_")
    return msgspec.json.encode(ErrorEnvelope(ErrorBody(f"{status} {reason}", _KIND, None, code)))


def retry_after_s(error: KvmeshError) -> int | None:
    """When another try may do better; None for an error that no waiting mends."""
    if isinstance(error, Overloaded):
        wait_s = error.values["retry_after_s"]
        return max(1, round(wait_s)) if isinstance(wait_s, int | float) else _RETRY_AFTER_S
    return _RETRY_AFTER_S if error.status in (429, 503) else None


def _type(error: KvmeshError) -> str:
    if error.status < 500:
        return "rate_limit_error" if error.status == 429 else _KIND
    if isinstance(error, DeadlineExceeded):
        return "timeout_error"
    return "service_unavailable_error" if error.status == 503 else "server_error"


def _param(error: KvmeshError) -> str | None:
    match error:
        case InvalidRequest() | PromptTooLong():
            return _cut(str(error.values["field"]), _MAX_PARAM_CHARS)
        case UnknownModel():
            return "model"
    return None


def _cut(text: str, num_chars: int) -> str:
    """Out of its middle, for a sentence says its reason at its end."""
    if len(text) <= num_chars:
        return text
    half = num_chars // 2 - 3
    return f"{text[:half]} ... {text[-half:]}"
