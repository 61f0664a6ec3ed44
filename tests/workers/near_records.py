"""Records of log-probabilities that were computed in steps of other shapes, which round differently."""

from collections.abc import Sequence

import pytest

from proto.logprobs import unpack_logprobs

ROUNDING = 1e-4


def assert_near(found: Sequence[bytes], expected: Sequence[bytes]) -> None:
    """
    Raises:
        AssertionError: other tokens were told of, or what they were worth.
    """
    for one, other in zip(found, expected, strict=True):
        assert len(one) == len(other)
        if one:
            left, right = unpack_logprobs(one), unpack_logprobs(other)
            assert left.logprob == pytest.approx(right.logprob, abs=ROUNDING)
            assert left.rank == right.rank
            best = [logprob for _, logprob in right.best]
            assert [logprob for _, logprob in left.best] == pytest.approx(best, abs=ROUNDING)
