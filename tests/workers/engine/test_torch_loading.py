"""A runner is what its settings come to on its machine, settled once; what cannot be is refused."""

import logging
from pathlib import Path

import msgspec
import pytest
import torch

from proto.errors import InvalidSetting
from tests.tiny_model import write_tiny_llama
from tests.workers.engine.tiny_torch import TINY_TORCH
from workers.engine.host_memory import HostMemory, read_host_memory
from workers.engine.runner import SampleParams, ScheduledSequence, StepBatch
from workers.engine.torch_loading import RankMemory, load_torch_runner, plan_blocks
from workers.engine.torch_settings import PoolSize, TorchSettings
from workers.model.int8_projection import has_dot_products

BLOCK_BYTES = 5 * 2 * 4 * 8 * 8 * 4  # layers, k and v, heads, places, head size, float32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"), layers=5)


NUM_ROWS = 8


def row(key: int) -> ScheduledSequence:
    """A prompt of 20 tokens."""
    tokens: list[int] = torch.randint(3, 512, (20,), generator=torch.Generator().manual_seed(key)).tolist()
    blocks = [3 * key, 3 * key + 1, 3 * key + 2]
    return ScheduledSequence(tokens=tokens, start=0, blocks=blocks, sample=SampleParams(), key=key)


def changed(**fields: object) -> TorchSettings:
    return msgspec.structs.replace(TINY_TORCH, **fields)


def test_the_first_of_number_share_and_size_that_is_given_makes_the_pool() -> None:
    free_bytes = 1000 * BLOCK_BYTES
    assert PoolSize(num_blocks=7, share=0.5, mib=1).count_blocks(BLOCK_BYTES, free_bytes) == 7
    assert PoolSize(share=0.5, mib=1).count_blocks(BLOCK_BYTES, free_bytes) == 500
    assert PoolSize(mib=1).count_blocks(BLOCK_BYTES, free_bytes) == 2**20 // BLOCK_BYTES
    assert PoolSize(mib=1).count_blocks(2**21, free_bytes) == 1


def test_ranks_have_as_many_blocks_as_the_least_device_holds_for_all_that_are_on_it() -> None:
    small, large = HostMemory(1000, 800), HostMemory(4000, 3000)
    shared = [RankMemory("cpu", 30, small), RankMemory("cpu", 10, HostMemory(1000, 700))]
    alone = RankMemory("cuda:0", 30, large)
    assert plan_blocks(PoolSize(share=0.5), [*shared, alone]) == 350 // 40
    assert plan_blocks(PoolSize(share=0.5), [alone]) == 1500 // 30
    assert plan_blocks(PoolSize(num_blocks=25), [*shared, alone]) == 25
    with pytest.raises(InvalidSetting, match="no memory"):
        plan_blocks(PoolSize(num_blocks=26), [*shared, alone])


def test_a_pool_takes_its_share_of_what_is_free_once_the_weights_are_loaded(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    share = 0.001
    with caplog.at_level(logging.INFO):
        runner = load_torch_runner(folder, changed(pool=PoolSize(share=share)))
    told = {record.message: vars(record) for record in caplog.records}
    plan, found = told["the runner is settled"], told["the weights are loaded"]
    assert plan["num_blocks"] == runner.num_blocks == int(share * found["free_bytes"]) // BLOCK_BYTES
    assert plan["pool_bytes"] == runner.pools[0].pool_bytes == runner.num_blocks * BLOCK_BYTES
    assert found["free_bytes"] <= read_host_memory().total_bytes
    assert (plan["device"], plan["dtype"], plan["weights"], plan["layers_per_push"]) == (
        "cpu",
        "float32",
        "full",
        2,
    )


def test_a_pool_beyond_all_memory_is_refused(folder: Path) -> None:
    num_blocks = read_host_memory().total_bytes // BLOCK_BYTES + 1
    with pytest.raises(InvalidSetting, match=r"num_blocks.*no memory for a pool of \d+ MiB"):
        load_torch_runner(folder, changed(pool=PoolSize(num_blocks=num_blocks)))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"device": "abacus"}, "device"),
        ({"device": "cuda:99"}, "device"),
        ({"dtype": "int8"}, "dtype"),
        ({"device": "meta", "weights": "int8"}, "worker.weights.*needs a CPU"),
    ],
)
def test_a_device_or_numbers_that_cannot_be_used_are_refused(
    folder: Path, fields: dict[str, object], named: str
) -> None:
    with pytest.raises(InvalidSetting, match=named):
        load_torch_runner(folder, changed(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"dtype": "bfloat16"},
        {"dtype": "float16"},
        pytest.param(
            {"weights": "int8"},
            marks=pytest.mark.skipif(
                not has_dot_products(), reason="no 8-bit dot products in this processor"
            ),
        ),
    ],
    ids=str,
)
def test_a_runner_in_fewer_bits_computes_as_one_in_32_in_a_batch_or_alone(
    folder: Path, fields: dict[str, object]
) -> None:
    """But for answers that were close to each other."""
    rows = [row(key) for key in range(NUM_ROWS)]
    full = load_torch_runner(folder, TINY_TORCH).run(StepBatch(rows), None)
    runner = load_torch_runner(folder, changed(**fields))
    together = runner.run(StepBatch(rows), None)
    alone = [runner.run(StepBatch([each]), None)[0] for each in rows]
    for found in (together, alone):
        num_alike = sum(ours == theirs for ours, theirs in zip(found, full, strict=True))
        assert num_alike >= 0.75 * NUM_ROWS
