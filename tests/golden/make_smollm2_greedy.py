"""Make `smollm2_greedy.json`: what `transformers` answers greedily with the default model, in float32.

Run: `python -m tests.golden.make_smollm2_greedy`. The prompts are plain English of exactly 5, 200 and 900
tokens, and one chat prompt. Each step keeps the gap between its two best logits, so that a test can tell a
near-tie, which another order of additions may swap, from a fault.
"""

import hashlib
from itertools import count
from pathlib import Path

import msgspec
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from services.models.catalog import DEFAULT_MODEL
from services.models.folder import resolve_model

GOLDEN_PATH = Path(__file__).with_name("smollm2_greedy.json")
NUM_NEW_TOKENS = 32
QUESTION = "What is the capital of France? Answer in one sentence."

_OPENING = "The old lighthouse keeper climbed the stairs every evening"
_PLACES = ("harbour", "market", "orchard", "library", "railway station", "bakery", "museum")
_PEOPLE = ("a fisherman", "two students", "the postman", "an old teacher", "a young doctor")
_THINGS = ("a wooden boat", "three letters", "a basket of apples", "a broken clock", "an old map")
_WEATHER = ("The rain had stopped", "A cold wind blew", "The sun was setting", "Snow lay on the roofs")


class Golden(msgspec.Struct):
    """One prompt and its answer. `gaps` are best minus second-best logit, one for each token of `tokens`."""

    name: str
    prompt: list[int]
    tokens: list[int]
    gaps: list[float]


class GoldenFile(msgspec.Struct):
    """`weights_sha256` is the digest of the `model.safetensors` that answered."""

    model: str
    weights_sha256: str
    answers: list[Golden]


def story(num_sentences: int) -> str:
    """Plain English that repeats its form and varies its words, the same on every run."""
    sentences = [f"{_OPENING}, lit the lamp and wrote down what he had seen during the day."]
    for day in range(1, num_sentences):
        place, person = _PLACES[day % len(_PLACES)], _PEOPLE[day % len(_PEOPLE)]
        thing, weather = _THINGS[day * 3 % len(_THINGS)], _WEATHER[day % len(_WEATHER)]
        sentences.append(
            f"On day {day}, near the {place}, {person} found {thing}. "
            f"{weather}, and nobody knew whose it was."
        )
    return " ".join(sentences)


def story_tokens(tokenizer: PreTrainedTokenizerBase, num_tokens: int) -> list[int]:
    """The first `num_tokens` tokens of a story that is long enough."""
    for num_sentences in count(1):
        tokens: list[int] = tokenizer.encode(story(num_sentences))
        if len(tokens) >= num_tokens:
            return tokens[:num_tokens]
    raise AssertionError("count has no end")


def chat_tokens(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The question as the model's own chat template puts it."""
    chat = [{"role": "user", "content": QUESTION}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    tokens: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return tokens


def answer(model: PreTrainedModel, name: str, prompt: list[int]) -> Golden:
    """Greedy, deaf to the end of the answer: always `NUM_NEW_TOKENS` tokens."""
    tokens: list[int] = []
    gaps: list[float] = []
    cache = None
    step = torch.tensor([prompt])
    while len(tokens) < NUM_NEW_TOKENS:
        output = model(input_ids=step, cache=cache, use_cache=True)
        cache = output.past_key_values
        best = output.logits[0, -1].float().topk(2)
        tokens.append(int(best.indices[0]))
        gaps.append(round(float(best.values[0] - best.values[1]), 5))
        step = best.indices[:1].reshape(1, 1)
    return Golden(name, prompt, tokens, gaps)


def make() -> GoldenFile:
    folder = resolve_model(DEFAULT_MODEL).path
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompts = {f"story-{size}": story_tokens(tokenizer, size) for size in (5, 200, 900)}
    prompts["capital-chat"] = chat_tokens(tokenizer)
    with torch.inference_mode():
        answers = [answer(model, name, prompt) for name, prompt in prompts.items()]
    weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    return GoldenFile(DEFAULT_MODEL, weights, answers)


def main() -> None:
    GOLDEN_PATH.write_bytes(msgspec.json.encode(make()) + b"\n")


if __name__ == "__main__":
    main()
