"""A thread for copies that somebody awaits: what has landed in staging, what a reader shall find there."""

from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from proto.errors import InternalFault, KvmeshError
from workers.transfer.copy_plan import Copies
from workers.transfer.own_copies import OwnCopies
from workers.transfer.transfers import OnDone


class Carrier:
    """For the life of its context `carry` may be called from any thread; `on_done` comes in the carrier's."""

    def __init__(self, copies: OwnCopies) -> None:
        self._copies = copies
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="staging")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown()

    def carry(self, copies: Copies, on_done: OnDone) -> None:
        """One after the other, in the order of the calls."""
        try:
            self._thread.submit(self._carry, copies, on_done)
        except RuntimeError:  # it is shut down
            on_done(InternalFault(reason="staging has ended"))

    def _carry(self, copies: Copies, on_done: OnDone) -> None:
        fault: KvmeshError | None = None
        try:
            self._copies.copy(copies)
        except KvmeshError as error:
            fault = error
        on_done(fault)
