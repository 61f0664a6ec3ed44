"""POST /v1/chat/completions: its body."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from frontend.openai.bodies import NumBest, NumTokens, RequestBody, read_body
from frontend.openai.fields import REFUSED_OF_CHAT
from frontend.openai.tool_fields import ToolChoice, ToolList
from frontend.text.chat_messages import TextPart

Messages = Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=4096)]


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As it is documented; what it may leave out depends on its role, and is checked in `chat_plan`."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    reasoning_content: str | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


class ChatBody(RequestBody, frozen=True, kw_only=True):
    """Messages are OpenAI's; the keys of each are checked in `chat_plan`."""

    messages: Messages
    max_tokens: NumTokens | None = None
    max_completion_tokens: NumTokens | None = None
    logprobs: bool | None = None
    top_logprobs: NumBest | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: ToolList | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


_DECODER = msgspec.json.Decoder(ChatBody)


def read_chat(body: bytes) -> ChatBody:
    """Raises InvalidRequest."""
    return read_body(body, _DECODER, REFUSED_OF_CHAT)
