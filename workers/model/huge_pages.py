"""Tensors of a CPU in huge pages (see `workers.huge_region`)."""

import ctypes
import mmap

import torch

from workers.huge_region import PAGE_BYTES, map_region

_COLLAPSE = 25  # MADV_COLLAPSE, of Linux 6.1, which Python does not name
_system = ctypes.CDLL(None)


def map_pages(num_bytes: int) -> torch.Tensor:
    """As `map_region`, as bytes."""
    return torch.frombuffer(map_region(num_bytes), dtype=torch.uint8)


def move_packed(packed: torch.Tensor) -> torch.Tensor:
    """Asks for huge pages where a matrix lies that oneDNN has packed, in memory of its own choice.

    The system moves what is there; where it cannot, the matrix is read from small pages as before.
    """
    address = torch.ops.mkldnn.data_ptr(packed)
    first = address - address % PAGE_BYTES
    num_bytes = address + torch.ops.mkldnn._nbytes(packed) - first
    whole = ctypes.c_size_t(num_bytes + -num_bytes % PAGE_BYTES)
    for advice in (mmap.MADV_HUGEPAGE, _COLLAPSE):
        _system.madvise(ctypes.c_void_p(first), whole, advice)
    return packed
