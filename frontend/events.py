"""The events of a stream: JSON framed as server-sent events, which end themselves and can be joined."""

EVENT_START = b"data: "
EVENT_END = b"\n\n"


def to_event(json: bytes) -> bytes:
    return EVENT_START + json + EVENT_END


def to_lines(events: bytes) -> bytes:
    """The same JSON, a line each: no line break stands in it, for JSON escapes those of its strings."""
    return events.removeprefix(EVENT_START).removesuffix(EVENT_END).replace(EVENT_END + EVENT_START, b"\n")
