"""Answers as OpenAI's JSON, whatever the endpoint: chunks of a stream, and whole objects.

A chunk is a prefix and a suffix made once, around the text: all that is encoded for a token is its text.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import msgspec

from frontend.events import EVENT_END, EVENT_START
from frontend.form import WholeChoice
from frontend.generation import Usage
from frontend.openai.logprobs import prompt_logprobs
from frontend.shown_tokens import ShownToken
from frontend.text_choice import ChoiceFacts

encode_json = msgspec.json.Encoder().encode


class AnswerHead(msgspec.Struct, frozen=True):
    """What all parts of an answer share. `may_call`: there may be calls and no content. Units: `created` in
    seconds of the epoch."""

    request: str
    model: str
    created: int
    shows_usage: bool
    shows_running_usage: bool
    shows_facts: bool
    shows_tier: bool
    may_call: bool


class AnswerForm(ABC):
    """How one endpoint writes an answer; `ChatForm` and `CompletionForm` differ in where the text lies."""

    id_prefix = b""
    chunk_object = b""
    whole_object = b""

    def __init__(self, head: AnswerHead) -> None:
        self._head = head
        self._common = b'"id":"%s%s","created":%d,"model":%s,%s' % (
            self.id_prefix,
            head.request.encode(),
            head.created,
            encode_json(head.model),
            b'"service_tier":"default",' if head.shows_tier else b"",
        )
        self._start = EVENT_START + b'{"object":"%s",%s"choices":[' % (self.chunk_object, self._common)
        self._tail = (b'],"usage":null}' if head.shows_usage else b"]}") + EVENT_END
        self._frames: dict[int, tuple[bytes, bytes, bytes]] = {}

    @property
    def tells_usage_as_it_comes(self) -> bool:
        return self._head.shows_running_usage

    def note_usage(self, usage: Usage) -> None:
        """How far the answer is with the events that are written next."""
        self._tail = b'],"usage":%s}' % _usage(usage) + EVENT_END
        self._frames.clear()

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
        return frame[0] + encode_json(text) + frame[1] + logprobs + frame[2]

    def finish(self, index: int, finish: str, facts: ChoiceFacts) -> bytes:
        """The event that ends a choice."""
        choice = self.ended_choice(index, encode_json(finish))
        return self._start + choice + self._with_facts([facts]) + self._tail[1:]

    def usage(self, usage: Usage) -> bytes:
        """The event with the usage, if it was asked for."""
        if not self._head.shows_usage:
            return b""
        return self._start + b'],"usage":%s}' % _usage(usage) + EVENT_END

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
        return b'],"kvmesh":{"choices":%s}' % encode_json(facts)


def prompt_field(choice: WholeChoice) -> bytes:
    """What the tokens of its prompt were worth, if that was asked for."""
    return b"" if choice.prompt is None else b',"prompt_logprobs":' + prompt_logprobs(choice.prompt)


def _usage(usage: Usage) -> bytes:
    return (
        b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,'
        b'"prompt_tokens_details":{"cached_tokens":%d}%s}'
        % (
            usage.num_prompt,
            usage.num_out,
            usage.num_prompt + usage.num_out,
            usage.num_cached,
            _reasoning_tokens(usage),
        )
    )


def _reasoning_tokens(usage: Usage) -> bytes:
    if usage.num_reasoning is None:
        return b""
    return b',"completion_tokens_details":{"reasoning_tokens":%d}' % usage.num_reasoning
