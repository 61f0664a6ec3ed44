"""The shape of every answer, as it is documented: the forms write it by hand, and tests hold them to it."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from frontend.openai.logprobs import ChatLogprobs, CompletionLogprobs, PromptToken
from frontend.text_choice import ChoiceFacts

FinishReason = Literal["stop", "length"]
ChatFinishReason = Literal["stop", "length", "tool_calls"]
PromptTokens = list[dict[str, PromptToken] | None]


class PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    """Of a model that tells its reasoning apart."""

    reasoning_tokens: int


class UsageObject(msgspec.Struct, frozen=True):
    """Units: tokens; those of a prompt count once for all its choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class KvmeshObject(msgspec.Struct, frozen=True):
    """On request: who served each choice, and how."""

    choices: list[ChoiceFacts]


class _Common(msgspec.Struct, frozen=True, kw_only=True):
    """Units: `created` in seconds of the epoch."""

    id: str
    created: int
    model: str
    service_tier: Literal["default"] | UnsetType = UNSET
    kvmesh: KvmeshObject | UnsetType = UNSET


class CalledFunction(msgspec.Struct, frozen=True):
    """`arguments` is JSON text, as the model wrote it."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True):
    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(msgspec.Struct, frozen=True):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason


class ChatCompletion(_Common, frozen=True, kw_only=True):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: UsageObject
    prompt_logprobs: PromptTokens | UnsetType = UNSET


class FunctionDelta(msgspec.Struct, frozen=True):
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolCallDelta(msgspec.Struct, frozen=True):
    """A call begins with its id, its type and its name, and goes on with more of its arguments."""

    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class ChatDelta(msgspec.Struct, frozen=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason | None


class ChatChunk(_Common, frozen=True, kw_only=True):
    """An event of a stream. The last one before `[DONE]` has the usage and no choice, if it was asked for."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: UsageObject | UnsetType | None = UNSET


class CompletionChoice(msgspec.Struct, frozen=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason
    prompt_logprobs: PromptTokens | UnsetType = UNSET


class Completion(_Common, frozen=True, kw_only=True):
    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: UsageObject


class CompletionChunkChoice(msgspec.Struct, frozen=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None


class CompletionChunk(_Common, frozen=True, kw_only=True):
    """As `ChatChunk`."""

    object: Literal["text_completion"]
    choices: list[CompletionChunkChoice]
    usage: UsageObject | UnsetType | None = UNSET
