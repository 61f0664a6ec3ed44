"""How well a model says a text: what each of its tokens was worth, and which it would have said itself.

The text is the beginning of "Alice's Adventures in Wonderland" by Lewis Carroll (1865, public domain).
"""

import math
from pathlib import Path

import msgspec
import torch

from frontend.text.tokenizer import load_tokenizer
from services.models.folder import ModelFolder
from workers.engine.pool_tensor import allocate_pool
from workers.model.batch import build_batch
from workers.model.chunk import Chunk
from workers.model.config import read_config
from workers.model.decoder import Decoder
from workers.model.dtypes import DTYPES
from workers.model.int8_projection import choose_quantize
from workers.model.weights import load_weights

TEXT_PATH = Path(__file__).parents[2] / "golden" / "alice.txt"
CPU = torch.device("cpu")
BLOCK_SIZE = 16
PASSAGE_TOKENS = 256
"""The text is read in passages of this length, each for itself."""


class Reading(msgspec.Struct, frozen=True):
    """For each token of a text but the first of a passage: its log probability, and the likeliest token."""

    logprobs: list[float]
    likeliest: list[int]

    @property
    def perplexity(self) -> float:
        return math.exp(-sum(self.logprobs) / len(self.logprobs))

    def agreement(self, other: "Reading") -> float:
        """The share of places at which both would have said the same token."""
        pairs = list(zip(self.likeliest, other.likeliest, strict=True))
        return sum(own == others for own, others in pairs) / len(pairs)


def text_tokens(folder: ModelFolder) -> list[int]:
    tokenizer = load_tokenizer(folder.tokenizer_path.read_bytes())
    return tokenizer.encode(TEXT_PATH.read_text(), add_special_tokens=False)


def load_decoder(folder: ModelFolder, kind: str) -> Decoder:
    """On the CPU. `kind` is a dtype, or `int8`: then all else is computed in float32."""
    config = read_config(folder.path)
    weights, dtype = ("int8", torch.float32) if kind == "int8" else ("full", DTYPES[kind])
    quantize = choose_quantize(weights, CPU)
    return Decoder(config, load_weights(folder.path, config, CPU, dtype, quantize))


def read_text(decoder: Decoder, tokens: list[int]) -> Reading:
    reading = Reading([], [])
    num_blocks = -(-PASSAGE_TOKENS // BLOCK_SIZE)
    pool_NIGLKPD = allocate_pool(decoder.config, num_blocks, BLOCK_SIZE, CPU, decoder.dtype)
    for start in range(0, len(tokens), PASSAGE_TOKENS):
        passage = tokens[start : start + PASSAGE_TOKENS]
        chunk = Chunk(passage, 0, range(num_blocks), len(passage))
        logits_TV = decoder.forward(build_batch([chunk], BLOCK_SIZE, CPU), pool_NIGLKPD, None)[:-1]
        said_T1 = torch.tensor(passage[1:])[:, None]
        reading.logprobs.extend(logits_TV.log_softmax(-1).gather(-1, said_T1).flatten().tolist())
        reading.likeliest.extend(logits_TV.argmax(-1).tolist())
    return reading
