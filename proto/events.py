"""What a prefix cache says of its changes: numbered events, and the snapshot that replaces lost ones."""

from collections.abc import Sequence

from proto.blockhash import HASH_BYTES
from proto.errors import InvalidRequest
from proto.struct import WireStruct


class BlocksStored(WireStruct, frozen=True, tag="stored"):
    """Blocks that the cache now holds; `hashes` are 16 bytes each."""

    hashes: bytes
    group: int = 0
    tier: str = "pool"


class BlocksRemoved(WireStruct, frozen=True, tag="removed"):
    """Blocks that the cache no longer holds; `hashes` are 16 bytes each."""

    hashes: bytes
    group: int = 0
    tier: str = "pool"


KvEvent = BlocksStored | BlocksRemoved


class KvEvents(WireStruct, frozen=True):
    """Consecutive events of one incarnation; the first has the number `first`, counting from 1."""

    worker: str
    incarnation: str
    first: int
    events: list[KvEvent]

    @property
    def last(self) -> int:
        """The number of the last event here."""
        return self.first + len(self.events) - 1


class SnapshotPage(WireStruct, frozen=True):
    """A page of all that the cache held after event `number`; `is_last` closes the snapshot."""

    worker: str
    incarnation: str
    number: int
    page: int
    is_last: bool
    hashes: bytes


def pack_hashes(hashes: Sequence[bytes]) -> bytes:
    return b"".join(hashes)


def unpack_hashes(data: bytes) -> list[bytes]:
    """The inverse of `pack_hashes`.

    Raises:
        InvalidRequest: the length is no multiple of a hash's.
    """
    if len(data) % HASH_BYTES:
        raise InvalidRequest(field="hashes", reason=f"{len(data)} bytes are no whole number of block hashes")
    return [data[start : start + HASH_BYTES] for start in range(0, len(data), HASH_BYTES)]
