"""The decoder over a paged pool gives the logits of `transformers`, however the work is cut and batched."""

from itertools import islice
from pathlib import Path

import pytest
import torch
import transformers

from tests.workers.model.conftest import BLOCK_SIZE, CPU, NUM_BLOCKS, WINDOW, Checkpoint
from workers.engine.paged_decoder import PagedDecoder
from workers.engine.pool_tensor import describe_pool
from workers.engine.runner import SampleParams, ScheduledSequence, StepBatch
from workers.engine.torch_runner import TorchRunner
from workers.model.batch import build_batch
from workers.model.chunk import Chunk
from workers.model.reach import plan_reach

TOLERANCE = 1e-4


def random_tokens(count: int, seed: int) -> list[int]:
    tokens: list[int] = torch.randint(
        3, 512, (count,), generator=torch.Generator().manual_seed(seed)
    ).tolist()
    return tokens


def scattered_blocks(num_sequences: int, seed: int) -> list[list[int]]:
    """Block tables that share no block, in no order."""
    order = torch.randperm(NUM_BLOCKS, generator=torch.Generator().manual_seed(seed)).tolist()
    share = NUM_BLOCKS // num_sequences
    return [order[index * share : (index + 1) * share] for index in range(num_sequences)]


def assert_near(logits_BV: torch.Tensor, expected_BV: torch.Tensor) -> None:
    torch.testing.assert_close(logits_BV, expected_BV, atol=TOLERANCE, rtol=0)


def test_a_prompt_cut_into_chunks_over_scattered_blocks_gives_the_logits_of_transformers(
    checkpoint: Checkpoint,
) -> None:
    tokens, pool, (blocks,) = random_tokens(100, seed=1), checkpoint.new_pool(), scattered_blocks(1, seed=1)
    start, found = 0, []
    for size in (37, 1, 11, 8, 43):
        found.append(checkpoint.logits([Chunk(tokens[start : start + size], start, blocks, 1)], pool))
        start += size
    expected_TV = checkpoint.reference_logits(tokens)
    assert_near(torch.cat(found), expected_TV[[36, 37, 48, 56, 99]])


def test_decoding_and_prefilling_sequences_in_one_batch_give_the_logits_of_transformers(
    checkpoint: Checkpoint,
) -> None:
    pool, tables = checkpoint.new_pool(), scattered_blocks(4, seed=2)
    prompts = [random_tokens(count, seed=count) for count in (61, 40, 4, 30)]
    starts = [60, 17, 3, 0]  # two decode, one is in the middle of its prompt, one begins
    before = [
        Chunk(prompt[:start], 0, blocks, 0)
        for prompt, start, blocks in zip(prompts, starts, tables, strict=True)
        if start
    ]
    checkpoint.logits(before, pool)
    batch = [
        Chunk(prompt[start:], start, blocks, 1)
        for prompt, start, blocks in zip(prompts, starts, tables, strict=True)
    ]
    logits_BV = checkpoint.logits(batch, pool)
    assert_near(logits_BV, torch.stack([checkpoint.reference_logits(prompt)[-1] for prompt in prompts]))


def test_greedy_tokens_are_those_of_transformers(checkpoint: Checkpoint) -> None:
    prompt, blocks = random_tokens(45, seed=3), scattered_blocks(1, seed=3)[0]
    pool_NIGLKPD = checkpoint.new_pool()
    runner = TorchRunner(PagedDecoder(checkpoint.decoder, pool_NIGLKPD, describe_pool(pool_NIGLKPD), 2))
    answer: list[int] = []
    computed, step = 0, prompt
    while len(answer) < 32:
        row = ScheduledSequence(tokens=step, start=computed, blocks=blocks, sample=SampleParams(), key=7)
        (result,) = runner.run(StepBatch([row]), None)
        computed += len(step)
        step = result.tokens
        answer += result.tokens
    assert answer == checkpoint.reference_greedy(prompt, 32)


def test_a_sequence_gets_the_same_logits_alone_and_in_a_batch(llama: Checkpoint) -> None:
    tables = scattered_blocks(8, seed=4)
    prompts = [random_tokens(count, seed=count) for count in (2, 3, 9, 16, 17, 24, 33, 41)]
    pool = llama.new_pool()
    llama.logits(
        [Chunk(prompt[:-1], 0, blocks, 0) for prompt, blocks in zip(prompts, tables, strict=True)], pool
    )
    last = [
        Chunk(prompt[-1:], len(prompt) - 1, blocks, 1) for prompt, blocks in zip(prompts, tables, strict=True)
    ]
    together_BV = llama.logits(last, pool)
    alone_BV = torch.cat([llama.logits([chunk], pool) for chunk in last])
    assert_near(together_BV, alone_BV)


def test_short_and_long_sequences_decode_together_as_alone_and_in_any_order(llama: Checkpoint) -> None:
    """They are answered in groups of like length."""
    lengths = (900, 20, 310, 4, 1000, 31, 300)
    pool = llama.new_pool(sum(lengths) // BLOCK_SIZE + len(lengths))
    free_blocks = iter(range(pool.shape[0]))
    last = []
    for length in lengths:
        prompt, blocks = random_tokens(length, seed=length), [*islice(free_blocks, -(-length // BLOCK_SIZE))]
        llama.logits([Chunk(prompt[:-1], 0, blocks, 0)], pool)
        last.append(Chunk(prompt[-1:], length - 1, blocks, 1))
    batch = build_batch(last, BLOCK_SIZE, CPU)
    decodes = plan_reach(batch, None, None).decodes
    assert [group.contexts().tolist() for group in decodes] == [[4, 20, 31, 300, 310], [900, 1000]]
    bounded = plan_reach(batch, None, 930).decodes
    assert [group.contexts().tolist() for group in bounded] == [[4, 20, 31], [300, 310], [900], [1000]]
    together_BV = llama.logits(last, pool)
    alone_BV = torch.cat([llama.logits([chunk], pool) for chunk in last])
    assert_near(together_BV, alone_BV)


def test_logits_come_in_the_order_of_the_chunks_and_only_for_those_that_want_them(llama: Checkpoint) -> None:
    pool, tables = llama.new_pool(), scattered_blocks(4, seed=5)
    prompts = [random_tokens(count, seed=count) for count in (20, 1, 12, 1)]
    chunks = [
        Chunk(prompt, 0, blocks, num_logits)
        for prompt, blocks, num_logits in zip(prompts, tables, (3, 1, 0, 1), strict=True)
    ]
    expected_BV = torch.cat(
        [llama.reference_logits(prompts[index])[-count:] for index, count in ((0, 3), (1, 1), (3, 1))]
    )
    assert_near(llama.logits(chunks, pool), expected_BV)
    assert llama.logits(chunks[2:3], pool).shape == (0, llama.config.vocab_size)


def test_a_forward_writes_the_places_of_its_tokens_and_no_others(llama: Checkpoint) -> None:
    pool = llama.new_pool().fill_(7.0)
    first, second = scattered_blocks(2, seed=6)
    before, chunk = Chunk(random_tokens(5, 1), 0, first, False), Chunk(random_tokens(14, 2), 5, first, 0)
    llama.logits([before], pool)
    llama.logits([chunk, Chunk([9], 0, second, 0)], pool)
    is_written_NP = (pool != 7.0).all(dim=-1).all(dim=4).all(dim=3).all(dim=2).all(dim=1)
    is_touched_NP = (pool != 7.0).any(dim=-1).any(dim=4).any(dim=3).any(dim=2).any(dim=1)
    places = [(first[position // BLOCK_SIZE], position % BLOCK_SIZE) for position in range(19)]
    expected = sorted([*places, (second[0], 0)])
    assert is_written_NP.nonzero().tolist() == [list(place) for place in expected]
    assert torch.equal(is_written_NP, is_touched_NP)


def test_each_layer_is_announced_when_its_kv_is_in_the_pool(llama: Checkpoint) -> None:
    pool, (blocks,) = llama.new_pool(), scattered_blocks(1, seed=7)
    seen: list[tuple[int, torch.Tensor]] = []
    batch = build_batch([Chunk(random_tokens(20, seed=7), 0, blocks, 1)], BLOCK_SIZE, CPU)
    llama.decoder.forward(batch, pool, lambda layer: seen.append((layer, pool[:, :, :, layer].clone())))
    assert [layer for layer, _ in seen] == list(range(llama.config.num_layers))
    assert all(torch.equal(kv, pool[:, :, :, layer]) and bool(kv.any()) for layer, kv in seen)


def test_sequences_within_and_beyond_the_window_decode_together(mistral: Checkpoint) -> None:
    lengths = (5, WINDOW, WINDOW + 1, 37, 40, 64)
    pool, tables = mistral.new_pool(), scattered_blocks(len(lengths), seed=10)
    prompts = [random_tokens(length, seed=length) for length in lengths]
    last = []
    for prompt, blocks in zip(prompts, tables, strict=True):
        mistral.logits([Chunk(prompt[:-1], 0, blocks, 0)], pool)
        last.append(Chunk(prompt[-1:], len(prompt) - 1, blocks, 1))
    expected_BV = torch.stack([mistral.reference_logits(prompt)[-1] for prompt in prompts])
    assert_near(mistral.logits(last, pool), expected_BV)


def test_blocks_before_the_window_are_not_read(mistral: Checkpoint) -> None:
    """Also not under a mask: a NaN would come through it."""
    pool, (first, second) = mistral.new_pool(), scattered_blocks(2, seed=11)
    prompt = random_tokens(90, seed=11)
    for blocks in (first, second):
        mistral.logits([Chunk(prompt[:80], 0, blocks, 0)], pool)
    num_before = (80 - WINDOW + 1) // BLOCK_SIZE
    pool[first[:num_before]] = torch.nan
    pool[second[:num_before]] = torch.nan
    decodes = [Chunk(prompt[80:81], 80, blocks, 1) for blocks in (first, second)]
    logits_BV = torch.cat([mistral.logits(decodes, pool), mistral.logits(decodes[:1], pool)])
    expected_TV = mistral.reference_logits(prompt)
    assert_near(logits_BV, expected_TV[80].expand(3, -1))
    logits_BV = mistral.logits([Chunk(prompt[81:], 81, first, 9)], pool)
    assert_near(logits_BV, expected_TV[81:])


def test_every_tensor_of_a_forward_is_made_on_the_device_of_the_pool(
    llama: Checkpoint, mistral: Checkpoint
) -> None:
    """What names no device is made on another one here, and does not go together with the rest."""
    for checkpoint in (llama, mistral):
        pool, tables = checkpoint.new_pool(), scattered_blocks(4, seed=12)
        chunks = [
            Chunk(random_tokens(count, seed=count), start, blocks, 1)
            for start, count, blocks in zip((0, 25, 3, 20), (30, 4, 1, 1), tables, strict=True)
        ]
        expected_BV = checkpoint.logits(chunks, pool)
        with torch.device("meta"):
            logits_BV = checkpoint.logits(chunks, pool)
        assert torch.equal(logits_BV, expected_BV)


@pytest.mark.parametrize("garbage", [float("nan"), float("inf")])
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_what_an_earlier_owner_left_in_a_block_reaches_nobody(
    request: pytest.FixtureRequest, family: str, garbage: float
) -> None:
    found: Checkpoint = request.getfixturevalue(family)
    tables = scattered_blocks(3, seed=8)
    prompts = [random_tokens(count, seed=count) for count in (3, 27, 16)]
    results = []
    for pool in (found.new_pool(), found.new_pool().fill_(garbage)):
        for prompt, blocks in zip(prompts, tables, strict=True):
            found.logits([Chunk(prompt, 0, blocks, 0)], pool)
        last = [Chunk([5], len(prompt), blocks, 1) for prompt, blocks in zip(prompts, tables, strict=True)]
        results.append(torch.cat([found.logits(last, pool), found.logits(last[:1], pool)]))
    assert torch.equal(results[0], results[1])


def test_a_llama_with_biases_in_the_newer_config_form_gives_the_logits_of_transformers(
    tmp_path: Path,
) -> None:
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=512,
        attention_bias=True,
        mlp_bias=True,
        rope_parameters={"rope_type": "linear", "factor": 3.0, "rope_theta": 5000.0},
        initializer_range=0.3,
    )
    model = transformers.LlamaForCausalLM(config)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    model.save_pretrained(tmp_path)
    checkpoint, tokens = Checkpoint(tmp_path), random_tokens(30, seed=9)
    logits_BV = checkpoint.logits([Chunk(tokens, 0, list(range(4)), 1)], checkpoint.new_pool())
    assert_near(logits_BV, checkpoint.reference_logits(tokens)[-1:])
