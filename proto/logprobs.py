"""Log-probabilities of tokens on the wire: packed, one record for each token.

```
record   logprob  rank    (token  logprob) of the likeliest, the best first
         float32  uint32   uint32 float32                       little-endian
```
All records of one request are alike long, so a run of them is cut by the number of its tokens. They are of
the model's own distribution, the softmax of its raw logits: before temperature, penalties, biases and masks.
"""

import struct
from collections.abc import Sequence

import msgspec

from proto.errors import InvalidRequest

MAX_ALTERNATIVES = 20
MAX_PROMPT_BYTES = 512 * 1024
"""Records of one prompt: they travel in one message, beside others."""

_OWN = struct.Struct("<fI")
_PAIR = struct.Struct("<If")


class TokenLogprobs(msgspec.Struct, frozen=True):
    """What one token was worth: `rank` 1 is the likeliest. `best` are (token, logprob), that one first."""

    logprob: float
    rank: int
    best: list[tuple[int, float]] = []


def record_bytes(num_best: int) -> int:
    """The length of a record with so many alternatives."""
    return _OWN.size + num_best * _PAIR.size


def check_scores(num_best: int | None, num_prompt: int, field: str = "prompt_logprobs") -> None:
    """What the tokens of a prompt are worth travels in one message: whether it holds so many.

    Raises:
        InvalidRequest: it does not.
    """
    if num_best is not None and num_prompt * record_bytes(num_best) > MAX_PROMPT_BYTES:
        most = MAX_PROMPT_BYTES // record_bytes(num_best)
        reason = f"{num_prompt} tokens; with {num_best} alternatives those of {most} can be told"
        raise InvalidRequest(field=field, reason=reason)


def pack_logprobs(entries: Sequence[TokenLogprobs]) -> bytes:
    """All of `entries` with equally many alternatives, one after the other."""
    packed = bytearray()
    for entry in entries:
        packed += _OWN.pack(entry.logprob, entry.rank)
        for pair in entry.best:
            packed += _PAIR.pack(*pair)
    return bytes(packed)


def unpack_logprobs(record: bytes) -> TokenLogprobs:
    """One record.

    Raises:
        InvalidRequest: no length that a record can have.
    """
    if len(record) < _OWN.size or (len(record) - _OWN.size) % _PAIR.size:
        raise InvalidRequest(field="logprobs", reason=f"{len(record)} bytes are no record")
    logprob, rank = _OWN.unpack_from(record)
    return TokenLogprobs(logprob, rank, list(_PAIR.iter_unpack(record[_OWN.size :])))


def split_records(records: bytes, num_tokens: int) -> list[bytes]:
    """The record of each of `num_tokens` tokens; an empty one for each when there are none.

    Raises:
        InvalidRequest: they cannot be cut into so many.
    """
    if not records:
        return [b""] * num_tokens
    if not num_tokens or len(records) % num_tokens:
        raise InvalidRequest(field="logprobs", reason=f"{len(records)} bytes for {num_tokens} tokens")
    size = len(records) // num_tokens
    return [records[start : start + size] for start in range(0, len(records), size)]
