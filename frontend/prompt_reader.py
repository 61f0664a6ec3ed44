"""Prompts as tokens, and tokens as text: by a model's own tokenizer and template, off the event loop."""

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from frontend.models import ModelDirectory, ServedModel
from frontend.plan import Prompt
from frontend.text.tokenize_pool import TokenizePool
from proto.errors import InvalidRequest

_T = TypeVar("_T")


def check_tokens(tokens: Collection[int], vocab_size: int, field: str) -> None:
    """Raises InvalidRequest: a token that the model does not have."""
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocab_size:
        raise InvalidRequest(field=field, reason=f"token ids are 0 to {vocab_size - 1}")


class PromptReader:
    """Belongs to one event loop. Units: `limit_s` seconds that one prompt may take, its wait included."""

    def __init__(self, models: ModelDirectory, pool: TokenizePool, limit_s: float) -> None:
        self._models = models
        self._pool = pool
        self._limit_s = limit_s

    async def load(self, name: str) -> ServedModel:
        """A model that a request may be sent to; as `ModelDirectory.find` and `load`."""
        return await self._models.load(self._models.find(name))

    async def load_only(self) -> ServedModel:
        """The model of a client that names none.

        Raises:
            InvalidRequest: several could be meant, or none is served.
        """
        served = self._models.served()
        if len(served) != 1:
            raise InvalidRequest(field="model", reason=f"{len(served)} models are served: say which")
        return await self._models.load(served[0])

    async def tokens(
        self, model: ServedModel, prompt: Prompt, *, add_special_tokens: bool = True
    ) -> Sequence[int]:
        """Those of a text, with the special ones that its tokenizer puts around it; of a chat, whose template
        writes its own; or the tokens themselves.

        Raises:
            InvalidRequest: no text, a chat that the template refuses, or no template.
            Overloaded: too many prompts are waiting.
            DeadlineExceeded: it took too long.
        """
        if isinstance(prompt, list):
            return prompt
        tokenizer, limit_s = model.text.tokenizer, self._limit_s
        if isinstance(prompt, str):
            return await self._pool.encode(tokenizer, prompt, add_special_tokens, limit_s)
        if model.text.template is None:
            raise InvalidRequest(field="model", reason=f"{model.card.name!r} has no chat template")
        return await self._pool.encode_chat(model.text.template, tokenizer, prompt, limit_s)

    async def run(self, num_chars: int, work: Callable[[], _T]) -> _T:
        """The result of `work`, which takes as long as tokenising so many characters; raises as `tokens`."""
        return await self._pool.run(num_chars, lambda _: work(), self._limit_s)
