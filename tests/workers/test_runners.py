"""How many ranks compute, and who guesses, is as the settings say."""

import pytest

from proto.errors import InvalidSetting
from services.directory import DirectorySettings
from workers.ranks.grid import Grid
from workers.runners import drafting, grid_of
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


def test_a_silent_rank_is_not_borne_for_longer_than_its_worker_may_be_listed() -> None:
    short = DirectorySettings(lease_ttl_s=6)
    assert grid_of(WorkerSettings(tp=2, pp=3)) == Grid(2, 3)
    assert grid_of(WorkerSettings(tp=2, rank_silent_s=3.0, directory=short)) == Grid(tp=2)
    assert grid_of(WorkerSettings(rank_silent_s=60.0, directory=short)) == Grid(), "one rank is never silent"
    with pytest.raises(InvalidSetting, match=r"rank_silent_s: 5 is over half of directory\.lease_ttl_s"):
        grid_of(WorkerSettings(pp=2, directory=short))


def test_what_is_simulated_has_one_rank() -> None:
    with pytest.raises(InvalidSetting, match=r"worker\.tp"):
        grid_of(WorkerSettings(engine="simulated", pp=2))
