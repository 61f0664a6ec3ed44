"""What workers say tokens are worth, as numbers that JSON has."""

import math

from frontend.text.tokenizer import load_tokenizer
from frontend.token_scores import LEAST_LOGPROB, read_scores
from proto.logprobs import TokenLogprobs, pack_logprobs


def test_a_token_that_cannot_come_is_told_of_by_a_number(tokenizer_json: bytes) -> None:
    record = pack_logprobs([TokenLogprobs(-math.inf, 512, [(7, -0.5), (8, -math.inf)])])
    scores = read_scores(load_tokenizer(tokenizer_json), 9, record)
    assert (scores.own.token, scores.own.logprob, scores.own.rank) == (9, LEAST_LOGPROB, 512)
    assert [(one.token, one.logprob, one.rank) for one in scores.best] == [
        (7, -0.5, 1),
        (8, LEAST_LOGPROB, 2),
    ]
