"""How a running sequence moves from one decode worker to another, and who may be told to let go.

```
 source                       frontend                     taker
   │ ── PleaseMove ────────────► │                            │
   │                             │ ── route: the successor ─► │  accepts; tokens of the old attempt go on
   │ ◄─ PinSequence(first) ────────────────────────────────── │
   │ ── SequencePinned ─────────────────────────────────────► │  reads the bulk while the source decodes
   │ ◄─ TakeOver(first) ───────────────────────────────────── │
   │ ── TakenOver: all tokens, the last blocks ─────────────► │  the sequence is frozen at the source
   │                             │ ◄── it has taken over ──── │  reads them, and goes on
   │ ◄──────────────── Cancel ── │                            │
```

The frontend decides: until the taker's word or tokens come, the old attempt counts, and a source whose
frozen sequence nobody cancels thaws it. Both draw the same tokens, so nothing is lost or repeated whoever
goes on.
"""

from proto.roles import DrainMode
from proto.streams import Prefilled
from proto.struct import WireStruct


class PinSequence(WireStruct, frozen=True, tag="pin_sequence"):
    """Taker -> source: keep the blocks of an attempt's sequence from number `first` on that are computed.

    Units: `ttl_s` seconds until the pin ends by itself.
    """

    request: str
    attempt: int
    reader: str
    first: int
    ttl_s: float


class SequencePinned(WireStruct, frozen=True, tag="sequence_pinned"):
    """`blocks[i]` is block `first + i` of the sequence; none: no pin. Ended by `Unpin`."""

    pin: str
    blocks: list[int]


class TakeOver(WireStruct, frozen=True, tag="take_over"):
    """Taker -> source: stop, and say all. Asked twice, answered alike.

    Units: `offset` counts the generated tokens that the taker has; the rest as in `PinSequence`.
    """

    request: str
    attempt: int
    reader: str
    offset: int
    first: int
    ttl_s: float


class TakenOver(WireStruct, frozen=True, tag="taken_over"):
    """The sequence is frozen here until it is cancelled, handed back, or nobody has asked for a while.

    `tokens` are the generated ones from the asked offset on, packed, `logprobs` their records, if they were
    asked for; the KV of the sequence's first `num_computed` tokens is computed. Blocks as in
    `SequencePinned`, the last maybe begun only.
    """

    pin: str
    blocks: list[int]
    tokens: bytes
    num_computed: int
    prefilled: Prefilled
    logprobs: bytes = b""


class HandBack(WireStruct, frozen=True, tag="hand_back"):
    """Taker -> source: go on with it; nobody does here."""

    request: str
    attempt: int


class Drain(WireStruct, frozen=True, tag="drain"):
    """Operator -> worker: take no new work, and let go of what runs. The answer comes once its card says so.

    It stays draining, alive and of no use, until `Undrain`. Refused by the last ready decode worker of a
    model, unless `is_forced`. Units: `limit_s` seconds after which nobody is asked to take any more; what is
    left ends where it is.
    """

    mode: DrainMode
    limit_s: float
    is_forced: bool = False


class Undrain(WireStruct, frozen=True, tag="undrain"):
    """Operator -> worker: take work again."""
