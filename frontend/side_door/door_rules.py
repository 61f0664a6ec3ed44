"""What bounds the requests that come over NATS."""

import msgspec


class DoorRules(msgspec.Struct, frozen=True):
    """Units: bytes of a request, requests at once, seconds of silence before a sign of life, and questions of
    what the service is that may wait."""

    body_bytes: int
    max_open: int
    beat_s: float
    max_askers: int
