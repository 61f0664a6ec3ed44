"""Rotary frequencies and scales are those of transformers, however a config asks for them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from workers.model.config import read_config
from workers.model.rope import rope_frequencies

CPU = torch.device("cpu")
POSITIONS = 4096


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("theta", [10_000.0, 1_000_000.0])
@pytest.mark.parametrize(
    "fields",
    [
        {"rope_type": "linear", "factor": 3.0},
        {"rope_type": "dynamic", "factor": 3.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 1024,
        },
        {"rope_type": "yarn", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
        {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 1024},
        {"rope_type": "yarn", "factor": 0.5},
        {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5},
        {"rope_type": "yarn", "factor": 4.0, "beta_fast": 64.0, "beta_slow": 2.0},
        {"rope_type": "yarn", "factor": 4.0, "beta_fast": 8.1, "beta_slow": 8.0, "truncate": True},
        {"rope_type": "yarn", "factor": 16.0, "truncate": False},
        {"rope_type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.8},
        {"rope_type": "yarn", "factor": 40.0, "mscale": 1.0},
    ],
    ids=lambda fields: " ".join(map(str, fields.values())),
)
def test_frequencies_and_scale_are_those_of_transformers(
    tmp_path: Path, fields: dict[str, Any], theta: float, head_dim: int
) -> None:
    config = LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        max_position_embeddings=POSITIONS,
        rope_parameters=fields | {"rope_theta": theta},
    )
    expected, scale = ROPE_INIT_FUNCTIONS[fields["rope_type"]](config, CPU)
    (tmp_path / "config.json").write_text(
        json.dumps(config.to_dict() | {"architectures": ["LlamaForCausalLM"]})
    )
    rope = read_config(tmp_path).rope
    torch.testing.assert_close(rope_frequencies(rope, head_dim, CPU), expected, atol=0, rtol=1e-5)
    assert rope.attention_factor == pytest.approx(scale)
