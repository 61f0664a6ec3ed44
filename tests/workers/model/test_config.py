"""A model folder is read as it is meant, and what is not supported is refused in a sentence."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from proto.errors import InvalidSetting
from services.models.folder import read_model_folder
from services.models.rope_fields import RopeFields
from tests.tiny_model import Family, write_tiny
from workers.model.config import FAMILIES, read_config
from workers.model.config_file import ConfigFile
from workers.model.rope import rope_frequencies
from workers.model.rope_config import Rope


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
    assert config.rope == Rope(10000.0, "llama3", 8.0, original_context=512)
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
        ("llama", {"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}, "longrope"),
        ("llama", {"rope_scaling": {"type": "linear"}}, "linear"),
        ("llama", {"rope_scaling": {"type": "llama3"}}, "llama3"),
        ("llama", {"rope_scaling": {"type": "yarn", "factor": -1.0}}, "factor"),
        ("llama", {"rope_scaling": {"type": "yarn", "factor": 4.0, "beta_fast": 0.5}}, "yarn"),
        ("llama", {"rope_theta": 0.0}, "default"),
        ("llama", {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial rotary"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial rotary"),
        ("qwen3", {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "each kind of layer"),
        ("llama", {"hidden_act": "gelu"}, "gelu"),
        ("llama", {"quantization_config": {"bits": 4}}, "quantized"),
        ("llama", {"num_key_value_heads": 3}, "3 KV heads"),
        ("llama", {"head_dim": 7}, "7"),
        ("llama", {"num_attention_heads": 128}, "even head size, not 0"),
        ("llama", {"num_hidden_layers": 0}, "num_hidden_layers"),
        ("llama", {"num_hidden_layers": 2**40}, "num_hidden_layers"),
        ("llama", {"hidden_size": "absent"}, "hidden_size"),
        ("llama", {"use_sliding_window": True}, "LlamaForCausalLM with a sliding window"),
        ("llama", {"layer_types": ["sliding_attention"] * 4}, "LlamaForCausalLM with a sliding window"),
        ("mistral", {"sliding_window": 0}, "sliding_window"),
        ("mistral", {"layer_types": ["sliding_attention"] * 4}, "several types"),
        ("qwen2", {"layer_types": ["chunked_attention"] * 4}, "chunked_attention"),
        ("qwen3", {"layer_types": ["full_attention"]}, "1 entries for 4 layers"),
        ("qwen3", {"layer_types": ["sliding_attention"] * 4}, "no window is set"),
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


@pytest.mark.parametrize(
    ("family", "fields", "windows"),
    [
        ("llama", {"sliding_window": 512}, [None] * 4),  # as transformers: not one of its fields
        ("mistral", {}, [None] * 4),
        ("mistral", {"sliding_window": 512}, [512] * 4),
        ("mistral", {"sliding_window": "absent", "max_position_embeddings": 32768}, [4096] * 4),
        ("mistral", {"sliding_window": 2048}, [None] * 4),  # as wide as the context: hides nothing
        ("qwen2", {"sliding_window": 512}, [None] * 4),
        ("qwen2", {"sliding_window": 512, "use_sliding_window": True}, [None] * 4),  # begins with layer 28
        (
            "qwen2",
            {"sliding_window": 512, "use_sliding_window": True, "max_window_layers": 3},
            [None, None, None, 512],
        ),
        (
            "qwen3",
            {
                "sliding_window": 64,
                "use_sliding_window": True,
                "layer_types": ["full_attention", *["sliding_attention"] * 3],
            },
            [None, 64, 64, 64],
        ),
    ],
)
def test_layers_have_the_windows_that_their_family_gives_them(
    tmp_path: Path, family: Family, fields: dict[str, Any], windows: list[int | None]
) -> None:
    folder = write_tiny(tmp_path, family)
    change(folder, **fields)
    assert read_config(folder).windows == tuple(windows)


@pytest.mark.parametrize(
    ("scaling", "context_tokens"),
    [
        (None, 2048),
        ({"type": "yarn", "factor": 4.0}, 8192),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}, 4096),
        ({"type": "yarn", "original_max_position_embeddings": 1024}, 2048),
        ({"type": "linear", "factor": 4.0}, 2048),
        ({"type": "dynamic", "factor": 4.0}, 2048),
        ({"type": "llama3", "factor": 8.0, "original_max_position_embeddings": 512}, 2048),
    ],
)
def test_the_context_is_as_long_as_the_positions_reach_for_the_model_and_for_its_card(
    tmp_path: Path, scaling: dict[str, Any] | None, context_tokens: int
) -> None:
    folder = write_tiny(tmp_path, rope_scaling=scaling)
    assert read_config(folder).max_context == context_tokens
    assert read_model_folder(folder, "tiny").context_tokens == context_tokens


def test_a_folder_without_a_readable_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="cannot be read"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InvalidSetting, match=r"config\.json"):
        read_config(tmp_path)


JSON_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([-1, 0, 1, 2, 7, 2**40, -0.5, 0.0, 0.5, 1e300]),
    st.sampled_from(["", "yarn", "llama3", "linear", "sliding_attention", "MistralForCausalLM"]),
    st.lists(st.sampled_from(["full_attention", "sliding_attention", 3]), max_size=4),
)
ROPE = st.dictionaries(st.sampled_from(RopeFields.__struct_fields__), JSON_VALUES, max_size=4)


@settings(max_examples=300, deadline=None)
@given(
    architecture=st.sampled_from(FAMILIES),
    fields=st.dictionaries(st.sampled_from(ConfigFile.__struct_fields__), JSON_VALUES, max_size=3),
    rope=st.one_of(st.none(), ROPE),
)
def test_whatever_a_config_says_is_read_or_refused(
    fuzzed: Path, architecture: str, fields: dict[str, Any], rope: dict[str, Any] | None
) -> None:
    config = json.loads((fuzzed / "template.json").read_text())
    config |= {"architectures": [architecture], "rope_scaling": rope, **fields}
    (fuzzed / "config.json").write_text(json.dumps(config))
    try:
        found = read_config(fuzzed)
    except InvalidSetting as refused:
        assert str(fuzzed) in str(refused)
        return
    if found.head_dim < 1024:
        assert rope_frequencies(found.rope, found.head_dim, torch.device("cpu")).isfinite().all()


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tiny(tmp_path_factory.mktemp("fuzzed"))
    return (folder / "config.json").rename(folder / "template.json").parent
