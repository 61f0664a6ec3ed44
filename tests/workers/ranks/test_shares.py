"""Ranks compute what one process does, for every family, and each holds its part of what that one holds."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.tiny_model import write_tiny
from tests.workers.engine.tiny_torch import TINY_TORCH
from tests.workers.ranks.rank_trial import Found, Trial, compute_ranked, compute_whole
from workers.model.config import read_config
from workers.model.int8_projection import has_dot_products
from workers.ranks.grid import Grid

BFLOAT16 = msgspec.structs.replace(TINY_TORCH, dtype="bfloat16")
INT8 = msgspec.structs.replace(TINY_TORCH, weights="int8")
NEAR = 1e-4
ROUGH = 0.1
"""In fewer bits, the share of all that may differ: partial sums are rounded before they are added up."""


def with_biases(folder: Path) -> Path:
    """On every projection, as a config may ask for."""
    write_tiny(folder, layers=3, hidden=32, fields={"attention_bias": True, "mlp_bias": True})
    path = folder / "model.safetensors"
    tensors = load_file(path)
    generator = torch.Generator().manual_seed(5)
    for name, weight in list(tensors.items()):
        if "_proj" in name:
            tensors[name.replace("weight", "bias")] = torch.randn(len(weight), generator=generator)
    save_file(tensors, path)
    return folder


CHECKPOINTS: dict[str, Callable[[Path], Path]] = {
    "llama": lambda folder: write_tiny(folder, hidden=32, layers=5),
    "biases": with_biases,
    "qwen2": lambda folder: write_tiny(folder, "qwen2", tied=True, shards=3, hidden=32, vocab=515),
    "qwen3": lambda folder: write_tiny(folder, "qwen3", hidden=32, tied=True),
    "mistral": lambda folder: write_tiny(
        folder, "mistral", hidden=32, layers=3, fields={"sliding_window": 9, "intermediate_size": 65}
    ),
}


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trial]:
    """In float32 those of every family, with their differences; the first one in fewer bits too."""
    made = {name: make(tmp_path_factory.mktemp(name)) for name, make in CHECKPOINTS.items()}
    found = {name: Trial(folder, TINY_TORCH) for name, folder in made.items()}
    found["bfloat16"] = Trial(made["llama"], BFLOAT16)
    if has_dot_products():
        found["int8"] = Trial(made["llama"], INT8)
    return found


@pytest.fixture(scope="module")
def wholes(trials: dict[str, Trial]) -> dict[str, Found]:
    return {name: compute_whole(trial) for name, trial in trials.items()}


@pytest.mark.parametrize("grid", [Grid(2, 1), Grid(1, 2), Grid(2, 2)], ids=["TP2", "PP2", "TP2xPP2"])
def test_logits_and_pools_are_those_of_one_process(
    grid: Grid, trials: dict[str, Trial], wholes: dict[str, Found], tmp_path: Path
) -> None:
    for name, ranks in compute_ranked(grid, trials, tmp_path).items():
        _assert_alike(grid, trials[name], ranks, wholes[name])


def test_more_ranks_than_kv_heads_hold_some_of_them_twice(tmp_path: Path) -> None:
    grid = Grid(4, 1)
    trial = Trial(write_tiny(tmp_path / "tiny", kv_heads=2, hidden=32, layers=2), TINY_TORCH)
    ranks = compute_ranked(grid, {"twice": trial}, tmp_path)["twice"]
    assert torch.equal(ranks[0].pool_NIGLKPD[:, :, :, 0], ranks[1].pool_NIGLKPD[:, :, :, 0])
    _assert_alike(grid, trial, ranks, compute_whole(trial))


def _assert_alike(grid: Grid, trial: Trial, ranks: list[Found], whole: Found) -> None:
    assert [len(logits_BV) for logits_BV in ranks[0].logits] == [4, 0, 2, 4]
    for ours_BV, theirs_BV in zip(ranks[0].logits, whole.logits, strict=True):
        _assert_near(trial, ours_BV, theirs_BV)
        if trial.settings == TINY_TORCH:
            assert torch.equal(ours_BV.argmax(-1), theirs_BV.argmax(-1))
    for rank, found in enumerate(ranks):
        share = grid.share_of(rank, read_config(trial.folder))
        layers = slice(share.layers.first, share.layers.end)
        heads = slice(share.kv_heads.first, share.kv_heads.end)
        _assert_near(trial, found.pool_NIGLKPD, whole.pool_NIGLKPD[:, :, heads, layers])


def _assert_near(trial: Trial, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    if trial.settings == TINY_TORCH:
        torch.testing.assert_close(ours, theirs, rtol=0, atol=NEAR)
    else:
        assert ours.shape == theirs.shape
        assert (ours.float() - theirs.float()).norm() <= ROUGH * theirs.float().norm()
