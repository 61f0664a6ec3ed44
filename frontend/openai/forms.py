"""Answers as OpenAI's JSON: chunks of a stream, and whole objects, for chats and for completions.

A chunk is a prefix and a suffix made once, around the text: all that is encoded for a token is its text.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

import msgspec

from frontend.generation import Usage
from frontend.openai.logprobs import chat_logprobs, completion_logprobs, prompt_logprobs
from frontend.shown_tokens import ShownToken
from frontend.text_choice import ChoiceFacts

_encode = msgspec.json.Encoder().encode
DONE = b"data: [DONE]\n\n"


class WholeChoice(msgspec.Struct, frozen=True):
    """A choice that has ended. `facts` are those of the `kvmesh` extension; `tokens` and `prompt` the tokens
    of its text and of its prompt but the first, where their log-probabilities were asked for."""

    index: int
    text: str
    finish: str
    facts: ChoiceFacts
    tokens: list[ShownToken] | None = None
    prompt: list[ShownToken] | None = None


class AnswerHead(msgspec.Struct, frozen=True):
    """What all parts of an answer share. Units: `created` in seconds of the epoch."""

    request: str
    model: str
    created: int
    shows_usage: bool
    shows_facts: bool


def make_head(request: str, model: str, *, shows_usage: bool, shows_facts: bool) -> AnswerHead:
    return AnswerHead(request, model, int(time.time()), shows_usage, shows_facts)


class AnswerForm(ABC):
    """How one endpoint writes an answer; `ChatForm` and `CompletionForm` differ in where the text lies."""

    id_prefix = b""
    chunk_object = b""
    whole_object = b""

    def __init__(self, head: AnswerHead) -> None:
        self._head = head
        self._common = b'"id":"%s%s","created":%d,"model":%s,' % (
            self.id_prefix,
            head.request.encode(),
            head.created,
            _encode(head.model),
        )
        self._start = b'data: {"object":"%s",%s"choices":[' % (self.chunk_object, self._common)
        self._tail = b'],"usage":null}\n\n' if head.shows_usage else b"]}\n\n"
        self._frames: dict[int, tuple[bytes, bytes, bytes]] = {}

    @abstractmethod
    def opening(self, index: int) -> bytes:
        """The event that begins a choice; empty where there is none."""

    @abstractmethod
    def choice_frame(self, index: int) -> tuple[bytes, bytes, bytes]:
        """What stands before the JSON string of the text, between it and the log-probabilities, and after
        them, in a chunk's choice."""

    @abstractmethod
    def logprobs(self, tokens: Sequence[ShownToken]) -> bytes:
        """The log-probabilities of a text's tokens."""

    @abstractmethod
    def ended_choice(self, index: int, finish: bytes) -> bytes:
        """The choice of the chunk that ends it."""

    @abstractmethod
    def whole_choice(self, choice: WholeChoice) -> bytes:
        """The choice in a whole answer."""

    @abstractmethod
    def whole_extras(self, choices: Sequence[WholeChoice]) -> bytes:
        """Fields of a whole answer that only its kind has, each after a comma."""

    def text(self, index: int, text: str, tokens: Sequence[ShownToken]) -> bytes:
        """The event that carries a piece of text, with the tokens that are shown with it."""
        frame = self._frames.get(index)
        if frame is None:
            before, between, after = self.choice_frame(index)
            frame = self._frames[index] = (self._start + before, between, after + self._tail)
        logprobs = self.logprobs(tokens) if tokens else b"null"
        return frame[0] + _encode(text) + frame[1] + logprobs + frame[2]

    def finish(self, index: int, finish: str, facts: ChoiceFacts) -> bytes:
        """The event that ends a choice."""
        choice = self.ended_choice(index, _encode(finish))
        return self._start + choice + self._with_facts([facts]) + self._tail[1:]

    def usage(self, usage: Usage) -> bytes:
        """The event with the usage, if it was asked for."""
        if not self._head.shows_usage:
            return b""
        return self._start + b'],"usage":%s}\n\n' % _usage(usage)

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> bytes:
        """The answer as one object."""
        return b'{"object":"%s",%s"choices":[%s%s%s,"usage":%s}' % (
            self.whole_object,
            self._common,
            b",".join(map(self.whole_choice, choices)),
            self._with_facts([choice.facts for choice in choices]),
            self.whole_extras(choices),
            _usage(usage),
        )

    def _logprobs_of(self, choice: WholeChoice) -> bytes:
        return b"null" if choice.tokens is None else self.logprobs(choice.tokens)

    def _with_facts(self, facts: Sequence[ChoiceFacts]) -> bytes:
        """The end of `choices`, and the `kvmesh` extension if it was asked for."""
        if not self._head.shows_facts:
            return b"]"
        return b'],"kvmesh":{"choices":%s}' % _encode(facts)


class ChatForm(AnswerForm):
    id_prefix = b"chatcmpl-"
    chunk_object = b"chat.completion.chunk"
    whole_object = b"chat.completion"

    def opening(self, index: int) -> bytes:
        choice = (
            b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
        )
        return self._start + choice % index + self._tail

    def choice_frame(self, index: int) -> tuple[bytes, bytes, bytes]:
        return b'{"index":%d,"delta":{"content":' % index, b'},"logprobs":', b',"finish_reason":null}'

    def logprobs(self, tokens: Sequence[ShownToken]) -> bytes:
        return chat_logprobs(tokens)

    def ended_choice(self, index: int, finish: bytes) -> bytes:
        return b'{"index":%d,"delta":{},"logprobs":null,"finish_reason":%s}' % (index, finish)

    def whole_choice(self, choice: WholeChoice) -> bytes:
        return (
            b'{"index":%d,"message":{"role":"assistant","content":%s,"refusal":null},"logprobs":%s,'
            b'"finish_reason":%s}'
            % (choice.index, _encode(choice.text), self._logprobs_of(choice), _encode(choice.finish))
        )

    def whole_extras(self, choices: Sequence[WholeChoice]) -> bytes:
        """A chat has one prompt, and says of it at its top."""
        return _prompt_field(choices[0])


class CompletionForm(AnswerForm):
    id_prefix = b"cmpl-"
    chunk_object = b"text_completion"
    whole_object = b"text_completion"

    def opening(self, index: int) -> bytes:
        return b""

    def choice_frame(self, index: int) -> tuple[bytes, bytes, bytes]:
        return b'{"index":%d,"text":' % index, b',"logprobs":', b',"finish_reason":null}'

    def logprobs(self, tokens: Sequence[ShownToken]) -> bytes:
        return completion_logprobs(tokens)

    def ended_choice(self, index: int, finish: bytes) -> bytes:
        return b'{"index":%d,"text":"","logprobs":null,"finish_reason":%s}' % (index, finish)

    def whole_choice(self, choice: WholeChoice) -> bytes:
        return b'{"index":%d,"text":%s,"logprobs":%s,"finish_reason":%s%s}' % (
            choice.index,
            _encode(choice.text),
            self._logprobs_of(choice),
            _encode(choice.finish),
            _prompt_field(choice),
        )

    def whole_extras(self, choices: Sequence[WholeChoice]) -> bytes:
        return b""


def _prompt_field(choice: WholeChoice) -> bytes:
    """What the tokens of its prompt were worth, if that was asked for."""
    return b"" if choice.prompt is None else b',"prompt_logprobs":' + prompt_logprobs(choice.prompt)


def _usage(usage: Usage) -> bytes:
    return (
        b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,'
        b'"prompt_tokens_details":{"cached_tokens":%d}}'
        % (usage.num_prompt, usage.num_out, usage.num_prompt + usage.num_out, usage.num_cached)
    )
