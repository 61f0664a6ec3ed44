"""What is asked of a worker on its control subject, and its answers.

Leave to write is a grant, leave to read is a pin:

```
 holder                         owner
   │ ── AskGrant(job) ───────────► │  blocks are set aside
   │ ◄────────────────── Granted ─ │  … and belong to the holder's writes until one of:
   │ ══ writes, Landing ═════════► │    landed
   │ ── Release(grant) ──────────► │    given up
   │ ◄── AskHolding(grant) ─────── │    "not holding": given up
   │          (dead)               │    proof that the holder's process is gone

 reader                         owner
   │ ── Pin(hashes) ─────────────► │  blocks are kept from eviction and reuse
   │ ◄─────────────────── Pinned ─ │
   │ ◄══ reads ═════════════════   │
   │ ── Unpin(pin) ──────────────► │
   │ ◄─────── Unpinned(was_held) ─ │  false: throw away what was read
```
"""

from typing import Literal

from proto.codec import Decoder
from proto.events import SnapshotPage
from proto.hand_over import Drain, HandBack, PinSequence, SequencePinned, TakenOver, TakeOver, Undrain
from proto.jobs import PrefillJob
from proto.requests import GenerateRequest, Refused
from proto.roles import AskRole, RoleProgress, SwitchRole, TakeBackRole
from proto.streams import Frame
from proto.struct import WireStruct

MAX_EXPLAINED = 1024

Verdict = Literal["chosen", "eligible", "full", "left out"]


class Cancel(WireStruct, frozen=True, tag="cancel"):
    """End an attempt, and every earlier one of its request. Remembered when it comes before the request."""

    request: str
    attempt: int


class Acknowledge(WireStruct, frozen=True, tag="acknowledge"):
    """The client has the ends of these attempts; the worker may forget their tokens."""

    ends: list[tuple[str, int]]


class Resend(WireStruct, frozen=True, tag="resend"):
    """Send the tokens of an attempt again, from an offset. The answer: `Resent`, or a refusal."""

    request: str
    attempt: int
    offset: int


class Resent(WireStruct, frozen=True, tag="resent"):
    frame: Frame


class TakeJob(WireStruct, frozen=True, tag="take_job"):
    """Decode -> prefill: take this job now, or refuse it. `epoch` is that in which the asked one prefills, as
    its reports say; 0: whichever it is."""

    job: PrefillJob
    epoch: int = 0


class JobTaken(WireStruct, frozen=True, tag="job_taken"):
    """Prefill -> decode: yours is the job of this number among all that I took, as my reports count them."""

    number: int


class CancelJob(WireStruct, frozen=True, tag="cancel_job"):
    """Owner -> holder: stop, write nothing more, and release the grant."""

    job: str


class AskGrant(WireStruct, frozen=True, tag="ask_grant"):
    """Holder -> owner: which blocks may I write this job's KV into? Asked twice, answered alike."""

    job: str
    holder: str
    holder_incarnation: str


class Granted(WireStruct, frozen=True, tag="granted"):
    """Leave to write tokens `start` to `end` (not included) of the job's prompt into `blocks`.

    `start` is a multiple of the block size: what lies before it is in the owner's prefix cache, to be pulled
    under a pin by a holder that lacks it. `blocks[0]` takes the token at `start`.
    """

    grant: str
    job: str
    start: int
    end: int
    blocks: list[int]


class Release(WireStruct, frozen=True, tag="release"):
    """Holder -> owner: this grant will never be written under again. `Done` for unknown ones too."""

    grant: str


class GiveUp(WireStruct, frozen=True, tag="give_up"):
    """Holder -> owner: I took this job and cannot do it, and hold no grant for it."""

    job: str
    reason: str


class AskHolding(WireStruct, frozen=True, tag="ask_holding"):
    """Owner -> holder: which of these grants do you hold? One that is not held now never will be again."""

    grants: list[str]


class Holding(WireStruct, frozen=True, tag="holding"):
    """Of the grants asked about, those this incarnation holds. Another incarnation's word proves nothing."""

    incarnation: str
    grants: list[str]


class Pin(WireStruct, frozen=True, tag="pin"):
    """Reader -> owner: keep the blocks of the longest prefix of `hashes` (16 bytes each) that you have.

    Units: `ttl_s` seconds until the pin ends by itself.
    """

    reader: str
    hashes: bytes
    ttl_s: float


class Pinned(WireStruct, frozen=True, tag="pinned"):
    """`blocks[i]` holds the KV of `hashes[i]`; empty when nothing was found, and then there is no pin."""

    pin: str
    blocks: list[int]


class Unpin(WireStruct, frozen=True, tag="unpin"):
    pin: str


class Unpinned(WireStruct, frozen=True, tag="unpinned"):
    """Whether the pin still held, so that what was read under it is whole."""

    was_held: bool


class TakeSnapshot(WireStruct, frozen=True, tag="take_snapshot"):
    """Router -> worker: the page of a snapshot of the prefix cache; page 0 takes a new one.

    Later pages name the `number` that page 0 stated.
    """

    page: int = 0
    number: int = -1


class Snapshot(WireStruct, frozen=True, tag="snapshot"):
    page: SnapshotPage


class AskHoldings(WireStruct, frozen=True, tag="ask_holdings"):
    """Operator -> worker: every grant, pin and quarantined block there is."""


class Holdings(WireStruct, frozen=True, tag="holdings"):
    """Whose blocks are whose. `held` are the grants of other workers' blocks that may still be written here.

    Units: blocks; `age_s` seconds since each began. As in a report: total = free + active + granted +
    quarantined, and `cached_blocks` of the free ones hold reusable KV. Pinned blocks are active.
    """

    granted: list["BlockHolding"]
    quarantined: list["BlockHolding"]
    pinned: list["BlockHolding"]
    free_blocks: int
    total_blocks: int
    active_blocks: int = 0
    cached_blocks: int = 0
    held: list[str] = []


class BlockHolding(WireStruct, frozen=True):
    name: str
    holder: str
    num_blocks: int
    age_s: float


class ExplainRoute(WireStruct, frozen=True, tag="explain_route"):
    """Operator -> router: where would this request go, and why? It goes nowhere.

    Units: `limit` workers in the answer, the cheapest ones.
    """

    request: GenerateRequest
    limit: int = MAX_EXPLAINED


class WorkerTerms(WireStruct, frozen=True):
    """What one ready worker would cost; `verdict` says whether it may be chosen.

    Units: seconds; `load` sequences there and promised, over seats; `hit_tokens` of the prompt held there.
    """

    worker: str
    verdict: Verdict
    total_s: float
    wait_s: float
    seat_s: float
    slowdown_s: float
    work_s: float
    shortage_s: float
    is_remote: bool
    hit_tokens: int
    load: float


class Explained(WireStruct, frozen=True, tag="explained"):
    """Which worker it would be, none while every eligible one is full; and the terms of the cheapest.

    Units: `num_workers` ready ones, `num_tokens` of the prompt.
    """

    router: str
    policy: str
    worker: str
    num_workers: int
    num_tokens: int
    workers: list[WorkerTerms]


class AskAdmitted(WireStruct, frozen=True, tag="ask_admitted"):
    """Worker -> router: would you send work to this life of me?"""

    worker: str
    incarnation: str


class Admitted(WireStruct, frozen=True, tag="admitted"):
    is_admitted: bool


class SetSlowness(WireStruct, frozen=True, tag="set_slowness"):
    """Operator -> simulated worker: all takes `slowness` times as long as stated, from the next step on.

    A worker that computes refuses it.
    """

    slowness: float


class Done(WireStruct, frozen=True, tag="done"):
    pass


ControlRequest = (
    Cancel
    | Acknowledge
    | Resend
    | TakeJob
    | CancelJob
    | AskGrant
    | Release
    | GiveUp
    | AskHolding
    | Pin
    | Unpin
    | TakeSnapshot
    | AskHoldings
    | ExplainRoute
    | AskAdmitted
    | SetSlowness
    | PinSequence
    | TakeOver
    | HandBack
    | Drain
    | Undrain
    | SwitchRole
    | TakeBackRole
    | AskRole
)
CONTROL_REQUESTS = Decoder[ControlRequest](ControlRequest)

ControlReply = (
    Done
    | Refused
    | Resent
    | JobTaken
    | Granted
    | Holding
    | Pinned
    | Unpinned
    | Snapshot
    | Holdings
    | Explained
    | Admitted
    | SequencePinned
    | TakenOver
    | RoleProgress
)
CONTROL_REPLIES = Decoder[ControlReply](ControlReply)
