"""In which manner a request is answered: what its plan asks for, by the speech of its model."""

from collections.abc import Sequence

from frontend.models import ServedModel
from frontend.parsing.speech import Manner
from frontend.plan import Plan
from frontend.text.chat_messages import Chat, ChatEnd, plain_message

_END_TOKENS = 16
"""More than the mark of a thought can have."""


def find_manner(plan: Plan, model: ServedModel, tokens: Sequence[int]) -> Manner:
    """`tokens` are those of the first prompt; a chat has no other.

    Raises:
        InvalidRequest: the model takes no tools, or what the answer must be does not go with them.
    """
    chat = plan.prompts[0]
    if not isinstance(chat, Chat):
        return Manner(plan.constraint)
    end = b"".join(map(model.text.tokenizer.spelling, tokens[-_END_TOKENS:]))
    return model.text.speech.manner(plan.tools, plan.constraint, end.decode("utf-8", "replace"), _begun(chat))


def _begun(chat: Chat) -> str | None:
    """What the client has had the model say already."""
    if chat.end is not ChatEnd.WITHIN:
        return None
    return str(plain_message(chat.messages[-1], "messages")["content"])
