"""POST /v1/completions: its body."""

from typing import Annotated

import msgspec
from msgspec import Meta

from frontend.openai.bodies import NumBest, NumEach, RequestBody, TokenId, read_body
from frontend.openai.fields import REFUSED_OF_COMPLETION

MAX_PROMPTS = 64


class CompletionBody(RequestBody, frozen=True, kw_only=True):
    """The prompt: a string, token ids, or a list of such; checked in `completion_plan`. `max_tokens` 0 asks
    for the prompt alone."""

    prompt: str | Annotated[list[TokenId | str | list[TokenId]], Meta(min_length=1)]
    max_tokens: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    best_of: NumEach | None = None
    echo: bool | None = None
    logprobs: NumBest | None = None


_DECODER = msgspec.json.Decoder(CompletionBody)


def read_completion(body: bytes) -> CompletionBody:
    """Raises InvalidRequest."""
    return read_body(body, _DECODER, REFUSED_OF_COMPLETION)
