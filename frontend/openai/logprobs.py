"""Log-probabilities as OpenAI's JSON: of chats, of completions, and of prompts, which is vLLM's extension."""

from collections.abc import Sequence

import msgspec

from frontend.shown_tokens import ShownToken
from frontend.token_scores import TokenScore, TokenScores

_encode = msgspec.json.Encoder().encode


class Alternative(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class ChatToken(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[Alternative]


class ChatLogprobs(msgspec.Struct, frozen=True):
    content: list[ChatToken]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptToken(msgspec.Struct, frozen=True):
    logprob: float
    rank: int
    decoded_token: str


def chat_logprobs(tokens: Sequence[ShownToken]) -> bytes:
    content = [
        ChatToken(*_chat_values(shown.own), [Alternative(*_chat_values(each)) for each in shown.best])
        for shown in tokens
    ]
    return _encode(ChatLogprobs(content))


def completion_logprobs(tokens: Sequence[ShownToken]) -> bytes:
    """Of each token its place in the text; its alternatives always hold the token itself. The first token of
    a prompt that is echoed has none."""
    return _encode(
        CompletionLogprobs(
            tokens=[_completion_name(shown.own) for shown in tokens],
            token_logprobs=[shown.own.logprob if shown.own.rank else None for shown in tokens],
            top_logprobs=[_alternatives(shown) if shown.own.rank else None for shown in tokens],
            text_offset=[shown.start for shown in tokens],
        )
    )


def _alternatives(shown: ShownToken) -> dict[str, float]:
    return {_completion_name(each): each.logprob for each in (*shown.best, shown.own)}


def prompt_logprobs(tokens: Sequence[TokenScores]) -> bytes:
    """The prompt's first token has none: nothing is before it."""
    return _encode(
        [
            None,
            *(
                {
                    each.token: PromptToken(each.logprob, each.rank, _name(each))
                    for each in (*shown.best, shown.own)
                }
                for shown in tokens
            ),
        ]
    )


def _chat_values(score: TokenScore) -> tuple[str, float, list[int]]:
    return _name(score), score.logprob, list(score.spelling)


def _completion_name(score: TokenScore) -> str:
    name = _name(score)
    return name if name.encode() == score.spelling else f"bytes:{name}"


def _name(score: TokenScore) -> str:
    """Its text; a part of a character in escapes, which tell two of them apart."""
    try:
        return score.spelling.decode()
    except UnicodeDecodeError:
        return "".join(f"\\x{byte:02x}" for byte in score.spelling)
