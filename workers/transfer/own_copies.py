"""Copies within one rank: between its pool and its staging."""

import ctypes
from typing import Protocol

from workers.transfer.copy_plan import Copies


class OwnCopies(Protocol):
    """May be called from several threads at once."""

    def copy(self, copies: Copies) -> None:
        """Returns once all of it is done.

        Raises:
            InternalFault: the device fails.
        """
        ...


class HostCopies:
    """The `OwnCopies` of a pool in the host's memory."""

    def copy(self, copies: Copies) -> None:
        for source, target, num_bytes in copies:
            ctypes.memmove(target, source, num_bytes)
