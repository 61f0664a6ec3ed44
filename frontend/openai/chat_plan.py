"""From the body of a chat to what it asks the mesh for."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from frontend.openai.chat_body import ChatBody
from frontend.openai.plans import make_plan
from frontend.openai.tool_fields import read_tools, shown_tools
from frontend.plan import Plan
from frontend.text.chat_messages import Chat, ChatEnd
from frontend.text.chat_template import OWN_NAMES
from proto.errors import InvalidRequest

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_MESSAGE_KEYS = frozenset(("role", "content", "reasoning_content", "name", "tool_calls", "tool_call_id"))


class TemplateWishes(Protocol):
    """What a body may say of how its messages become a prompt."""

    @property
    def chat_template_kwargs(self) -> dict[str, Any] | None: ...

    @property
    def add_generation_prompt(self) -> bool | None: ...

    @property
    def continue_final_message(self) -> bool | None: ...


def plan_chat(body: ChatBody) -> Plan:
    """
    Raises:
        InvalidRequest: a message, or two fields that contradict each other.
    """
    chat = read_messages(body.messages, body)
    if None not in (body.max_tokens, body.max_completion_tokens) and (
        body.max_tokens != body.max_completion_tokens
    ):
        raise InvalidRequest(field="max_tokens", reason="max_completion_tokens says otherwise")
    max_tokens = body.max_completion_tokens or body.max_tokens
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest(field="top_logprobs", reason="only with logprobs")
    num_best = (body.top_logprobs or 0) if body.logprobs else None
    offered = body.tools or []
    tools = read_tools(offered, body.tool_choice, is_parallel=body.parallel_tool_calls is not False)
    if tools is not None:
        chat = msgspec.structs.replace(chat, tools=shown_tools(offered))
    return make_plan(body, [chat], "messages", max_tokens, num_best, tools)


def read_messages(messages: Sequence[Mapping[str, Any]], wishes: TemplateWishes) -> Chat:
    """
    Raises:
        InvalidRequest: a message, or two wishes that contradict each other.
    """
    checked = [_check_message(message, place) for place, message in enumerate(messages)]
    return Chat(checked, options=_options(wishes), end=_chat_end(wishes, checked[-1]))


def _options(wishes: TemplateWishes) -> dict[str, Any]:
    """What the client tells its model's template. A template that does not ask for one never sees it."""
    options = wishes.chat_template_kwargs or {}
    for name in sorted(OWN_NAMES & options.keys()):
        raise InvalidRequest(field=f"chat_template_kwargs.{name}", reason="the template is told that already")
    return options


def _chat_end(wishes: TemplateWishes, last: Mapping[str, Any]) -> ChatEnd:
    if not wishes.continue_final_message:
        return ChatEnd.CLOSED if wishes.add_generation_prompt is False else ChatEnd.OPEN
    if wishes.add_generation_prompt:
        reason = "a message that goes on leaves none to begin: not with add_generation_prompt"
        raise InvalidRequest(field="continue_final_message", reason=reason)
    if last.get("content") is None:
        raise InvalidRequest(field="continue_final_message", reason="the last message has no content")
    return ChatEnd.WITHIN


def _check_message(message: Mapping[str, Any], place: int) -> dict[str, Any]:
    field = f"messages[{place}]"
    for key, value in message.items():
        if key not in _MESSAGE_KEYS and value not in (None, []):
            raise InvalidRequest(field=f"{field}.{key}", reason="this is not served here")
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise InvalidRequest(field=f"{field}.role", reason=f"one of {', '.join(_ROLES)}")
    content = message.get("content")
    if content is None and not (role == "assistant" and message.get("tool_calls")):
        raise InvalidRequest(field=f"{field}.content", reason="it is missing")
    if content is not None and not isinstance(content, str | list):
        raise InvalidRequest(field=f"{field}.content", reason="a string or a list of text parts")
    return {**{key: message[key] for key in _MESSAGE_KEYS & message.keys()}, "role": _ROLES[role]}
