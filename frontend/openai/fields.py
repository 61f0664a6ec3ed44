"""Documented fields that are refused by name: none that asks for something is ignored."""

from collections.abc import Collection, Mapping

import msgspec

from proto.errors import InvalidRequest

Json = bool | int | float | str | list[object] | dict[str, object] | None
Refused = Mapping[str, tuple[Json, ...]]
"""Fields by name, with the values that ask for no more than their absence; null does so too."""

_REFUSED: Refused = {
    "store": (False,),
    "prompt_cache_options": ({}, {"mode": "implicit"}),
}

REFUSED_OF_CHAT: Refused = {
    **_REFUSED,
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": ("medium",),
    "web_search_options": (),
    "moderation": (),
    "documents": ([],),
    "chat_template": (),
}
REFUSED_OF_TOKENIZE: Refused = {"chat_template": (), "mm_processor_kwargs": ({},)}
REFUSED_OF_COMPLETION: Refused = {**_REFUSED, "suffix": ("",)}


def check_fields(given: Mapping[str, msgspec.Raw], served: Collection[str], refused: Refused) -> None:
    """
    Raises:
        InvalidRequest: a field that is not known, or asks for what is not served.
    """
    for name, raw in given.items():
        if name in served:
            continue
        if name not in refused:
            raise InvalidRequest(field=name, reason="there is no such field")
        if not _is_neutral(raw, refused[name]):
            raise InvalidRequest(field=name, reason="this is not served here")


def _is_neutral(raw: msgspec.Raw, neutral: tuple[Json, ...]) -> bool:
    """Equality of JSON: 1 is 1.0, but true is not 1."""
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False  # such as a number beyond all bounds
    return value is None or any(
        value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral
    )
