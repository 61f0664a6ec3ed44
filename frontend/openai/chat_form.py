"""A chat's answer as OpenAI's JSON: deltas of a message, and a whole one."""

import secrets
from collections.abc import Sequence

import msgspec

from frontend.form import WholeChoice
from frontend.openai.forms import AnswerForm, encode_json, prompt_field
from frontend.openai.logprobs import chat_logprobs
from frontend.parsing.delta import CallDelta, Delta
from frontend.shown_tokens import ShownToken

CALL_ID_CHARS = 9
"""Letters and digits: what Mistral's templates take; others take any."""


class _Function(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str = ""
    arguments: str | None = None


class _CallPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """The call at `index` when it begins; only the function when it goes on."""

    function: _Function
    index: int | None = None
    id: str = ""
    type: str = ""


class ChatForm(AnswerForm):
    id_prefix = b"chatcmpl-"
    chunk_object = b"chat.completion.chunk"
    whole_object = b"chat.completion"

    def opening(self, index: int) -> bytes:
        choice = (
            b'{"index":%d,"delta":{"role":"assistant","content":%s},"logprobs":null,"finish_reason":null}'
        )
        return self._start + choice % (index, b"null" if self._head.may_call else b'""') + self._tail

    def choice_frame(self, index: int) -> tuple[bytes, bytes, bytes]:
        return b'{"index":%d,"delta":{"content":' % index, b'},"logprobs":', b',"finish_reason":null}'

    def delta(self, index: int, delta: Delta, tokens: Sequence[ShownToken]) -> bytes:
        """The event that carries reasoning or calls, beside a piece of text."""
        fields = []
        if delta.reasoning:
            fields.append(b'"reasoning_content":' + encode_json(delta.reasoning))
        if delta.content:
            fields.append(b'"content":' + encode_json(delta.content))
        if delta.calls:
            fields.append(b'"tool_calls":' + encode_json(list(map(_part_of, delta.calls))))
        choice = b'{"index":%d,"delta":{%s},"logprobs":%s,"finish_reason":null}' % (
            index,
            b",".join(fields),
            self.logprobs(tokens) if tokens else b"null",
        )
        return self._start + choice + self._tail

    def logprobs(self, tokens: Sequence[ShownToken]) -> bytes:
        """Of all tokens that are told of: those of reasoning and calls too."""
        return chat_logprobs(tokens)

    def ended_choice(self, index: int, finish: bytes) -> bytes:
        return b'{"index":%d,"delta":{},"logprobs":null,"finish_reason":%s}' % (index, finish)

    def whole_choice(self, choice: WholeChoice) -> bytes:
        return (
            b'{"index":%d,"message":{"role":"assistant","content":%s,"refusal":null%s},"logprobs":%s,'
            b'"finish_reason":%s}'
            % (
                choice.index,
                encode_json(choice.text or None) if self._head.may_call else encode_json(choice.text),
                _more_of(choice),
                self._logprobs_of(choice),
                encode_json(choice.finish),
            )
        )

    def whole_extras(self, choices: Sequence[WholeChoice]) -> bytes:
        """A chat has one prompt, and says of it at its top."""
        return prompt_field(choices[0])


def _more_of(choice: WholeChoice) -> bytes:
    """Fields of a message that not each has."""
    more = b""
    if choice.reasoning:
        more += b',"reasoning_content":' + encode_json(choice.reasoning)
    if choice.calls:
        calls = [
            _CallPart(_Function(call.name, call.arguments), id=_call_id(), type="function")
            for call in choice.calls
        ]
        more += b',"tool_calls":' + encode_json(calls)
    return more


def _part_of(call: CallDelta) -> _CallPart:
    if call.name is None:
        return _CallPart(_Function(arguments=call.arguments), call.index)
    return _CallPart(_Function(call.name, call.arguments), call.index, _call_id(), "function")


def _call_id() -> str:
    return secrets.token_hex(CALL_ID_CHARS)[:CALL_ID_CHARS]
