"""A prefill that another worker shall compute: the job, and the notice of its landing."""

from proto.struct import WireStruct


class PrefillJob(WireStruct, frozen=True):
    """Compute the KV of `prompt` (packed tokens: all but the prompt's last) for `owner`.

    The job names no memory: whoever takes it asks `owner` for a grant, which does. `cached_tokens` hints at
    how much the owner holds already; `trace` is the owner's W3C trace context, empty while traces are off.

    Units: `deadline_s` seconds left when this was sent.
    """

    job: str
    request: str
    model: str
    owner: str
    owner_incarnation: str
    prompt: bytes
    deadline_s: float
    cached_tokens: int = 0
    salt: str = ""
    priority: int = 0
    trace: dict[str, str] = {}


class Landing(WireStruct, frozen=True):
    """The last write of a grant has landed: sent with it over the KV plane.

    Units: `num_bytes` written under the grant by the holder's rank.
    """

    grant: str
    num_bytes: int
    rank: int = 0
