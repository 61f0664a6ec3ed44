"""What a request's state asks of the mesh; the hub carries it out."""

import msgspec

from proto.requests import KvSource
from proto.streams import Frame, LiveOffset


class Route(msgspec.Struct, frozen=True):
    """Send an attempt to the routers, beginning at `offset`, never to a worker in `exclude`.

    `source` hands the request over to it.
    """

    attempt: int
    offset: int
    exclude: tuple[str, ...]
    source: KvSource | None = None


class AskResend(msgspec.Struct, frozen=True):
    """Ask `worker` for the attempt's tokens from `offset` on."""

    worker: str
    attempt: int
    offset: int


class CancelAttempt(msgspec.Struct, frozen=True):
    """Tell `worker` to end this attempt and earlier ones."""

    worker: str
    attempt: int


class CancelQueued(msgspec.Struct, frozen=True):
    """Tell `router` to drop the attempt from its queue."""

    router: str
    attempt: int


class AcknowledgeEnd(msgspec.Struct, frozen=True):
    """Tell `worker` that the attempt's end has arrived."""

    worker: str
    attempt: int


Action = Route | AskResend | CancelAttempt | CancelQueued | AcknowledgeEnd
Actions = tuple[Action, ...]


def answer_stray_frame(worker: str, frame: Frame) -> Actions:
    """What a frame that nobody awaits calls for.

    An end is acknowledged, an acceptance cancelled; the tokens between are not worth a message each, since
    the live offsets of the same attempt come within a second.
    """
    if frame.end is not None:
        return (AcknowledgeEnd(worker, frame.attempt),)
    return () if frame.tokens else (CancelAttempt(worker, frame.attempt),)


def answer_stray_offset(worker: str, live: LiveOffset) -> Actions:
    """What a live offset that nobody awaits calls for: the end's acknowledgement was lost, or the cancel."""
    if live.has_ended:
        return (AcknowledgeEnd(worker, live.attempt),)
    return (CancelAttempt(worker, live.attempt),)
