"""JetStream's own API as typed requests over the bus: streams, consumers, single messages.

The client's JetStream layer is not used: a fetch there may stall behind an orphan of its own (nats.py issue
986), and a read of an object with a missing chunk never ends. The API underneath is JSON over request/reply,
stable and documented, and here it has the deadlines and errors of `services.bus`.

Source: NATS ADR-1 (API), ADR-13 (pull), ADR-31 (direct get); the server's errors.json.
"""

from typing import Literal, TypeVar

import msgspec

from proto.errors import (
    DeadlineExceeded,
    Disconnected,
    InternalFault,
    InvalidSetting,
    NoResponder,
    Overloaded,
)
from services.bus import STATUS_HEADER, Bus, Delivery

API_TIMEOUT_S = 5.0
NS_PER_S = 1_000_000_000
SEQUENCE_HEADER = "Nats-Sequence"

NAME_IN_USE = 10058
WRONG_LAST_SEQUENCE = 10071
OVER_LIMIT = (10077, 10023, 10047)  # maximum messages or bytes; insufficient resources; storage exceeded

Storage = Literal["file", "memory"]


class ApiError(msgspec.Struct, frozen=True):
    code: int
    err_code: int = 0
    description: str = ""


class ApiReply(msgspec.Struct, frozen=True, kw_only=True):
    error: ApiError | None = None


class PubAck(ApiReply, frozen=True, kw_only=True):
    seq: int = 0
    duplicate: bool = False


class ConsumerInfo(ApiReply, frozen=True, kw_only=True):
    num_pending: int = 0
    num_ack_pending: int = 0


class StreamConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Units: `max_age` and `duplicate_window` nanoseconds, as the server wants them. -1 is no limit."""

    name: str
    subjects: list[str]
    retention: Literal["limits", "workqueue"]
    storage: Storage
    num_replicas: int
    max_age: int = 0
    max_msgs: int = -1
    max_bytes: int = -1
    duplicate_window: int = 0
    discard: Literal["new"] = "new"
    allow_direct: bool = False
    allow_rollup_hdrs: bool = False


class ConsumerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A durable pull consumer. Units: `ack_wait` nanoseconds."""

    durable_name: str
    filter_subject: str
    ack_wait: int
    max_deliver: int
    max_ack_pending: int
    max_waiting: int
    ack_policy: Literal["explicit"] = "explicit"
    deliver_policy: Literal["all"] = "all"


class _NewConsumer(msgspec.Struct, frozen=True):
    stream_name: str
    config: ConsumerConfig


class _Purge(msgspec.Struct, frozen=True):
    filter: str


class _NextBySubject(msgspec.Struct, frozen=True):
    seq: int
    next_by_subj: str


Reply = TypeVar("Reply", bound=ApiReply)


async def ask_api(
    bus: Bus, operation: str, body: msgspec.Struct | None, kind: type[Reply], timeout_s: float = API_TIMEOUT_S
) -> Reply:
    """One request to `$JS.API.{operation}`; a refusal is in the reply's `error`. Raises as `Bus.exchange`."""
    payload = b"" if body is None else msgspec.json.encode(body)
    return _decode(await bus.request(f"$JS.API.{operation}", payload, timeout_s), kind)


def _decode(payload: bytes, kind: type[Reply]) -> Reply:
    try:
        return msgspec.json.decode(payload, type=kind)
    except msgspec.DecodeError as error:
        raise InternalFault(reason=f"JetStream answered what is no {kind.__name__}: {error}") from error


async def check_available(bus: Bus, patience_s: float = API_TIMEOUT_S) -> None:
    """Returns when JetStream answers. One that is starting is waited for.

    Raises:
        InvalidSetting: the server has no JetStream, or not for this account.
        Disconnected: as `Bus.exchange`.
    """
    reason = await _find_refusal(bus, patience_s)
    if reason:
        raise InvalidSetting(setting="url", reason=f"the server at {bus.peer} has no JetStream: {reason}")


async def _find_refusal(bus: Bus, patience_s: float) -> str:
    try:
        reply = await ask_api(bus, "INFO", None, ApiReply, patience_s)
    except NoResponder:
        return "nobody answers its API"
    except DeadlineExceeded as error:
        return str(error)
    return reply.error.description if reply.error else ""


async def ensure_stream(bus: Bus, config: StreamConfig) -> None:
    """The stream exists and is configured so.

    Raises:
        InvalidSetting: no JetStream, or it cannot become so (its storage cannot change, for one).
        NoResponder, DeadlineExceeded, Disconnected: as `Bus.exchange`.
    """
    await check_available(bus)
    reply = await ask_api(bus, f"STREAM.CREATE.{config.name}", config, ApiReply)
    if reply.error is not None and reply.error.err_code == NAME_IN_USE:
        reply = await ask_api(bus, f"STREAM.UPDATE.{config.name}", config, ApiReply)
    if reply.error is not None:
        raise InvalidSetting(setting=f"stream {config.name}", reason=reply.error.description)


async def ensure_consumer(bus: Bus, stream: str, config: ConsumerConfig) -> None:
    """The consumer exists and is configured so. Raises as `ensure_stream`."""
    operation = f"CONSUMER.CREATE.{stream}.{config.durable_name}.{config.filter_subject}"
    reply = await ask_api(bus, operation, _NewConsumer(stream, config), ApiReply)
    if reply.error is not None:
        raise InvalidSetting(setting=f"consumer {config.durable_name}", reason=reply.error.description)


async def put_message(
    bus: Bus, subject: str, payload: bytes, headers: dict[str, str], timeout_s: float = API_TIMEOUT_S
) -> PubAck:
    """Stores a message; `error` in the result is only ever `WRONG_LAST_SEQUENCE`.

    Raises:
        Overloaded: the stream is full.
        NoResponder: no stream takes this subject.
        DeadlineExceeded, Disconnected, PayloadTooLarge: as `Bus.exchange`; it may have been stored.
    """
    ack = _decode(await bus.request(subject, payload, timeout_s, headers), PubAck)
    if ack.error is None or ack.error.err_code == WRONG_LAST_SEQUENCE:
        return ack
    if ack.error.err_code in OVER_LIMIT:
        raise Overloaded(reason=f"{subject}: {ack.error.description}", retry_after_s=1)
    raise InternalFault(reason=f"{subject} was refused: {ack.error.description}")


async def find_last(bus: Bus, stream: str, subject: str, timeout_s: float) -> Delivery | None:
    """The last message on `subject`, None if the stream has none or does not exist."""
    return await _direct_get(bus, f"{stream}.{subject}", b"", timeout_s)


async def find_next(bus: Bus, stream: str, subject: str, sequence: int, timeout_s: float) -> Delivery | None:
    """The first message on `subject` numbered `sequence` or later."""
    body = msgspec.json.encode(_NextBySubject(sequence, subject))
    return await _direct_get(bus, stream, body, timeout_s)


async def _direct_get(bus: Bus, address: str, body: bytes, timeout_s: float) -> Delivery | None:
    try:
        found = await bus.exchange(f"$JS.API.DIRECT.GET.{address}", body, timeout_s)
    except NoResponder:
        return None
    return None if STATUS_HEADER in found.headers else found


async def purge(bus: Bus, stream: str, subject: str) -> None:
    """Removes every message on `subject`, if it can: what stays is bounded by the stream."""
    try:
        await ask_api(bus, f"STREAM.PURGE.{stream}", _Purge(subject), ApiReply)
    except (NoResponder, DeadlineExceeded, Disconnected):
        return
