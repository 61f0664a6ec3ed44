"""The default model, pulled and converted, against `transformers`."""

import hashlib

import msgspec
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from frontend.text.chat_messages import Chat
from frontend.text.chat_template import compile_chat_template
from frontend.text.detokenizer import Detokenizer
from frontend.text.tokenizer import load_tokenizer
from services.models.catalog import DEFAULT_MODEL
from services.models.folder import ModelFolder, resolve_model
from tests.golden.make_smollm2_greedy import GOLDEN_PATH, QUESTION, Golden, GoldenFile, answer, story_tokens

pytestmark = pytest.mark.model

_NEAR_TIE = 1e-3


@pytest.fixture(scope="module")
def folder() -> ModelFolder:
    return resolve_model(DEFAULT_MODEL)


@pytest.fixture(scope="module")
def model(folder: ModelFolder) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder.path, dtype=torch.float32)


def _golden() -> GoldenFile:
    return msgspec.json.decode(GOLDEN_PATH.read_bytes(), type=GoldenFile)


def _golden_of(name: str) -> Golden:
    return next(golden for golden in _golden().answers if golden.name == name)


def test_the_folder_says_what_a_model_card_needs(folder: ModelFolder) -> None:
    assert (folder.name, folder.context_tokens, folder.vocab_size) == (DEFAULT_MODEL, 8192, 49152)
    assert (folder.bos_token, folder.eos_token, folder.eos_tokens) == ("<|im_start|>", "<|im_end|>", [2])


def test_the_weights_are_those_that_gave_the_stored_answers(folder: ModelFolder) -> None:
    weights = hashlib.sha256((folder.path / "model.safetensors").read_bytes()).hexdigest()
    assert weights == _golden().weights_sha256


def test_a_chat_in_parts_has_the_tokens_of_the_whole(folder: ModelFolder) -> None:
    tokenizer_json = folder.tokenizer_path.read_bytes()
    tokenizer = load_tokenizer(tokenizer_json, kept_bytes=100_000)
    template = compile_chat_template(folder.chat_template, {"bos_token": folder.bos_token})
    words = [" <|im_end|>", "안녕하세요 👩‍👩‍👧‍👦\n", "def f(x):\n    return x*3.25  # <|im_", QUESTION * 20]
    messages = [{"role": "user", "content": word * 3} for word in words]
    for end in range(1, len(messages) + 1):
        prompt = template.render(Chat(messages[:end]))
        whole = Tokenizer.from_buffer(tokenizer_json).encode(prompt, add_special_tokens=False)
        assert tokenizer.encode(prompt, add_special_tokens=False) == whole.ids


def test_the_capital_of_france_is_paris(folder: ModelFolder) -> None:
    tokenizer = load_tokenizer(folder.tokenizer_path.read_bytes())
    template = compile_chat_template(folder.chat_template, {"bos_token": folder.bos_token})
    prompt = template.render(Chat([{"role": "user", "content": QUESTION}]))
    golden = _golden_of("capital-chat")
    assert tokenizer.encode(prompt, add_special_tokens=False) == golden.prompt
    assert "Paris" in Detokenizer(tokenizer).push(golden.tokens)


@pytest.mark.parametrize(
    "name",
    [
        "capital-chat",
        "story-5",
        pytest.param("story-200", marks=pytest.mark.slow),
        pytest.param("story-900", marks=pytest.mark.slow),
    ],
)
def test_the_stored_answers_are_what_transformers_says(model: PreTrainedModel, name: str) -> None:
    golden = _golden_of(name)
    with torch.inference_mode():
        found = answer(model, name, golden.prompt)
    firm = next((step for step, gap in enumerate(golden.gaps) if gap < _NEAR_TIE), len(golden.gaps))
    assert found.tokens[:firm] == golden.tokens[:firm]
    assert found.gaps[:firm] == pytest.approx(golden.gaps[:firm], abs=_NEAR_TIE)


def test_the_stored_prompts_are_those_of_the_script(folder: ModelFolder) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder.path)
    for size in (5, 200, 900):
        assert story_tokens(tokenizer, size) == _golden_of(f"story-{size}").prompt


@pytest.mark.parametrize(
    "text",
    [
        "Hello, world! It's 2024 and I'm 37.",
        "안녕하세요, 세계! 👩‍👩‍👧‍👦 🏳️‍🌈 שלום مرحبا",
        "def f(x):\n\treturn x ** 2  # ok\n\n\n",
        "  spaces   and\ttabs <|not special|>",
    ],
)
def test_text_becomes_tokens_and_text_again(folder: ModelFolder, text: str) -> None:
    tokenizer = load_tokenizer(folder.tokenizer_path.read_bytes())
    tokens = tokenizer.encode(text, add_special_tokens=True)
    detokenizer = Detokenizer(tokenizer)
    assert "".join([*(detokenizer.push([token]) for token in tokens), detokenizer.flush()]) == text


def test_digits_stand_alone_and_special_tokens_are_one(folder: ModelFolder) -> None:
    tokenizer = load_tokenizer(folder.tokenizer_path.read_bytes())
    assert len(tokenizer.encode("2024", add_special_tokens=False)) == 4
    assert tokenizer.encode("<|im_start|><|im_end|>", add_special_tokens=False) == [1, 2]
