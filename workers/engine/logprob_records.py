"""Log-probabilities from rows of logits, as the records that travel: see `proto.logprobs`."""

from collections.abc import Sequence

import torch

_OWN_WORDS = 2  # a record's words of 32 bits before its pairs
_WORD_BYTES = 4


def make_records(logits_RV: torch.Tensor, tokens_R: torch.Tensor, num_best: Sequence[int]) -> list[bytes]:
    """For each row the record of its token, with its number of likeliest tokens.

    Args: `logits_RV`: float32, as the model gave them.
    """
    most = max(num_best)
    total_R1 = logits_RV.logsumexp(dim=-1, keepdim=True)
    own_R1 = logits_RV.gather(-1, tokens_R[:, None])
    words_RX = torch.empty((len(num_best), _OWN_WORDS + 2 * most), dtype=torch.int32, device=logits_RV.device)
    words_RX[:, 0:1] = (own_R1 - total_R1).view(torch.int32)
    words_RX[:, 1:2] = 1 + (logits_RV > own_R1).sum(dim=-1, keepdim=True)
    best = logits_RV.topk(most, dim=-1)
    words_RX[:, _OWN_WORDS::2] = best.indices
    words_RX[:, _OWN_WORDS + 1 :: 2] = (best.values - total_R1).view(torch.int32)
    rows = words_RX.cpu().numpy().astype("<i4", copy=False)
    return [
        row.tobytes()[: _WORD_BYTES * (_OWN_WORDS + 2 * count)]
        for row, count in zip(rows, num_best, strict=True)
    ]
