"""What an answer must be, as data: each worker that serves the request makes its own grammar of it."""

from typing import Literal

from proto.errors import InvalidRequest
from proto.struct import WireStruct

MAX_CONSTRAINT_BYTES = 64 * 1024

ConstraintKind = Literal["json_object", "json_schema", "regex", "choice", "grammar"]


class Constraint(WireStruct, frozen=True):
    """The whole text of an answer is one that `text` describes.

    `text` is, by `kind`: nothing; a JSON schema; a regular expression; a JSON list of strings, of which the
    answer is one; a grammar in the notation of Lark or of GBNF. `field` is where the client said so: whoever
    refuses it names that.
    """

    kind: ConstraintKind
    text: str = ""
    field: str = "constraint"


def check_size(constraint: Constraint) -> None:
    """
    Raises:
        InvalidRequest: longer than anybody takes, or no Unicode.
    """
    try:
        num_bytes = len(constraint.text.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequest(field=constraint.field, reason="not valid Unicode text") from error
    if num_bytes > MAX_CONSTRAINT_BYTES:
        reason = f"{num_bytes} bytes; at most {MAX_CONSTRAINT_BYTES} are taken"
        raise InvalidRequest(field=constraint.field, reason=reason)
