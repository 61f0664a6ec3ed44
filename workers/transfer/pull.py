"""The read of another worker's blocks under its pin."""

import asyncio
from collections.abc import Sequence

from proto.errors import PeerGone
from proto.layout import BlockPair, LayerRange, PoolLayout, plan_copies
from workers.transfer.outcome import Outcome
from workers.transfer.peers import Peer
from workers.transfer.transfers import Transfer, Transfers


async def pull_blocks(
    peer: Peer, theirs: Sequence[int], own: PoolLayout, ours: Sequence[int], transfers: Transfers
) -> None:
    """Read their blocks into ours, block by block in the order given.

    The caller holds a pin on theirs and asks after the return whether it held throughout.

    Cancel: once it is posted it ends all the same, since it writes into our blocks; the cancel comes after.

    Raises:
        TransferFault: the read failed; our blocks hold nothing of use.
    """
    pairs = [BlockPair(*pair) for pair in zip(theirs, ours, strict=True)]
    copies = plan_copies(peer.rank.pool, own, pairs, LayerRange(own.first_layer, own.num_layers))
    over = Outcome(asyncio.get_running_loop())
    transfers.submit(
        Transfer(
            "READ",
            peer.rank.agent,
            copies,
            peer.rank.pool.device,
            lambda: True,
            lambda: over.settle(PeerGone(peer=peer.card.worker, reason="transfers have ended")),
            over.settle,
        )
    )
    try:
        fault = await over.wait()
    except asyncio.CancelledError:
        await over.wait()
        raise
    if fault is not None:
        raise fault
