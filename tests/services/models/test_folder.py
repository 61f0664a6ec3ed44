import hashlib
import json
from pathlib import Path

import pytest

from proto.errors import InvalidSetting
from services.models.folder import read_model_folder, read_text_folder, resolve_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Hugging Face folder as far as it is read here; its weights are the worker's concern."""
    path = tmp_path / "Tiny-1.5"
    path.mkdir()
    _write(path / "config.json", {"vocab_size": 100, "max_position_embeddings": 64, "eos_token_id": 5})
    _write(path / "tokenizer.json", {"any": "thing"})
    return path


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


def test_a_local_folder_is_served_under_its_own_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    for name in (str(folder), "Tiny-1.5", "./Tiny-1.5/"):
        model = resolve_model(name)
        assert (model.name, model.path) == ("Tiny-1.5", folder)
    assert (model.vocab_size, model.context_tokens) == (100, 64)
    assert model.tokenizer_digest == hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest()
    assert (model.chat_template, model.bos_token, model.eos_token) == ("", "", "")


@pytest.mark.parametrize(
    ("generation", "wanted"), [({}, [5]), ({"eos_token_id": 7}, [7]), ({"eos_token_id": [9, 7]}, [7, 9])]
)
def test_the_generation_settings_name_the_tokens_that_end(
    folder: Path, generation: object, wanted: list[int]
) -> None:
    _write(folder / "generation_config.json", generation)
    assert read_model_folder(folder, "tiny").eos_tokens == wanted


def test_special_tokens_are_read_in_both_forms(folder: Path) -> None:
    _write(
        folder / "tokenizer_config.json",
        {"bos_token": None, "eos_token": {"content": "</s>", "special": True}},
    )
    model = read_model_folder(folder, "tiny")
    assert (model.bos_token, model.eos_token) == ("", "</s>")


def test_the_template_is_the_file_or_the_key_or_its_default_and_that_for_tools(folder: Path) -> None:
    templates = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    _write(folder / "tokenizer_config.json", {"chat_template": templates})
    assert read_model_folder(folder, "tiny").chat_template == "{% if tools %}T{% else %}D{% endif %}"
    _write(folder / "tokenizer_config.json", {"chat_template": templates[1:]})
    assert read_model_folder(folder, "tiny").chat_template == "D"
    _write(folder / "tokenizer_config.json", {"chat_template": "K"})
    assert read_model_folder(folder, "tiny").chat_template == "K"
    (folder / "chat_template.jinja").write_text("F")
    assert read_model_folder(folder, "tiny").chat_template == "F"


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json"])
def test_a_folder_that_lacks_a_file_is_refused_by_its_name(folder: Path, missing: str) -> None:
    (folder / missing).unlink()
    with pytest.raises(InvalidSetting, match=f"lacks {missing}"):
        resolve_model(str(folder))


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe", b'{"vocab_size": "many"}', b"{}"])
def test_a_configuration_that_says_nothing_is_refused(folder: Path, content: bytes) -> None:
    (folder / "config.json").write_bytes(content)
    with pytest.raises(InvalidSetting, match=r"config\.json"):
        resolve_model(str(folder))


@pytest.mark.parametrize(
    "name", ["nothing-known", "/no/such/folder", "a/b/c", "../x", "", "org/..", "org/na me"]
)
def test_what_is_no_model_is_refused_with_the_choices(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidSetting, match="smollm2-135m"):
        resolve_model(name)


def test_a_folder_of_which_only_the_text_is_there_says_what_its_tokenizer_knows(folder: Path) -> None:
    (folder / "config.json").unlink()
    _write(
        folder / "tokenizer.json",
        {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 7, "content": "</s>"}]},
    )
    _write(folder / "tokenizer_config.json", {"eos_token": "</s>"})
    model = read_text_folder(folder, "text", 4096)
    assert (model.vocab_size, model.context_tokens, model.eos_tokens) == (8, 4096, [7])
    _write(folder / "tokenizer.json", {"model": {"type": "Unigram", "vocab": [["a", -1.5], ["b", -2.0]]}})
    assert read_text_folder(folder, "text", 4096).vocab_size == 2
    _write(folder / "tokenizer.json", {"model": {"type": "BPE"}})
    with pytest.raises(InvalidSetting, match="vocabulary"):
        read_text_folder(folder, "text", 4096)
