"""Make `smollm2_lengths.json`: what `transformers` answers greedily to prompts of 20 lengths.

Run: `python -m tests.golden.make_smollm2_lengths`. As `make_smollm2_greedy`, with the default model in
float32. Lengths lie at, before and after the borders of blocks of 16 tokens and of steps of 256; each prompt
begins at another place of the story, so that no two share a beginning.
"""

import hashlib
from pathlib import Path

import msgspec
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from services.models.catalog import DEFAULT_MODEL
from services.models.folder import resolve_model
from tests.golden.make_smollm2_greedy import GoldenFile, answer, story_tokens

LENGTHS_PATH = Path(__file__).with_name("smollm2_lengths.json")
LENGTHS = (5, 9, 15, 16, 17, 31, 32, 33, 48, 65, 100, 128, 160, 255, 256, 257, 400, 513, 700, 900)
STRIDE = 23


def make() -> GoldenFile:
    folder = resolve_model(DEFAULT_MODEL).path
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    story = story_tokens(tokenizer, max(LENGTHS) + STRIDE * len(LENGTHS))
    with torch.inference_mode():
        answers = [
            answer(model, f"story-{length}", story[STRIDE * place : STRIDE * place + length])
            for place, length in enumerate(LENGTHS)
        ]
    weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    return GoldenFile(DEFAULT_MODEL, weights, answers)


def main() -> None:
    LENGTHS_PATH.write_bytes(msgspec.json.encode(make()) + b"\n")


if __name__ == "__main__":
    main()
