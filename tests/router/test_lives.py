"""Which incarnation of a worker is the present one, whatever came late."""

from router.lives import SILENT_S, Lives


def make_lives() -> Lives:
    """A worker whose second life was met after its first."""
    lives = Lives()
    lives.begin("w", "first", 0.0)
    lives.begin("w", "second", 1.0)
    return lives


def test_late_words_of_a_past_life_count_for_nothing_while_the_present_one_reports() -> None:
    lives = make_lives()
    for second in range(2, 20):
        lives.note_report("w", float(second))
        assert not lives.is_new("w", "first")
        assert not lives.is_back("w", "first", second + 0.9)
    assert lives.present("w") == "second"


def test_a_life_that_was_taken_for_past_is_back_when_it_alone_reports() -> None:
    lives = make_lives()
    assert not lives.is_back("w", "first", 1.0 + SILENT_S - 0.1)
    assert lives.is_back("w", "first", 1.0 + SILENT_S)
    lives.begin("w", "first", 1.0 + SILENT_S)
    assert lives.present("w") == "first"
    assert not lives.is_new("w", "second")
    assert not lives.is_back("w", "second", 1.0 + SILENT_S)


def test_a_life_that_was_never_met_is_not_back() -> None:
    assert not make_lives().is_back("w", "third", 100.0)
