"""Weights are checked before they are used, and named by a digest that tells models apart."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from proto.errors import InvalidSetting
from tests.tiny_model import write_tiny
from workers.model.config import read_config
from workers.model.projection import FullProjection
from workers.model.weights import Weights, load_weights, weights_digest

Tensors = dict[str, torch.Tensor]


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Weights:
    return load_weights(folder, read_config(folder), torch.device("cpu"), dtype)


def rewrite(folder: Path, change: Callable[[Tensors], None]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def drop_norm(tensors: Tensors) -> None:
    del tensors["model.norm.weight"]


def add_expert(tensors: Tensors) -> None:
    tensors["model.layers.0.mlp.expert.weight"] = torch.zeros(2)


def cut_down_projection(tensors: Tensors) -> None:
    name = "model.layers.1.mlp.down_proj.weight"
    tensors[name] = tensors[name][:, 1:].contiguous()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (drop_norm, "missing, model.norm.weight"),
        (add_expert, "unknown, model.layers.0.mlp.expert.weight"),
        (cut_down_projection, "another shape, model.layers.1.mlp.down_proj.weight"),
    ],
)
def test_tensors_that_do_not_fit_the_config_are_refused(
    tmp_path: Path, change: Callable[[Tensors], None], named: str
) -> None:
    folder = write_tiny(tmp_path)
    rewrite(folder, change)
    with pytest.raises(InvalidSetting, match=named):
        load(folder)


def test_rotary_frequencies_and_a_tied_head_stored_twice_are_passed_over(tmp_path: Path) -> None:
    def add_redundant(tensors: Tensors) -> None:
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    folder = write_tiny(tmp_path, tied=True)
    rewrite(folder, add_redundant)
    weights = load(folder)
    assert weights.embedding_VM is not None
    assert weights.head is not None
    x_TM = torch.randn((2, weights.embedding_VM.shape[1]))
    torch.testing.assert_close(weights.head.projection(x_TM), x_TM @ weights.embedding_VM.t())


def test_weights_take_the_wanted_dtype(tmp_path: Path) -> None:
    weights = load(write_tiny(tmp_path), torch.bfloat16)
    assert weights.head is not None
    projections = [weights.head.projection, weights.layers[0].qkv, weights.layers[0].down]
    matrices = [each.weight_IO for each in projections if isinstance(each, FullProjection)]
    assert [each.dtype for each in (*matrices, weights.head.norm.weight)] == [torch.bfloat16] * 4


def test_a_folder_whose_files_are_no_safetensors_is_refused(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path)
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for damaged in (whole[:-100], b"\x80\x04pickle, or so it says", b"\x02" + b"\x00" * 7 + b"[]", b""):
        path.write_bytes(damaged)
        with pytest.raises(InvalidSetting, match=r"model\.safetensors"):
            load(folder)
    path.unlink()
    with pytest.raises(InvalidSetting, match="cannot be read"):
        load(folder)


def test_an_index_cannot_name_files_outside_its_folder(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path)
    index = '{"weight_map": {"model.norm.weight": "../other.safetensors"}}'
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(InvalidSetting, match="outside the folder"):
        load(folder)


def test_a_copy_of_a_folder_has_its_digest(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "one", shards=2)
    shutil.copytree(folder, tmp_path / "two")
    assert weights_digest(folder) == weights_digest(tmp_path / "two")


def test_models_that_differ_in_weights_names_or_config_have_digests_of_their_own(tmp_path: Path) -> None:
    def rename(tensors: Tensors) -> None:
        tensors["other.weight"] = tensors.pop("model.norm.weight")

    folders = [write_tiny(tmp_path / str(number), seed=number) for number in range(4)]
    rewrite(write_tiny(folders[2], seed=0), rename)
    write_tiny(folders[3], seed=0, context=1024)
    assert len({weights_digest(folder) for folder in folders}) == 4


def test_weights_in_8_bits_share_no_kv_with_whole_ones(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path)
    assert weights_digest(folder, "int8") == f"{weights_digest(folder, 'full')}-int8"
