"""Memory of the host in place of a pool: staging blocks that peers see, bounce buffers for what is posted.

```
              peers write and read these         what is posted here goes through these
 staging  [ block 0 ][ block 1 ] … [ block W-1 ] [ buffer 0 ][ buffer 1 ] … [ buffer 7 ]
              ▲                                      ▲
              └── a copy, once all has landed;       └── a copy right before a write,
                  before a pin is told of                or right after a read
 pool     [ block 0 ][ block 1 ][ block 2 ][ block 3 ] …
```

A staging block is laid out as a block of the pool, so whoever plans a transfer need not know which it is.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

from proto.layout import PoolLayout
from proto.struct import WireStruct
from workers.huge_region import address_of, map_region

NUM_BUFFERS: Final = 8


class StagingSize(WireStruct, frozen=True):
    """What each rank of a worker sets up: `num_blocks` for peers, the same in each rank.

    Units: `buffer_bytes` of each bounce buffer, which has room for a block at least.
    """

    num_blocks: int
    buffer_bytes: int


@dataclass(frozen=True, slots=True)
class Staging:
    """`blocks` is what peers see, `region` all of it, as one pool to be registered. `buffers` are addresses.

    The memory lives as long as this object.
    """

    pool: PoolLayout
    blocks: PoolLayout
    region: PoolLayout
    buffers: tuple[int, ...]
    buffer_bytes: int
    _held: memoryview


def map_staging(pool: PoolLayout, size: StagingSize) -> Staging:
    """Staging for `pool`. What is never touched takes no memory; of a CPU it is in huge pages, as pools are.

    Raises:
        OSError: the system has no room for it.
    """
    buffer_blocks = max(1, size.buffer_bytes // pool.block_bytes)
    num_blocks = size.num_blocks + NUM_BUFFERS * buffer_blocks
    held = map_region(num_blocks * pool.block_bytes)
    region = msgspec.structs.replace(pool, address=address_of(held), num_blocks=num_blocks, device="cpu")
    buffer_bytes = buffer_blocks * pool.block_bytes
    first = region.address + size.num_blocks * pool.block_bytes
    return Staging(
        pool=pool,
        blocks=msgspec.structs.replace(region, num_blocks=size.num_blocks),
        region=region,
        buffers=tuple(first + number * buffer_bytes for number in range(NUM_BUFFERS)),
        buffer_bytes=buffer_bytes,
        _held=held,
    )
