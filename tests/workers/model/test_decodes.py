"""Decodes find what a naive reading of their KV finds, where it lies and in a copy."""

import math

import pytest
import torch

from workers.model.attention import Decodes
from workers.model.batch import build_batch
from workers.model.chunk import Chunk
from workers.model.gathered_decodes import GatheredDecodes
from workers.model.pool_rows import PoolRows
from workers.model.reach import DecodeGroup, plan_reach
from workers.model.scattered_decodes import ScatteredDecodes

CPU = torch.device("cpu")
NUM_BLOCKS, NUM_LAYERS, KV_HEADS, HEADS, BLOCK_SIZE, HEAD_DIM = 40, 3, 2, 6, 8, 16


def place_of(pool_NIGLKPD: torch.Tensor, block: int, place: int) -> torch.Tensor:
    tile_size = pool_NIGLKPD.shape[-2]
    return pool_NIGLKPD[block, place // tile_size, :, :, :, place % tile_size]


def naive_answer(
    pool_NIGLKPD: torch.Tensor, layer: int, q_HD: torch.Tensor, chunk: Chunk, window: int | None
) -> torch.Tensor:
    first = 0 if window is None else max(0, chunk.end - window)
    places = [(chunk.blocks[place // BLOCK_SIZE], place % BLOCK_SIZE) for place in range(first, chunk.end)]
    kv_SGKD = torch.stack([place_of(pool_NIGLKPD, block, place)[:, layer] for block, place in places])
    answers = []
    for head, q_D in enumerate(q_HD):
        k_SD, v_SD = kv_SGKD[:, head // (HEADS // KV_HEADS)].unbind(1)
        answers.append((k_SD @ q_D / math.sqrt(HEAD_DIM)).softmax(dim=0) @ v_SD)
    return torch.stack(answers)


def decode_both_ways(group: DecodeGroup, q_BHD: torch.Tensor, pool: PoolRows) -> list[Decodes]:
    return [ScatteredDecodes(group, q_BHD, pool), GatheredDecodes(group, q_BHD, pool)]


@pytest.mark.parametrize("num_tiles", [1, 2])
@pytest.mark.parametrize("window", [None, 11])
@pytest.mark.parametrize("lengths", [(21,), (8,), (16, 16), (1, 5, 8, 30, 64)])
def test_each_sequence_finds_what_it_sees_and_nothing_else(
    lengths: tuple[int, ...], window: int | None, num_tiles: int
) -> None:
    """Whatever it does not see is not a number, and would come through."""
    draw = torch.Generator().manual_seed(len(lengths))
    pool_NIGLKPD = torch.full(
        (NUM_BLOCKS, num_tiles, KV_HEADS, NUM_LAYERS, 2, BLOCK_SIZE // num_tiles, HEAD_DIM), torch.nan
    )
    order = torch.randperm(NUM_BLOCKS, generator=draw).tolist()
    chunks = []
    for length in lengths:
        blocks = [order.pop() for _ in range(-(-length // BLOCK_SIZE))]
        first = 0 if window is None else max(0, length - window) // BLOCK_SIZE * BLOCK_SIZE
        for place in range(first, length):
            at_GLKD = place_of(pool_NIGLKPD, blocks[place // BLOCK_SIZE], place % BLOCK_SIZE)
            at_GLKD.normal_(generator=draw)
        chunks.append(Chunk([7], length - 1, blocks, 1))
    (group,) = plan_reach(build_batch(chunks, BLOCK_SIZE, CPU), window, None).decodes
    pool = PoolRows(pool_NIGLKPD)
    q_BHD = torch.empty(len(chunks), HEADS, HEAD_DIM)
    for decodes in decode_both_ways(group, q_BHD, pool):
        for layer in range(NUM_LAYERS):
            q_BHD.normal_(generator=draw)
            expected = [
                naive_answer(pool_NIGLKPD, layer, q_HD, chunk, window)
                for q_HD, chunk in zip(q_BHD, chunks, strict=True)
            ]
            torch.testing.assert_close(decodes.attend(layer), torch.stack(expected).flatten(1))
