"""Lines of JSON, cut to what one message may carry."""

from proto.errors import PayloadTooLarge


def cut_lines(lines: bytes, limit_bytes: int) -> list[bytes]:
    """`lines` in as few messages as hold them, cut between two lines.

    Raises:
        PayloadTooLarge: a single line is over the limit.
    """
    messages = []
    while len(lines) > limit_bytes:
        cut = lines.rfind(b"\n", 0, limit_bytes + 1)
        if cut < 0:
            num_bytes = len(lines.partition(b"\n")[0])
            raise PayloadTooLarge(num_bytes=num_bytes, limit_bytes=limit_bytes)
        messages.append(lines[:cut])
        lines = lines[cut + 1 :]
    return [*messages, lines]
