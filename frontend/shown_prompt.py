"""A prompt as an answer may show it: its text, and what its tokens were worth."""

from collections.abc import Sequence

from frontend.shown_tokens import ShownToken
from frontend.text.detokenizer import Detokenizer
from frontend.text.tokenizer import TextTokenizer
from frontend.token_scores import TokenScore, TokenScores, read_scores
from proto.logprobs import split_records


class ShownPrompt:
    """`text` is as the client gave it; where it gave tokens, that of the tokens."""

    def __init__(self, tokenizer: TextTokenizer, tokens: Sequence[int], text: str | None) -> None:
        self.num_tokens = len(tokens)
        self._tokenizer = tokenizer
        self._tokens = tokens
        self._text = text

    @property
    def text(self) -> str:
        if self._text is None:
            detokenizer = Detokenizer(self._tokenizer)
            self._text = detokenizer.push(self._tokens) + detokenizer.flush()
        return self._text

    def scores(self, records: bytes, num_best: int) -> list[TokenScores]:
        """Of all tokens but the first. `records` may tell of more alternatives than are wanted.

        Raises:
            InternalFault: there are no records.
        """
        tokens = self._tokens[1:]
        found = [
            read_scores(self._tokenizer, token, record)
            for token, record in zip(tokens, split_records(records, len(tokens)), strict=True)
        ]
        return [TokenScores(one.own, one.best[:num_best]) for one in found]

    def shown_tokens(self, records: bytes, num_best: int) -> list[ShownToken]:
        """All tokens, where they stand in the text; those that it does not show stand where they would."""
        first = self._tokens[0]
        unknown = TokenScores(TokenScore(first, self._tokenizer.spelling(first), 0.0, 0), [])
        scores = [unknown, *self.scores(records, num_best)]
        shown, start, detokenizer = [], 0, Detokenizer(self._tokenizer)
        for token, score in zip(self._tokens, scores, strict=True):
            shown.append(ShownToken(start, score.own, score.best))
            piece = detokenizer.push((token,))
            start += len(piece) if self.text.startswith(piece, start) else 0
        return shown
