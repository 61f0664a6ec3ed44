"""How a rank's pool is opened to peers: as it is, or behind staging."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from proto.errors import InvalidSetting
from proto.layout import PoolLayout
from workers.transfer.carrier import Carrier
from workers.transfer.kv_transport import KvTransport
from workers.transfer.nixl_transport import NixlTransport
from workers.transfer.own_copies import HostCopies, OwnCopies
from workers.transfer.own_memory import HiddenPool
from workers.transfer.staged_transport import StagedTransport
from workers.transfer.staging import Staging, StagingSize, map_staging


@dataclass(frozen=True, slots=True)
class OpenedRank:
    """What moves its KV; and its pool, if that is hidden behind staging."""

    transport: KvTransport
    hidden: HiddenPool | None = None


@contextmanager
def open_rank(
    agent: str,
    pool: PoolLayout,
    parameters: Mapping[str, str],
    size: StagingSize | None,
    stall_s: float = math.inf,
) -> Iterator[OpenedRank]:
    """The transport is for who drives it to open. Args: `size` of its staging; None: peers reach the pool.

    Units: a copy between the pool and its staging counts as hung after `stall_s`.

    Raises:
        InvalidSetting: there is no memory for staging.
        InternalFault: the device does not take that memory.
    """
    if size is None:
        yield OpenedRank(NixlTransport(agent, pool, parameters))
        return
    try:
        staging = map_staging(pool, size)
    except OSError as error:
        raise InvalidSetting(setting="transfer.staging_mib", reason=str(error)) from error
    copies = _copies(staging)
    transport = StagedTransport(NixlTransport(agent, staging.region, parameters), staging, copies)
    with Carrier(copies, stall_s) as carrier:
        yield OpenedRank(transport, HiddenPool(pool, carrier.carry, lambda: carrier.ailment))


def _copies(staging: Staging) -> OwnCopies:
    if staging.pool.device == "cpu":
        return HostCopies()
    # Only here: a worker on a CPU may be one that computes nothing, and starts without torch.
    from workers.transfer.device_copies import DeviceCopies

    return DeviceCopies(staging.pool, staging.region)
