"""Memory of the host in huge pages, where the system has them.

What is streamed through at every step comes faster from there, and a copy to another process pins each page
anew, which at 4 KiB a page takes longer than the copying.
"""

import ctypes
import mmap
from contextlib import suppress
from typing import Final

PAGE_BYTES: Final = 2 * 2**20


def map_region(num_bytes: int) -> memoryview:
    """So many zeroed bytes, from the beginning of a page on. What is never touched takes no memory.

    Raises:
        OSError: the system has no room for it.
        OverflowError: no system has.
    """
    region = mmap.mmap(-1, num_bytes + PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):
        region.madvise(mmap.MADV_HUGEPAGE)
    start = -address_of(region) % PAGE_BYTES
    return memoryview(region)[start : start + num_bytes]


def address_of(memory: mmap.mmap | memoryview) -> int:
    """It lives as long as somebody holds `memory`."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
