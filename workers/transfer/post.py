"""One post: the transfers that wait for one peer, moved together, each told of its own end."""

from typing import Final

from proto.errors import KvmeshError
from workers.transfer.copy_plan import Copies, join_copies
from workers.transfer.transfers import OnMoved, Transfer

MAX_POST_BYTES: Final = 64 * 2**20
"""Nobody else's transfer waits longer than these take, a dozen milliseconds over shared memory; and only when
so much waits, which is more than a second's compute of a CPU."""


class Post:
    """Transfers of one operation with one peer. Belongs to the thread that posts."""

    def __init__(self, first: Transfer) -> None:
        self.operation = first.operation
        self.agent = first.agent
        self.remote_device = first.remote_device
        self.transfers = [first]
        self.num_bytes = first.num_bytes

    @property
    def copies(self) -> Copies:
        return join_copies([transfer.copies for transfer in self.transfers])

    def try_join(self, transfer: Transfer) -> bool:
        """Whether `transfer` leaves with these."""
        is_alike = (transfer.operation, transfer.agent, transfer.remote_device) == (
            self.operation,
            self.agent,
            self.remote_device,
        )
        if not is_alike or self.num_bytes + transfer.num_bytes > MAX_POST_BYTES:
            return False
        self.transfers.append(transfer)
        self.num_bytes += transfer.num_bytes
        return True

    def drop_unstartable(self) -> None:
        """Right before the post: those whose holder must not write any more are refused."""
        transfers, self.transfers = self.transfers, []
        for transfer in transfers:
            if transfer.may_start():
                self.transfers.append(transfer)
            else:
                self.num_bytes -= transfer.num_bytes
                transfer.on_refused()

    def tell_moved(self, on_moved: OnMoved, took_s: float) -> None:
        """All are done; each took its share of the time."""
        num_bytes = max(1, self.num_bytes)
        for transfer in self.transfers:
            on_moved(transfer, took_s * transfer.num_bytes / num_bytes)

    def tell_stalled(self, limit_s: float) -> None:
        for transfer in self.transfers:
            transfer.on_stalled(limit_s)

    def end(self, fault: KvmeshError | None) -> None:
        for transfer in self.transfers:
            transfer.on_done(fault)
