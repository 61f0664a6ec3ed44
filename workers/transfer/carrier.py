"""A thread for copies that somebody awaits: what has landed in staging, what a reader shall find there."""

import time
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from proto.errors import InternalFault, KvmeshError
from workers.transfer.copy_plan import Copies
from workers.transfer.own_copies import OwnCopies
from workers.transfer.transfers import OnDone


class Carrier:
    """For the life of its context `carry` may be called from any thread; `on_done` comes in the carrier's.

    A copy that takes longer than `stall_s` has hung with its device: nothing can call it back, and the end of
    the context does not wait for it.
    """

    def __init__(self, copies: OwnCopies, stall_s: float) -> None:
        self._copies = copies
        self._stall_s = stall_s
        self._began_s: float | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="staging")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(wait=not self.ailment)

    @property
    def ailment(self) -> str:
        """That the copy which is being made has hung; empty while all is well."""
        began_s = self._began_s
        age_s = 0.0 if began_s is None else time.monotonic() - began_s
        return f"a copy to or from staging has not ended for {age_s:.0f} s" if age_s > self._stall_s else ""

    def carry(self, copies: Copies, on_done: OnDone) -> None:
        """One after the other, in the order of the calls."""
        try:
            self._thread.submit(self._carry, copies, on_done)
        except RuntimeError:  # it is shut down
            on_done(InternalFault(reason="staging has ended"))

    def _carry(self, copies: Copies, on_done: OnDone) -> None:
        fault: KvmeshError | None = None
        self._began_s = time.monotonic()
        try:
            self._copies.copy(copies)
        except KvmeshError as error:
            fault = error
        finally:
            self._began_s = None
        on_done(fault)
