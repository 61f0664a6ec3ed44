"""What each subject of the side door does with a request: it opens a call, or is answered at once."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

import msgspec

from frontend.answer import Call
from frontend.models import ModelDirectory
from frontend.openai.bodies import read_body
from frontend.openai.calls import chat_call, completion_call
from frontend.openai.model_list import list_json, model_json
from frontend.openai.token_answers import say_text, say_tokens
from frontend.prompt_reader import PromptReader
from frontend.side_door.token_call import token_call
from proto import subjects

Say = Callable[[bytes], Awaitable[bytes]]
"""From the payload to the whole answer. Raises KvmeshError."""


class OpenCall(Protocol):
    def __call__(self, payload: bytes, *, wants_facts: bool) -> Call:
        """`wants_facts`: by `FACTS_HEADER`. Raises InvalidRequest."""


class CallEndpoint(msgspec.Struct, frozen=True):
    """A subject whose requests are answered by a model."""

    name: str
    subject: str
    open: OpenCall
    about: str


class SayEndpoint(msgspec.Struct, frozen=True):
    """A subject whose requests are answered here."""

    name: str
    subject: str
    say: Say
    about: str


class WhichModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`model` unset: all of them."""

    model: str | None = None


_WHICH_MODEL = msgspec.json.Decoder(WhichModel)


def make_endpoints(ns: str, models: ModelDirectory, reader: PromptReader) -> list[CallEndpoint | SayEndpoint]:
    async def say_models(payload: bytes) -> bytes:
        which = read_body(payload or b"{}", _WHICH_MODEL, {})
        return list_json(models.served()) if which.model is None else model_json(models.find(which.model))

    return [
        CallEndpoint(
            "chat",
            subjects.openai(ns, "chat"),
            chat_call,
            "as POST /v1/chat/completions",
        ),
        CallEndpoint(
            "completions",
            subjects.openai(ns, "completions"),
            completion_call,
            "as POST /v1/completions",
        ),
        CallEndpoint(
            "tokens",
            subjects.tokens(ns),
            token_call,
            "as completions, in token ids without text",
        ),
        SayEndpoint("models", subjects.openai(ns, "models"), say_models, "as GET /v1/models"),
        SayEndpoint(
            "tokenize", subjects.openai(ns, "tokenize"), partial(say_tokens, reader), "as POST /tokenize"
        ),
        SayEndpoint(
            "detokenize", subjects.openai(ns, "detokenize"), partial(say_text, reader), "as POST /detokenize"
        ),
    ]
