"""Who guesses is as the settings say."""

import pytest

from proto.errors import InvalidSetting
from workers.runners import drafting
from workers.settings import WorkerSettings


def test_nobody_guesses_unless_told_to_and_nobody_for_a_simulated_worker() -> None:
    assert drafting(WorkerSettings()) is None
    assert drafting(WorkerSettings(speculative="ngram", engine="simulated")) is None


def test_guesses_are_by_the_sizes_of_the_settings() -> None:
    told = drafting(
        WorkerSettings(speculative="ngram", draft_tokens=5, ngram_min_tokens=2, ngram_max_tokens=3)
    )
    assert told is not None
    assert told.most_drafts == 5
    drafter = told.make_drafter()
    assert drafter is not told.make_drafter(), "each sequence has its own"
    assert drafter.propose([1, 2, 3, 4, 9, 2, 3, 5, 2], 9) == []
    assert drafter.propose([1, 2, 3, 4, 9, 2, 3, 5, 2, 3], 3) == [5, 2, 3]


def test_sizes_that_do_not_fit_each_other_are_refused_by_name() -> None:
    with pytest.raises(InvalidSetting, match="ngram_max_tokens"):
        drafting(WorkerSettings(ngram_min_tokens=4, ngram_max_tokens=3))
