"""Messages to one prompt, by the model's own Jinja template, sandboxed and bounded."""

from collections.abc import Mapping

import jinja2

from frontend.text.chat_messages import Chat, plain_message
from frontend.text.template_sandbox import MISTAKES, ChatSandbox, render_budget
from proto.errors import InvalidRequest, InvalidSetting

MAX_PROMPT_CHARS = 8_000_000
RENDER_LIMIT_S = 5.0


class ChatTemplate:
    """One model's, made by `compile_chat_template`. May render in several threads at once."""

    def __init__(self, template: jinja2.Template, special_tokens: Mapping[str, str]) -> None:
        self._template = template
        self._special_tokens = special_tokens

    def render(self, chat: Chat, limit_s: float = RENDER_LIMIT_S, max_chars: int = MAX_PROMPT_CHARS) -> str:
        """The prompt, up to where the assistant begins to speak.

        Raises:
            InvalidRequest: the template refuses the messages, or writes more than `max_chars`.
            DeadlineExceeded: after `limit_s`.
        """
        messages = [
            plain_message(message, f"messages[{place}]") for place, message in enumerate(chat.messages)
        ]
        values = {
            **chat.options,
            **self._special_tokens,
            "messages": messages,
            "tools": list(chat.tools) or None,
            "documents": None,
            "add_generation_prompt": True,
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
