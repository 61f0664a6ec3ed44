"""A request's way back: frames from workers to the frontend that asked.

A frame says which tokens lie at which offset of the answer, so a reader can tell a gap, a repetition and an
older attempt from what it awaits, whatever the bus lost or doubled.
"""

from proto.codec import Decoder
from proto.errors import Fault
from proto.requests import FinishReason, PrefillPlace
from proto.struct import PackedStruct, WireStruct


class End(PackedStruct, frozen=True):
    """The end of an attempt: a finish reason, or a fault; never both.

    Units: `cached_tokens` prompt tokens served from a prefix cache; `prefill_s` from acceptance to the first
    token.
    """

    finish: FinishReason | None
    fault: Fault | None = None
    cached_tokens: int = 0
    prefill: PrefillPlace = "local"
    prefill_worker: str = ""
    prefill_s: float = 0.0


class Prefilled(PackedStruct, frozen=True):
    """How the prompt of an attempt came by its KV: `End` says the same, but a reader may end an answer first.

    `prompt_logprobs` has a record (see `proto.logprobs`) for each token of the prompt but the first, if
    they were asked for. Units: `cached_tokens` prompt tokens served from a prefix cache.
    """

    cached_tokens: int = 0
    place: PrefillPlace = "local"
    worker: str = ""
    prompt_logprobs: bytes = b""


class Frame(PackedStruct, frozen=True):
    """A piece of a stream. The first frame of an attempt has no tokens: it says that the worker has accepted.

    `offset` counts generated tokens of the request before this frame's first; `tokens` are packed, and
    `logprobs` has a record (see `proto.logprobs`) for each of them, if they were asked for. `prefilled` comes
    with the first token of an attempt. `has_taken_over`: the worker that it was asked to relieve has stopped,
    and all that one had is here.
    """

    request: str
    attempt: int
    offset: int
    tokens: bytes = b""
    end: End | None = None
    prefilled: Prefilled | None = None
    has_taken_over: bool = False
    logprobs: bytes = b""


class StepFrames(WireStruct, frozen=True, tag="frames"):
    """All frames of one engine step for one client."""

    worker: str
    incarnation: str
    frames: list[Frame]


class LiveOffset(PackedStruct, frozen=True):
    """How far an attempt is; `has_ended` tells a reader who lacks the end to ask for a resend."""

    request: str
    attempt: int
    offset: int
    has_ended: bool = False


class LiveOffsets(WireStruct, frozen=True, tag="offsets"):
    """Each second: every attempt that this worker serves this client, or that is not acknowledged yet."""

    worker: str
    incarnation: str
    offsets: list[LiveOffset]


class PleaseMove(WireStruct, frozen=True, tag="please_move"):
    """This worker is to let these attempts (request, attempt) go: send successors to others, naming it as the
    source of their KV. Said again until they have gone; one that nobody takes ends here."""

    worker: str
    incarnation: str
    attempts: list[tuple[str, int]]


StreamMessage = StepFrames | LiveOffsets | PleaseMove
STREAM_MESSAGES = Decoder[StreamMessage](StreamMessage)
