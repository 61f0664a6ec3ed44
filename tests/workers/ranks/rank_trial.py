"""Ranks as processes that compute the same steps of many checkpoints, and what one process makes of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file, save_file

from tests.workers.forked import ForkedProcess
from workers.engine.torch_loading import load_share
from workers.engine.torch_settings import TorchSettings
from workers.model.chunk import Chunk
from workers.model.config import read_config
from workers.model.decoder import Decoder
from workers.model.share import whole_of
from workers.ranks.exchange import open_exchange
from workers.ranks.grid import Grid
from workers.ranks.rank_loading import load_rank, make_stage

NUM_BLOCKS = 12
LIMIT_S = 90.0
CPU = torch.device("cpu")


class Trial(NamedTuple):
    """A checkpoint, and how it is computed."""

    folder: Path
    settings: TorchSettings


class Found(NamedTuple):
    """The wanted logits of each step, and the pool after the last."""

    logits: list[torch.Tensor]
    pool_NIGLKPD: torch.Tensor


def _tokens(num_tokens: int, seed: int) -> list[int]:
    found: list[int] = torch.randint(
        3, 512, (num_tokens,), generator=torch.Generator().manual_seed(seed)
    ).tolist()
    return found


FIRST, SECOND, THIRD = [7, 2, 9], [4, 11], [0, 5, 1]
STEPS = [
    [Chunk(_tokens(19, 1), 0, FIRST, 1), Chunk(_tokens(9, 2), 0, SECOND, 3)],
    [Chunk(_tokens(11, 3), 0, THIRD, 0)],
    [
        Chunk(_tokens(1, 4), 19, FIRST, 1),
        Chunk(_tokens(6, 5), 11, THIRD, 0),
        Chunk(_tokens(1, 6), 9, SECOND, 1),
    ],
    [Chunk(_tokens(1, 7), 20, FIRST, 1), Chunk(_tokens(3, 8), 17, THIRD, 3)],
]
"""Prompts, one of them in chunks, steps of which nobody wants logits, single tokens and drafts."""


def compute_whole(trial: Trial) -> Found:
    """In this process, alone."""
    config = read_config(trial.folder)
    loaded = load_share(trial.folder, config, whole_of(config), trial.settings)
    pool_NIGLKPD = loaded.allocate(NUM_BLOCKS)
    decoder = loaded.page(Decoder(loaded.config, loaded.weights), pool_NIGLKPD)
    return Found([decoder.compute(step, None) for step in STEPS], pool_NIGLKPD)


def compute_ranked(grid: Grid, trials: Mapping[str, Trial], folder: Path) -> dict[str, list[Found]]:
    """By each rank, in its process: what it makes of each trial."""
    processes = [
        ForkedProcess(f"rank {rank}", _run_rank, grid, rank, dict(trials), folder)
        for rank in range(grid.num_ranks)
    ]
    try:
        codes = [process.wait(LIMIT_S) for process in processes]
    finally:
        for process in processes:
            process.close()
    assert codes == [0] * grid.num_ranks
    return {name: [_read(folder, name, rank) for rank in range(grid.num_ranks)] for name in trials}


def _run_rank(grid: Grid, rank: int, trials: dict[str, Trial], folder: Path) -> None:
    with open_exchange(grid, rank, folder / "rendezvous", CPU, LIMIT_S) as exchange:
        for name, trial in trials.items():
            loaded = load_rank(trial.folder, grid, rank, trial.settings)
            pool_NIGLKPD = loaded.allocate(NUM_BLOCKS)
            decoder = loaded.page(make_stage(loaded, grid, exchange), pool_NIGLKPD)
            logits = {str(number): decoder.compute(step, None).clone() for number, step in enumerate(STEPS)}
            save_file({"pool": pool_NIGLKPD.clone(), **logits}, folder / f"{name}-{rank}")


def _read(folder: Path, name: str, rank: int) -> Found:
    tensors = load_file(folder / f"{name}-{rank}")
    return Found([tensors[str(number)] for number in range(len(STEPS))], tensors["pool"])
