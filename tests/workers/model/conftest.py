"""Tiny checkpoints of every family, each beside what `transformers` makes of it."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.tiny_model import write_tiny
from workers.engine.pool_tensor import allocate_pool
from workers.model.batch import build_batch
from workers.model.chunk import Chunk
from workers.model.config import read_config
from workers.model.decoder import Decoder
from workers.model.weights import load_weights

CPU = torch.device("cpu")
NUM_BLOCKS = 48
BLOCK_SIZE = 8

WINDOW = 20
"""Of the checkpoints with windows: two blocks and a half, so that it begins and ends within blocks."""

_LLAMA3_ROPE: dict[str, float | str] = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN_ROPE = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
_WINDOW_FROM_LAYER_1 = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
_ALTERNATING = {
    "use_sliding_window": True,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
_CHECKPOINTS: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama"},
    "llama 2, a KV head for each head": {"family": "llama", "kv_heads": 8},
    "llama with llama3 rope": {"family": "llama", "rope_scaling": _LLAMA3_ROPE},
    "llama with linear rope": {"family": "llama", "rope_scaling": {"type": "linear", "factor": 2.0}},
    "llama with dynamic rope": {"family": "llama", "rope_scaling": {"type": "dynamic", "factor": 2.0}},
    "mistral without a window": {"family": "mistral"},
    "mistral": {"family": "mistral", "fields": {"sliding_window": WINDOW}},
    "qwen2, tied, in shards": {"family": "qwen2", "tied": True, "shards": 3},
    "qwen2 with yarn past its positions": {"family": "qwen2", "context": 32, "rope_scaling": _YARN_ROPE},
    "qwen2 with windows": {"family": "qwen2", "fields": _WINDOW_FROM_LAYER_1},
    "qwen3": {"family": "qwen3"},
    "qwen3, tied, with yarn": {"family": "qwen3", "tied": True, "rope_scaling": _YARN_ROPE},
    "qwen3 with alternating windows": {"family": "qwen3", "fields": _ALTERNATING},
}


class Checkpoint:
    """A model folder, its decoder, and a reference for both."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = read_config(folder)
        self.decoder = Decoder(self.config, load_weights(folder, self.config, CPU, torch.float32))
        self._reference = transformers.AutoModelForCausalLM.from_pretrained(folder)

    def new_pool(self, num_blocks: int = NUM_BLOCKS) -> torch.Tensor:
        return allocate_pool(self.config, num_blocks, BLOCK_SIZE, CPU, torch.float32)

    def logits(self, chunks: list[Chunk], pool_NIGLKPD: torch.Tensor) -> torch.Tensor:
        return self.decoder.forward(build_batch(chunks, BLOCK_SIZE, CPU), pool_NIGLKPD, None)

    def reference_logits(self, tokens: list[int]) -> torch.Tensor:
        """`logits_TV`, after each of the tokens."""
        with torch.inference_mode():
            logits_1TV: torch.Tensor = self._reference(torch.tensor([tokens])).logits
        return logits_1TV[0]

    def reference_greedy(self, prompt: list[int], num_tokens: int) -> list[int]:
        length = {"max_new_tokens": num_tokens, "min_new_tokens": num_tokens}
        answer = self._reference.generate(torch.tensor([prompt]), do_sample=False, **length)
        tokens: list[int] = answer[0, len(prompt) :].tolist()
        return tokens


@pytest.fixture(scope="session", params=_CHECKPOINTS, ids=list(_CHECKPOINTS))
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return Checkpoint(write_tiny(tmp_path_factory.mktemp("tiny"), **_CHECKPOINTS[request.param]))


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return Checkpoint(write_tiny(tmp_path_factory.mktemp("llama"), "llama"))


@pytest.fixture(scope="session")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Every layer of it has a window."""
    fields = {"sliding_window": WINDOW}
    return Checkpoint(write_tiny(tmp_path_factory.mktemp("mistral"), "mistral", fields=fields))
