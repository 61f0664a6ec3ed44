"""A Llama GGUF written as a Hugging Face folder."""

import json
from pathlib import Path

import gguf
from safetensors.numpy import save_file

from proto.errors import InvalidSetting
from services.models.gguf_tokenizer import read_tokenizer, read_tokenizer_config, special_ids
from services.models.gguf_weights import Array, iter_weights, read_config
from services.models.progress import Progress

CONVERTER_VERSION = 1
"""Part of the recipe of every folder made here: another number makes them anew."""


def write_folder(source: Path, folder: Path, progress: Progress) -> None:
    """Write the model in `source` into the empty `folder`: configuration, weights as float16, tokenizer.

    Raises:
        InvalidSetting: not a GGUF file, or of a kind that is not converted here.
    """
    reader = _open(source)
    ids = special_ids(reader)
    _write_json(folder / "config.json", {**read_config(reader), **ids})
    _write_json(folder / "generation_config.json", dict(ids))
    read_tokenizer(reader).save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", read_tokenizer_config(reader))
    save_file(_weights(reader, progress), folder / "model.safetensors", metadata={"format": "pt"})


def _open(source: Path) -> gguf.GGUFReader:
    try:
        return gguf.GGUFReader(source)
    except (ValueError, IndexError) as error:
        raise InvalidSetting(setting="model", reason=f"{source.name} is no GGUF file: {error}") from error


def _weights(reader: gguf.GGUFReader, progress: Progress) -> dict[str, Array]:
    total = len(reader.tensors)
    weights: dict[str, Array] = {}
    progress("convert", 0, total)
    for name, array in iter_weights(reader):
        weights[name] = array
        progress("convert", len(weights), total)
    return weights


def _write_json(path: Path, values: dict[str, object]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", "utf-8")
