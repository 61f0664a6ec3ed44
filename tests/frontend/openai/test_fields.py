"""Every field that OpenAI documents is served, or refused by name; the list is that of its own client."""

import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

from frontend.openai.chat_body import ChatBody
from frontend.openai.completion_body import CompletionBody
from frontend.openai.fields import REFUSED_OF_CHAT, REFUSED_OF_COMPLETION, Refused

DOCUMENTED_OF_CHAT = chat_create_params.CompletionCreateParamsBase.__annotations__
DOCUMENTED_OF_COMPLETION = completion_create_params.CompletionCreateParamsBase.__annotations__


@pytest.mark.parametrize(
    ("documented", "served", "refused"),
    [
        (DOCUMENTED_OF_CHAT, ChatBody.__struct_fields__, REFUSED_OF_CHAT),
        (DOCUMENTED_OF_COMPLETION, CompletionBody.__struct_fields__, REFUSED_OF_COMPLETION),
    ],
    ids=["chat", "completion"],
)
def test_every_documented_field_is_either_served_or_refused(
    documented: dict[str, object], served: tuple[str, ...], refused: Refused
) -> None:
    assert len(documented) > 15
    assert documented.keys() - {*served, *refused} == set()
    assert refused.keys() & set(served) == set()
