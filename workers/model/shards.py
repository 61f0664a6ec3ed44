"""The safetensors files of a model folder: headers read and checked, tensors copied to a device.

Nothing here unpickles: a folder without safetensors is refused.
"""

from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from safetensors import SafetensorError, safe_open

from proto.errors import InvalidSetting

HEADER_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # the limit that the format itself sets


class _TensorEntry(msgspec.Struct):
    """One tensor in a safetensors header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class _Index(msgspec.Struct):
    """model.safetensors.index.json: which shard holds which tensor."""

    weight_map: dict[str, str]


class Piece(NamedTuple):
    """A tensor by its name, or the named rows and columns of it."""

    name: str
    rows: slice = slice(None)
    columns: slice = slice(None)

    def cut(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the piece of a tensor of this shape."""
        cuts = (self.rows, self.columns)
        return tuple(len(range(*cut.indices(size))) for cut, size in zip(cuts, shape, strict=False))


class Shards:
    """The shards of one folder, and the device that their tensors go to."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        self._folder = folder
        self._device = device
        self._shard_of: dict[str, Path] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}

    def check(self, expected: dict[str, tuple[int, ...]]) -> None:
        """Reads all headers; what they hold must be what the config says."""
        for shard in find_shards(self._folder):
            for name, entry in _read_header(shard).items():
                self._shard_of[name] = shard
                self._shapes[name] = entry.shape
        missing = sorted(expected.keys() - self._shapes.keys())
        unknown = sorted(
            name for name in self._shapes.keys() - expected.keys() if not _is_redundant(name, expected)
        )
        misshapen = [name for name, shape in expected.items() if self._shapes.get(name, shape) != shape]
        for kind, names in (("missing", missing), ("unknown", unknown), ("of another shape", misshapen)):
            if names:
                raise _refusal(self._folder, f"{len(names)} tensors are {kind}, {names[0]} among them")

    def read_fused(self, pieces: list[Piece], dtype: torch.dtype) -> torch.Tensor:
        """The pieces one under another; each is copied once, from the mapped file to its rows."""
        shapes = [piece.cut(self._shapes[piece.name]) for piece in pieces]
        rows = [shape[0] for shape in shapes]
        fused = torch.empty((sum(rows), *shapes[0][1:]), dtype=dtype, device=self._device)
        for piece, part in zip(pieces, fused.split_with_sizes(rows), strict=True):
            self._read_into(part, piece)
        return fused

    def _read_into(self, part: torch.Tensor, piece: Piece) -> None:
        shard = self._shard_of[piece.name]
        try:
            with safe_open(shard, framework="pt", device="cpu") as file:
                part.copy_(file.get_tensor(piece.name)[(piece.rows, piece.columns)[: part.ndim]])
        except SafetensorError as error:
            raise _refusal(shard, str(error)) from error


def _is_redundant(name: str, expected: dict[str, tuple[int, ...]]) -> bool:
    """Old exports store the rotary frequencies, and some store a tied head twice."""
    return name.endswith("rotary_emb.inv_freq") or (name == "lm_head.weight" and name not in expected)


def find_shards(folder: Path) -> list[Path]:
    index_path = folder / "model.safetensors.index.json"
    if not index_path.is_file():
        return [folder / "model.safetensors"]
    try:
        names = set(msgspec.json.decode(index_path.read_bytes(), type=_Index).weight_map.values())
    except msgspec.MsgspecError as error:
        raise _refusal(folder, f"{index_path.name}: {error}") from error
    if any(Path(name).name != name for name in names):
        raise _refusal(folder, f"{index_path.name} names a shard outside the folder")
    return [folder / name for name in sorted(names)]


def read_header_bytes(shard: Path) -> bytes:
    try:
        with shard.open("rb") as file:
            num_bytes = int.from_bytes(file.read(HEADER_LENGTH_BYTES), "little")
            if num_bytes > _MAX_HEADER_BYTES:
                raise _refusal(shard, "this is no safetensors file")
            return file.read(num_bytes)
    except OSError as error:
        raise _refusal(shard, f"cannot be read: {error.strerror}") from error


def _read_header(shard: Path) -> dict[str, _TensorEntry]:
    try:
        entries = msgspec.json.decode(read_header_bytes(shard), type=dict[str, msgspec.Raw])
        entries.pop("__metadata__", None)
        return {name: msgspec.json.decode(raw, type=_TensorEntry) for name, raw in entries.items()}
    except msgspec.MsgspecError as error:
        raise _refusal(shard, f"this is no safetensors file: {error}") from error


def _refusal(path: Path, reason: str) -> InvalidSetting:
    return InvalidSetting(setting="model", reason=f"{path}: {reason}")
