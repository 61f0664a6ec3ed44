"""The runner keeps its contract: results by key, layers in groups, failures one row at a time."""

import math
from pathlib import Path

import msgspec
import pytest
import torch

from proto.errors import InvalidSetting
from tests.tiny_model import write_tiny_llama
from tests.workers.engine.tiny_torch import TINY_TORCH
from workers.engine.runner import RowResult, Runner, SampleParams, ScheduledSequence, StepAbandoned, StepBatch
from workers.engine.torch_loading import load_torch_runner
from workers.engine.torch_runner import TorchRunner
from workers.engine.torch_settings import DtypeName

GREEDY = SampleParams()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"), layers=5)


def load(folder: Path, *, dtype: DtypeName = "float32") -> TorchRunner:
    """Two layers are 4 KiB of a block in float32."""
    return load_torch_runner(folder, msgspec.structs.replace(TINY_TORCH, dtype=dtype))


def row(
    key: int, tokens: list[int], blocks: list[int], sample: SampleParams | None = GREEDY
) -> ScheduledSequence:
    return ScheduledSequence(tokens=tokens, start=0, blocks=blocks, sample=sample, key=key)


def test_results_carry_the_keys_of_the_rows_that_wanted_a_token_in_their_order(folder: Path) -> None:
    runner: Runner = load(folder)
    rows = [row(30, [4, 5, 6], [1]), row(10, [7], [2]), row(20, [8, 9], [3], sample=None), row(5, [7], [4])]
    found = runner.run(StepBatch(rows), None)
    assert [sampled.key for sampled in found] == [30, 10, 5]
    assert found[1].tokens == found[2].tokens
    assert runner.run(StepBatch([rows[2]]), None) == []
    assert runner.run(StepBatch([]), None) == []


def test_layers_are_announced_in_groups_each_once_its_kv_is_in_the_pool(folder: Path) -> None:
    runner = load(folder)
    groups: list[tuple[int, int]] = []
    seen: list[torch.Tensor] = []

    def on_layers(_: int, first: int, count: int) -> None:
        groups.append((first, count))
        seen.append(runner.pool_NIGLKPD[2, :, :, first : first + count].clone())

    runner.run(StepBatch([row(1, list(range(3, 11)), [2], sample=None)]), on_layers)
    assert groups == [(0, 2), (2, 2), (4, 1)]
    assert torch.equal(torch.cat(seen, dim=2), runner.pool_NIGLKPD[2])
    assert bool(runner.pool_NIGLKPD[2].all())


def test_a_step_that_nobody_wants_is_left_between_two_layers_and_can_be_computed_anew(folder: Path) -> None:
    runner = load(folder)
    batch = StepBatch([row(1, list(range(3, 11)), [2])])
    whole = load(folder).run(batch, None)
    asked: list[bool] = []

    def is_wanted() -> bool:
        asked.append(len(asked) < 3)
        return asked[-1]

    groups: list[tuple[int, int]] = []
    with pytest.raises(StepAbandoned):
        runner.run(batch, lambda _, first, count: groups.append((first, count)), is_wanted)
    assert asked == [True, True, True, False]
    assert groups == [(0, 2)]
    assert not runner.pool_NIGLKPD[[0, 1, *range(3, 24)]].any()
    assert runner.run(batch, None) == whole


def test_what_a_layer_callback_raises_ends_the_step(folder: Path) -> None:
    def refuse(rank: int, first: int, count: int) -> None:
        raise InvalidSetting(setting="test", reason=f"{rank} {first} {count}")

    with pytest.raises(InvalidSetting, match="0 0 2"):
        load(folder).run(StepBatch([row(1, [3], [2])]), refuse)


def test_the_pool_is_described_as_it_lies(folder: Path) -> None:
    runner = load(folder, dtype="bfloat16")
    (pool,) = runner.pools
    shape = (pool.num_blocks, 1, pool.num_heads, pool.num_layers, 2, pool.block_size, pool.head_dim)
    assert shape == (24, 1, 4, 5, 2, 8, 8) == tuple(runner.pool_NIGLKPD.shape)
    assert (runner.num_blocks, runner.block_size, runner.dtype) == (24, 8, "bfloat16")
    assert (pool.dtype, pool.item_bytes, pool.device) == ("bfloat16", 2, "cpu")
    assert (pool.first_layer, pool.first_head) == (0, 0)
    assert pool.pool_bytes == math.prod(shape) * 2
    assert pool.address == runner.pool_NIGLKPD.data_ptr()
    assert pool.address % 4096 == 0
    assert not bool(runner.pool_NIGLKPD.any()), "warming up leaves nothing behind"


def test_a_sequence_with_spoiled_kv_fails_and_its_neighbours_do_not(folder: Path) -> None:
    runner = load(folder)
    sampled = SampleParams(temperature=1.0, seed=4)
    prompts = [row(1, [3, 4, 5], [1], None), row(2, [6, 7], [2], None), row(3, [8, 9], [3], None)]
    runner.run(StepBatch(prompts), None)
    step = [
        ScheduledSequence([11], len(prompt.tokens), prompt.blocks, params, prompt.key)
        for prompt, params in zip(prompts, (GREEDY, sampled, sampled), strict=True)
    ]
    whole = runner.run(StepBatch(step), None)
    runner.pool_NIGLKPD[2, 0, 0, 0, 0, 0, 0] = math.nan
    found = runner.run(StepBatch(step), None)
    assert found == [whole[0], RowResult(2, failed=True), whole[2]]


def test_a_seeded_token_does_not_depend_on_its_batch(folder: Path) -> None:
    runner = load(folder)
    wanted = row(1, [3, 4, 5], [1], SampleParams(temperature=1.0, top_p=0.9, seed=8))
    others = [row(key, [key], [key], SampleParams(temperature=2.0, seed=key)) for key in range(5, 9)]
    (alone,) = runner.run(StepBatch([wanted]), None)
    assert alone in runner.run(StepBatch([*others, wanted]), None)
