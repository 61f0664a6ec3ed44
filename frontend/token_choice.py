"""One choice of an answer in tokens: those of a request as they are, without the text that they spell."""

from frontend.shown_tokens import ShownToken
from frontend.text_choice import Piece, TextChoice
from frontend.token_scores import TokenScore, TokenScores, read_scores


class TokenChoice(TextChoice):
    """As `TextChoice`, but that each token is shown for itself, at once; the one that stops it is not."""

    def _take_token(self, token: int) -> Piece:
        scores = self._scores(token)
        return Piece(self.index, "", tokens=[ShownToken(0, scores.own, scores.best)])

    def _end_piece(self) -> Piece:
        return Piece(self.index, "")

    def _scores(self, token: int) -> TokenScores:
        """Of a token alone, unless its log-probability was asked for."""
        if self._rules.num_best is None:
            return TokenScores(TokenScore(token, b"", 0.0, 0), [])
        return read_scores(self._tokenizer, token, self.live.state.records[self.num_out - 1])
