"""What the leader of a worker and its followers say to each other; torch-free."""

from typing import Literal

from proto.cards import ProcessIdentity, RankAgent
from proto.codec import Decoder
from proto.errors import Fault
from proto.layout import PoolLayout
from proto.struct import WireStruct
from services.logs import LogSettings
from workers.engine.torch_settings import TorchSettings
from workers.model.chunk import Chunk
from workers.ranks.grid import Grid
from workers.transfer.staging import StagingSize


class RankMessage(WireStruct, frozen=True, tag=True):
    """One of the messages below."""


# From the leader.


class Load(RankMessage, frozen=True):
    """The first: who the follower is, and which model it is to hold its share of.

    The ranks find each other by the file at `rendezvous`. `settings` are for this rank: its own device, its
    own threads. Units: no collective of theirs takes longer than `stall_s`.
    """

    rank: int
    grid: Grid
    worker: str
    folder: str
    rendezvous: str
    settings: TorchSettings
    niceness: int
    stall_s: float
    logs: LogSettings


class Allocate(RankMessage, frozen=True):
    """Every rank has its weights: now each makes its pool."""

    num_blocks: int


class Step(RankMessage, frozen=True):
    """What all compute next. `wants_layers`: the leader is to hear of layers as they are done."""

    chunks: list[Chunk]
    wants_layers: bool


class OpenTransfers(RankMessage, frozen=True):
    """The follower's pool is to be reachable, by an agent of this name.

    `staging`: what they see in its place, if anything. Units: `stall_s` seconds after which a transfer counts
    as stuck.
    """

    agent: str
    parameters: dict[str, str]
    stall_s: float
    staging: StagingSize | None = None


class Move(RankMessage, frozen=True):
    """Post a transfer, which might start when this was sent. `copies`: their table, row by row."""

    number: int
    operation: Literal["WRITE", "READ"]
    agent: str
    copies: bytes
    remote_device: str


class Carry(RankMessage, frozen=True):
    """Copy between the pool and its staging. `copies`: their table, row by row."""

    number: int
    copies: bytes


class Notify(RankMessage, frozen=True):
    """Send a notice to a peer."""

    number: int
    agent: str
    notice: bytes


class AddPeer(RankMessage, frozen=True):
    number: int
    agent: str
    metadata: bytes


class RemovePeer(RankMessage, frozen=True):
    agent: str


class Expect(RankMessage, frozen=True):
    """So many grants and pins are out: peers may be at work on this rank's pool."""

    num_leaves: int


# From a follower.


class Hello(RankMessage, frozen=True):
    """The first: whose end proves that this rank writes no more."""

    process: ProcessIdentity


class Beat(RankMessage, frozen=True):
    """The follower is there, whatever it computes."""


class Loaded(RankMessage, frozen=True):
    """The weights are in place. Units: bytes of a block of its pool; all and free ones of its device."""

    device: str
    block_bytes: int
    total_bytes: int
    free_bytes: int


class Ready(RankMessage, frozen=True):
    """The pool is there: once the ranks have met, the first steps may come."""

    pool: PoolLayout


class LayersDone(RankMessage, frozen=True):
    """The KV of the step for these layers, as the model numbers them, is in this rank's pool."""

    first_layer: int
    num_layers: int


class TransfersOpen(RankMessage, frozen=True):
    """How peers reach the pool."""

    agent: RankAgent


class TransfersFailed(RankMessage, frozen=True):
    """The pool cannot be reached by peers."""

    fault: Fault


class Settled(RankMessage, frozen=True):
    """What the leader gave this number is over. Units: `moved_s` seconds that it took, if a transfer."""

    number: int
    fault: Fault | None = None
    moved_s: float = 0.0


class NotPosted(RankMessage, frozen=True):
    """Nothing of the transfer of this number is on its way, nor will be."""

    number: int


class Stuck(RankMessage, frozen=True):
    """The transfer of this number takes longer than any should: `limit_s` seconds."""

    number: int
    limit_s: float


class TransfersAil(RankMessage, frozen=True):
    """How this rank's transfers are now: see `Transfers`."""

    fault: str
    ailment: str


class Failed(RankMessage, frozen=True):
    """The last: why this rank cannot go on."""

    fault: Fault


AnyMessage = (
    Load
    | Allocate
    | Step
    | OpenTransfers
    | Move
    | Carry
    | Notify
    | AddPeer
    | RemovePeer
    | Expect
    | Hello
    | Beat
    | Loaded
    | Ready
    | LayersDone
    | TransfersOpen
    | TransfersFailed
    | Settled
    | NotPosted
    | Stuck
    | TransfersAil
    | Failed
)
MESSAGES = Decoder[AnyMessage](AnyMessage)
