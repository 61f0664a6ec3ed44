"""The id that a client gives its request, by which both ends know it in headers and logs."""

import re

from proto.names import new_id

REQUEST_ID_HEADER = "x-request-id"
_SAFE = re.compile(r"[\x21-\x7e]{1,128}")


def choose_request_id(given: str) -> str:
    """The client's, if it can stand in a header and a log; else one made here."""
    return given if _SAFE.fullmatch(given) else new_id()
