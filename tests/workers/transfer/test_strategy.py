"""Which way KV takes to a pool, and how much memory of the host that takes."""

import msgspec
import pytest

from proto.errors import InvalidSetting
from tests.workers.transfer.pools import MemoryPool
from workers.transfer.staging import NUM_BUFFERS, map_staging
from workers.transfer.strategy import choose_strategy, staging_size
from workers.transfer.transfer_settings import TransferSettings

POOL = MemoryPool().layout
NO_GPU = msgspec.structs.replace(POOL, device="cuda:0")
"""Memory of the host that claims to be a GPU's, as a GPU's seems to a NIXL that knows none."""


def test_what_is_said_is_done_and_a_cpu_needs_no_detour() -> None:
    assert choose_strategy(TransferSettings(strategy="host"), POOL) == "host"
    assert choose_strategy(TransferSettings(strategy="direct"), NO_GPU) == "direct"
    assert choose_strategy(TransferSettings(), POOL) == "direct"


def test_a_device_that_nixl_cannot_reach_is_reached_by_way_of_the_host(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert choose_strategy(TransferSettings(), NO_GPU) == "host"
    assert "memory of the host" in caplog.text


def test_staging_is_shared_by_the_ranks_and_no_larger_than_their_pools() -> None:
    large = msgspec.structs.replace(POOL, num_blocks=10**6)
    size = staging_size(TransferSettings(staging_mib=1, bounce_mib=8), (large, large))
    assert size.num_blocks == 2**20 // (2 * POOL.block_bytes)
    assert size.buffer_bytes == 2**20
    assert staging_size(TransferSettings(), (POOL,)).num_blocks == POOL.num_blocks
    with pytest.raises(InvalidSetting):
        staging_size(TransferSettings(staging_mib=1), (msgspec.structs.replace(POOL, head_dim=2**20),))


def test_staging_blocks_and_buffers_lie_side_by_side_and_none_overlaps() -> None:
    staging = map_staging(POOL, staging_size(TransferSettings(bounce_mib=1), (POOL,)))
    assert staging.blocks.address == staging.region.address
    ends = [staging.blocks.address + staging.blocks.pool_bytes]
    for buffer in staging.buffers:
        assert buffer == ends[-1]
        ends.append(buffer + staging.buffer_bytes)
    assert len(staging.buffers) == NUM_BUFFERS
    assert ends[-1] == staging.region.address + staging.region.pool_bytes
