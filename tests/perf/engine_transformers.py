"""The same work through `transformers`: generation on a static batch, a forward, its continuous batching."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache, GenerationConfig

from tests.perf.engine_load import random_prompt

NUM_NEW = 3
"""Tokens that a timed generation gives after its first."""


class Reference:
    """The model in `folder`, at float32."""

    def __init__(self, folder: Path) -> None:
        loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._model = loaded.eval()

    def decode(self, batch: int, context: int) -> Callable[[], None]:
        """One token for each of `batch` sequences: the forward of `generate`, over a cache as long."""
        tokens_B1 = torch.tensor([random_prompt(1, row) for row in range(batch)])
        cache = self._cache(batch, context - 1)

        @torch.inference_mode()
        def run() -> None:
            self._model(tokens_B1, past_key_values=cache, use_cache=True).logits[:, -1].argmax(dim=-1)
            cache.crop(-1)

        return run

    def prefill(self, length: int) -> Callable[[], None]:
        tokens_1T = torch.tensor([random_prompt(length, length)])

        @torch.inference_mode()
        def run() -> None:
            self._model(tokens_1T, use_cache=True, logits_to_keep=1)

        return run

    def answer_all(self, num_requests: int, prompt_tokens: int, answer_tokens: int) -> None:
        prompts = [random_prompt(prompt_tokens, number) for number in range(num_requests)]
        wanted: Any = GenerationConfig
        config = wanted(max_new_tokens=answer_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
        found = self._model.generate_batch(inputs=prompts, generation_config=config)
        assert [len(answer.generated_tokens) for answer in found.values()] == [answer_tokens] * num_requests

    def _cache(self, batch: int, context: int) -> DynamicCache:
        config = self._model.config
        cache = DynamicCache(config=config)
        shape = (batch, config.num_key_value_heads, context, config.hidden_size // config.num_attention_heads)
        for layer in range(config.num_hidden_layers):
            cache.update(torch.randn(shape), torch.randn(shape), layer)
        return cache
