"""A model folder is read as it is meant, and what is not supported is refused in a sentence."""

import json
from pathlib import Path
from typing import Any

import pytest

from proto.errors import InvalidSetting
from tests.tiny_model import Family, write_tiny
from workers.model.config import Rope, read_config


def change(folder: Path, **fields: object) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({key: value for key, value in config.items() if value != "absent"}))


def test_older_and_newer_folders_say_the_same(tmp_path: Path) -> None:
    scaling = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    }
    older = write_tiny(tmp_path / "older", rope_scaling={"rope_type": "llama3", **scaling})
    newer = write_tiny(tmp_path / "newer")
    change(newer, rope_theta="absent", rope_scaling="absent", torch_dtype="absent", dtype="float32")
    change(newer, rope_parameters={"rope_type": "llama3", "rope_theta": 10000.0, **scaling})
    config = read_config(newer)
    assert config == read_config(older)
    assert config.rope == Rope(10000.0, "llama3", 8.0, 1.0, 4.0, 512)
    assert config.dtype == "float32"


def test_end_tokens_of_both_files_count(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path)
    change(folder, eos_token_id=[2, 5])
    assert read_config(folder).eos_token_ids == (0, 2, 5)
    (folder / "generation_config.json").unlink()
    assert read_config(folder).eos_token_ids == (2, 5)


def test_absent_sizes_follow_from_the_others(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path)
    change(folder, num_key_value_heads="absent", head_dim=None)
    config = read_config(folder)
    assert (config.num_kv_heads, config.head_dim) == (8, 8)


@pytest.mark.parametrize(
    ("family", "fields", "named"),
    [
        ("llama", {"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM"),
        ("llama", {"architectures": []}, "architecture"),
        ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ("llama", {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial rotary"),
        ("llama", {"hidden_act": "gelu"}, "gelu"),
        ("llama", {"quantization_config": {"bits": 4}}, "quantized"),
        ("llama", {"num_key_value_heads": 3}, "3 KV heads"),
        ("llama", {"head_dim": 7}, "7"),
        ("llama", {"num_hidden_layers": 0}, "num_hidden_layers"),
        ("llama", {"hidden_size": "absent"}, "hidden_size"),
        ("mistral", {"sliding_window": 1024}, "sliding window"),
        ("mistral", {"sliding_window": "absent", "max_position_embeddings": 32768}, "sliding window"),
        ("qwen2", {"use_sliding_window": True}, "sliding window"),
        ("qwen3", {"layer_types": ["full_attention", "sliding_attention"]}, "sliding window"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    tmp_path: Path, family: Family, fields: dict[str, Any], named: str
) -> None:
    folder = write_tiny(tmp_path, family)
    read_config(folder)
    change(folder, **fields)
    with pytest.raises(InvalidSetting, match=named):
        read_config(folder)


def test_a_window_as_wide_as_the_context_hides_nothing(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path, "mistral")
    change(folder, sliding_window=2048)
    assert read_config(folder).architecture == "MistralForCausalLM"


def test_a_folder_without_a_readable_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="cannot be read"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InvalidSetting, match=r"config\.json"):
        read_config(tmp_path)
