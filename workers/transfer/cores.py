"""The core a thread runs on, and keeping another thread off it.

The kernel wakes a thread on the core of the one that woke it, unless it finds an idle one at that moment, and
moves neither for milliseconds: two threads that copy then share a core for a whole post.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_libc = ctypes.PyDLL(None)  # a call takes less than to leave the interpreter for it


def current_core() -> int:
    """Of the calling thread, at this moment."""
    return int(_libc.sched_getcpu())


@contextmanager
def kept_off(core: int) -> Iterator[None]:
    """The calling thread runs on the other cores that it may use, if there are any, for the body."""
    allowed = os.sched_getaffinity(0)
    others = allowed - {core}
    if not others:
        yield
        return
    with suppress(OSError):  # those that may be used have just changed
        os.sched_setaffinity(0, others)
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, allowed)
