"""Copies between a pool on a GPU and its staging, which is pinned for them, on a stream of their own."""

import ctypes

import torch

from proto.errors import InternalFault
from proto.layout import PoolLayout
from workers.transfer.copy_plan import Copies


class _DeviceBytes:
    """Memory that torch did not hand out here, as it takes such. Source: CUDA Array Interface, version 3."""

    def __init__(self, pool: PoolLayout) -> None:
        self.__cuda_array_interface__ = {
            "shape": (pool.pool_bytes,),
            "typestr": "|u1",
            "data": (pool.address, False),
            "version": 3,
        }


class DeviceCopies:
    """The `OwnCopies` of a pool on a GPU. `staging` is all of the memory beside it."""

    def __init__(self, pool: PoolLayout, staging: PoolLayout) -> None:
        self._pool = pool
        self._staging = staging
        self._device = torch.device(pool.device)
        try:
            runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            code = runtime.cudaHostRegister(staging.address, staging.pool_bytes, 0)
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            self._of_pool = torch.as_tensor(_DeviceBytes(pool), device=self._device)
        except RuntimeError as error:
            raise InternalFault(reason=f"staging cannot be set up: {error}") from error
        if int(code):
            raise InternalFault(reason=f"staging cannot be pinned: CUDA says {int(code)}")
        buffer = (ctypes.c_uint8 * staging.pool_bytes).from_address(staging.address)
        self._of_staging = torch.frombuffer(buffer, dtype=torch.uint8)

    def copy(self, copies: Copies) -> None:
        """See `OwnCopies`."""
        try:
            with torch.cuda.stream(self._stream):
                for source, target, num_bytes in copies:
                    self._at(target, num_bytes).copy_(self._at(source, num_bytes), non_blocking=True)
            self._stream.synchronize()
        except RuntimeError as error:
            raise InternalFault(reason=f"a copy to or from staging failed: {error}") from error

    def _at(self, address: int, num_bytes: int) -> torch.Tensor:
        first = address - self._staging.address
        if 0 <= first < self._staging.pool_bytes:
            return self._of_staging[first : first + num_bytes]
        first = address - self._pool.address
        return self._of_pool[first : first + num_bytes]
