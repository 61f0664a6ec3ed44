"""The files of a Hugging Face folder that tell its model, as their JSON says it."""

from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from proto.errors import InvalidSetting
from services.models.rope_fields import RopeFields

Count = Annotated[int, msgspec.Meta(gt=0)]
_Layers = Annotated[int, msgspec.Meta(gt=0, le=10_000)]
_File = TypeVar("_File")


class ConfigFile(msgspec.Struct, frozen=True):
    """The fields of config.json that matter here, with the defaults that transformers gives them."""

    architectures: list[str]
    num_hidden_layers: _Layers
    num_attention_heads: Count
    hidden_size: Count
    intermediate_size: Count
    vocab_size: Count
    max_position_embeddings: Count
    original_max_position_embeddings: Count | None = None
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    partial_rotary_factor: float | None = None
    rope_scaling: RopeFields | None = None
    rope_parameters: RopeFields | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    use_sliding_window: bool = False
    sliding_window: Count | msgspec.UnsetType | None = msgspec.UNSET
    max_window_layers: Annotated[int, msgspec.Meta(ge=0)] = 28
    layer_types: list[str] | None = None
    quantization_config: dict[str, msgspec.Raw] | None = None
    eos_token_id: int | list[int] | None = None
    torch_dtype: str | None = None
    dtype: str | None = None

    @property
    def rope(self) -> RopeFields:
        return self.rope_scaling or self.rope_parameters or RopeFields()


class GenerationFile(msgspec.Struct, frozen=True):
    """The field of generation_config.json that matters here."""

    eos_token_id: int | list[int] | None = None


def read_files(folder: Path) -> tuple[ConfigFile, GenerationFile]:
    """
    Raises:
        InvalidSetting: config.json cannot be read, or a file lacks a field or has one of another type.
    """
    file = _read_json(folder / "config.json", ConfigFile)
    if (folder / "generation_config.json").is_file():
        return file, _read_json(folder / "generation_config.json", GenerationFile)
    return file, GenerationFile()


def refusal(folder: Path, reason: str) -> InvalidSetting:
    """What is raised about a folder whose model cannot be served."""
    return InvalidSetting(setting="model", reason=f"{folder}: {reason}")


def _read_json(path: Path, kind: type[_File]) -> _File:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise InvalidSetting(setting="model", reason=f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidSetting(setting="model", reason=f"{path}: {error}") from error
