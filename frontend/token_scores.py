"""What a worker says tokens are worth, as a client is told of it."""

import msgspec

from frontend.text.tokenizer import TextTokenizer
from proto.errors import InternalFault, InvalidRequest
from proto.logprobs import unpack_logprobs

LEAST_LOGPROB = -9999.0
"""OpenAI's "very unlikely", of a token that cannot come: JSON has no infinity."""


class TokenScore(msgspec.Struct, frozen=True):
    """A token and its log-probability. `spelling` is its text, which may be a part of a character.

    `rank` 0: nothing is before it, so it has none.
    """

    token: int
    spelling: bytes
    logprob: float
    rank: int


class TokenScores(msgspec.Struct, frozen=True):
    """A token, and the likeliest in its place, the best first."""

    own: TokenScore
    best: list[TokenScore]


def read_scores(tokenizer: TextTokenizer, token: int, record: bytes) -> TokenScores:
    """
    Raises:
        InternalFault: there is no record, though it was asked for.
    """
    try:
        found = unpack_logprobs(record)
    except InvalidRequest as error:
        raise InternalFault(reason=f"a worker gave no log-probability: {error}") from error
    ranked = enumerate(found.best, start=1)
    return TokenScores(
        _score(tokenizer, token, found.logprob, found.rank),
        [_score(tokenizer, one, logprob, rank) for rank, (one, logprob) in ranked],
    )


def _score(tokenizer: TextTokenizer, token: int, logprob: float, rank: int) -> TokenScore:
    return TokenScore(token, tokenizer.spelling(token), max(logprob, LEAST_LOGPROB), rank)
