"""By which way a worker's pools are reached: the one that its settings name, or that its device can do."""

import logging

from proto.cards import Strategy
from proto.errors import InternalFault, InvalidSetting
from proto.layout import PoolLayout
from proto.names import new_id
from workers.transfer.nixl_agent import NixlAgent
from workers.transfer.staging import NUM_BUFFERS, StagingSize
from workers.transfer.transfer_settings import TransferSettings, backend_parameters

log = logging.getLogger(__name__)


def choose_strategy(settings: TransferSettings, pool: PoolLayout) -> Strategy:
    """`pool` is that of one rank; the others are on devices of the same kind.

    Where only NIXL can tell it is tried: an agent is opened for a moment.

    Raises:
        InvalidSetting: NIXL's backend has no such parameter.
    """
    if settings.strategy != "auto":
        return settings.strategy
    if pool.device == "cpu":
        return "direct"
    probe = NixlAgent(f"probe.{new_id()}", pool, backend_parameters(settings))
    try:
        probe.open()
    except InternalFault as error:
        extra = {"device": pool.device, "reason": str(error)}
        log.warning("NIXL cannot reach the pool: KV goes through memory of the host", extra=extra)
        return "host"
    finally:
        probe.close()
    return "direct"


def staging_size(settings: TransferSettings, pools: tuple[PoolLayout, ...]) -> StagingSize:
    """Of a worker with these pools, one of each rank; never more blocks than they have.

    Raises:
        InvalidSetting: there is no room for one block.
    """
    block_bytes = sum(pool.block_bytes for pool in pools)
    num_blocks = min(settings.staging_mib * 2**20 // block_bytes, *(pool.num_blocks for pool in pools))
    if not num_blocks:
        reason = f"{settings.staging_mib} MiB hold no block, which is of {block_bytes} bytes"
        raise InvalidSetting(setting="transfer.staging_mib", reason=reason)
    return StagingSize(num_blocks, settings.bounce_mib * 2**20 // NUM_BUFFERS)
