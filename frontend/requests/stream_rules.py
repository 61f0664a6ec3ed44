"""The bounds of every wait of a request."""

import msgspec


class StreamRules(msgspec.Struct, frozen=True):
    """The bounds of every wait. Units: seconds, but for `max_lost`, in workers."""

    accept_s: float
    queued_s: float
    silence_s: float
    resend_s: float
    outage_s: float
    reroute_s: float
    max_lost: int
