"""POST /tokenize and /detokenize, in vLLM's shapes: how many tokens a prompt has, and which."""

from collections.abc import Sequence
from typing import Any

import msgspec

from frontend.openai.bodies import ModelName, TokenId, read_body
from frontend.openai.chat_body import Messages
from frontend.openai.chat_plan import read_messages
from frontend.openai.fields import REFUSED_OF_TOKENIZE
from frontend.openai.tool_fields import ToolList, read_tools, shown_tools
from frontend.plan import Prompt
from frontend.text.tokenizer import TextTokenizer
from proto.errors import InvalidRequest

_encode = msgspec.json.Encoder().encode


class TokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """`prompt` or `messages`. Null is the same as absent; no model: the only one that is served."""

    model: ModelName | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    tools: ToolList | None = None


class DetokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    model: ModelName | None = None
    tokens: list[TokenId]


class TokenizeResult(msgspec.Struct, frozen=True):
    """Units: `max_model_len` in tokens, prompt and answer together."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeResult(msgspec.Struct, frozen=True):
    prompt: str


_TOKENIZE = msgspec.json.Decoder(TokenizeBody)
_DETOKENIZE = msgspec.json.Decoder(DetokenizeBody)


def read_tokenize(payload: bytes) -> TokenizeBody:
    """Raises InvalidRequest."""
    return read_body(payload, _TOKENIZE, REFUSED_OF_TOKENIZE)


def read_detokenize(payload: bytes) -> DetokenizeBody:
    """Raises InvalidRequest."""
    return read_body(payload, _DETOKENIZE, {})


def prompt_of(body: TokenizeBody) -> Prompt:
    """Of a chat as it would be answered, its tools offered.

    Raises:
        InvalidRequest: neither a prompt nor messages, both, or a field that goes with the other one.
    """
    if body.messages is None:
        for field in ("chat_template_kwargs", "add_generation_prompt", "continue_final_message", "tools"):
            if getattr(body, field) not in (None, []):
                raise InvalidRequest(field=field, reason="only with messages")
        if body.prompt is None:
            raise InvalidRequest(field="prompt", reason="it is missing, and so are messages")
        return body.prompt
    if body.prompt is not None:
        raise InvalidRequest(field="prompt", reason="not with messages")
    if body.add_special_tokens:
        raise InvalidRequest(field="add_special_tokens", reason="the chat template writes its own")
    chat = read_messages(body.messages, body)
    if read_tools(body.tools or [], None, is_parallel=True) is None:
        return chat
    return msgspec.structs.replace(chat, tools=shown_tools(body.tools or []))


def tokens_json(
    tokenizer: TextTokenizer, tokens: Sequence[int], context_tokens: int, *, with_pieces: bool
) -> bytes:
    pieces = [tokenizer.piece(token) for token in tokens] if with_pieces else None
    return _encode(TokenizeResult(len(tokens), context_tokens, list(tokens), pieces))


def text_json(tokenizer: TextTokenizer, tokens: list[int]) -> bytes:
    """Special tokens by their names."""
    text = b"".join(map(tokenizer.spelling, tokens)).decode("utf-8", "replace")
    return _encode(DetokenizeResult(text))
