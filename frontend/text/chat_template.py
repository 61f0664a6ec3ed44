"""Messages to one prompt, by the model's own Jinja template, sandboxed and bounded."""

import secrets
from collections.abc import Mapping

import jinja2

from frontend.text.chat_messages import Chat, ChatEnd, plain_message
from frontend.text.template_sandbox import MISTAKES, ChatSandbox, render_budget
from proto.errors import InvalidRequest, InvalidSetting

OWN_NAMES = frozenset(
    (
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
        "chat_template",
        "bos_token",
        "eos_token",
    )
)
"""What a template is told by itself, and no option of a client can change."""

MAX_PROMPT_CHARS = 8_000_000
RENDER_LIMIT_S = 5.0


class ChatTemplate:
    """One model's, made by `compile_chat_template`. May render in several threads at once."""

    def __init__(self, template: jinja2.Template, special_tokens: Mapping[str, str]) -> None:
        self._template = template
        self._special_tokens = special_tokens

    def render(self, chat: Chat, limit_s: float = RENDER_LIMIT_S, max_chars: int = MAX_PROMPT_CHARS) -> str:
        """The prompt, up to where the chat ends.

        Raises:
            InvalidRequest: the template refuses the messages, or writes more than `max_chars`, or leaves out
                the last message's content where that goes on.
            DeadlineExceeded: after `limit_s`.
        """
        messages = [
            plain_message(message, f"messages[{place}]") for place, message in enumerate(chat.messages)
        ]
        if chat.end is not ChatEnd.WITHIN:
            return self._render(chat, messages, limit_s, max_chars)
        # a mark, since templates trim contents, write them twice, or write something like them elsewhere
        mark = secrets.token_hex(16)
        messages[-1]["content"] = f"{messages[-1].get('content', '')}{mark}"
        text, *rest = self._render(chat, messages, limit_s, max_chars).split(mark)
        if len(rest) != 1:
            reason = "the chat template does not write the last message as it is"
            raise InvalidRequest(field="continue_final_message", reason=reason)
        return text

    def _render(self, chat: Chat, messages: list[dict[str, object]], limit_s: float, max_chars: int) -> str:
        values = {
            **chat.options,
            **self._special_tokens,
            "messages": messages,
            "tools": list(chat.tools) or None,
            "documents": None,
            "add_generation_prompt": chat.end is ChatEnd.OPEN,
        }
        try:
            with render_budget(limit_s, max_chars):
                return self._template.render(values)
        except MISTAKES as error:
            reason = f"the chat template refuses them: {str(error) or type(error).__name__}"
            raise InvalidRequest(field="messages", reason=reason) from error


def compile_chat_template(source: str, special_tokens: Mapping[str, str]) -> ChatTemplate:
    """The template in `source`.

    Args:
        source: Jinja, as models carry it.
        special_tokens: the texts that it may name: `bos_token`, `eos_token`.

    Raises:
        InvalidSetting: no valid Jinja.
    """
    try:
        template = ChatSandbox().compile_bounded(source)
    except jinja2.TemplateError as error:
        raise InvalidSetting(setting="chat template", reason=str(error)) from error
    return ChatTemplate(template, dict(special_tokens))
