"""Log-probabilities as OpenAI's JSON: of chats, of completions, and of prompts, which is vLLM's extension."""

from collections.abc import Sequence

import msgspec

from frontend.shown_tokens import ShownToken, TokenScore

_LEAST_LOGPROB = -9999.0
"""OpenAI's "very unlikely": JSON has no infinity."""

_encode = msgspec.json.Encoder().encode


class _Alternative(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class _ChatToken(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[_Alternative]


class _ChatLogprobs(msgspec.Struct, frozen=True):
    content: list[_ChatToken]
    refusal: None = None


class _CompletionLogprobs(msgspec.Struct, frozen=True):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class _PromptToken(msgspec.Struct, frozen=True):
    logprob: float
    rank: int
    decoded_token: str


def chat_logprobs(tokens: Sequence[ShownToken]) -> bytes:
    content = [
        _ChatToken(*_chat_values(shown.own), [_Alternative(*_chat_values(each)) for each in shown.best])
        for shown in tokens
    ]
    return _encode(_ChatLogprobs(content))


def completion_logprobs(tokens: Sequence[ShownToken]) -> bytes:
    """Of each token its place in the text; its alternatives always hold the token itself."""
    return _encode(
        _CompletionLogprobs(
            tokens=[_completion_name(shown.own) for shown in tokens],
            token_logprobs=[_logprob(shown.own) for shown in tokens],
            top_logprobs=[
                {_completion_name(each): _logprob(each) for each in (*shown.best, shown.own)}
                for shown in tokens
            ],
            text_offset=[shown.start for shown in tokens],
        )
    )


def prompt_logprobs(tokens: Sequence[ShownToken]) -> bytes:
    """The prompt's first token has none: nothing is before it."""
    return _encode(
        [
            None,
            *(
                {
                    each.token: _PromptToken(_logprob(each), each.rank, _name(each))
                    for each in (*shown.best, shown.own)
                }
                for shown in tokens
            ),
        ]
    )


def _chat_values(score: TokenScore) -> tuple[str, float, list[int]]:
    return _name(score), _logprob(score), list(score.spelling)


def _completion_name(score: TokenScore) -> str:
    name = _name(score)
    return name if name.encode() == score.spelling else f"bytes:{name}"


def _name(score: TokenScore) -> str:
    """Its text; a part of a character in escapes, which tell two of them apart."""
    try:
        return score.spelling.decode()
    except UnicodeDecodeError:
        return "".join(f"\\x{byte:02x}" for byte in score.spelling)


def _logprob(score: TokenScore) -> float:
    return max(score.logprob, _LEAST_LOGPROB)
