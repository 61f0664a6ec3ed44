"""Every documented field of a request: served, without effect here, or refused by name; none is ignored."""

from collections.abc import Mapping

import msgspec

from frontend.openai.constraints import CONSTRAINT_FIELDS
from proto.errors import InvalidRequest

Json = bool | int | float | str | list[object] | dict[str, object] | None


class FieldTable(msgspec.Struct, frozen=True):
    """The fields of one endpoint.

    `inert` ones may hold anything: they ask for nothing that the answer would show. `refused` ones ask for
    what is not served yet, unless they hold null or one of the values listed, which ask for the default.
    """

    served: frozenset[str]
    inert: frozenset[str]
    refused: Mapping[str, tuple[Json, ...]]


_SERVED = (
    "model",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "min_tokens",
    "logprobs",
    "prompt_logprobs",
    "stream",
    "stream_options",
    "cache_salt",
    "priority",
    "worker_id",
    "kvmesh",
    *CONSTRAINT_FIELDS,
)
_INERT = ("user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
_REFUSED: dict[str, tuple[Json, ...]] = {
    "n": (1,),
    "store": (False,),
    "service_tier": ("auto", "default"),
}

CHAT_FIELDS = FieldTable(
    served=frozenset((*_SERVED, "messages", "max_completion_tokens", "top_logprobs")),
    inert=frozenset(_INERT),
    refused={
        **_REFUSED,
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "parallel_tool_calls": (False, True),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "reasoning_effort": (),
        "verbosity": (),
        "web_search_options": (),
        "moderation": (),
    },
)
COMPLETION_FIELDS = FieldTable(
    served=frozenset((*_SERVED, "prompt")),
    inert=frozenset(_INERT),
    refused={**_REFUSED, "best_of": (1,), "echo": (False,), "suffix": ("",)},
)


def check_fields(given: Mapping[str, msgspec.Raw], table: FieldTable) -> None:
    """
    Raises:
        InvalidRequest: a field that is not known, or asks for what is not served.
    """
    for name, raw in given.items():
        if name in table.served or name in table.inert:
            continue
        if name not in table.refused:
            raise InvalidRequest(field=name, reason="there is no such field")
        value = msgspec.json.decode(raw)
        if value is not None and not _is_among(value, table.refused[name]):
            raise InvalidRequest(field=name, reason="this is not served here")


def _is_among(value: object, neutral: tuple[Json, ...]) -> bool:
    """Equality of JSON: 1 is 1.0, but true is not 1."""
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral)
