"""Cores: a thread is kept off the one where another copies, and may run where it might before."""

import os

from workers.transfer.cores import current_core, kept_off


def test_a_thread_runs_on_the_other_cores_for_a_while() -> None:
    allowed = os.sched_getaffinity(0)
    core = current_core()
    assert core in allowed
    with kept_off(core):
        assert os.sched_getaffinity(0) == (allowed - {core} or allowed)
    assert os.sched_getaffinity(0) == allowed


def test_a_thread_that_has_one_core_stays_on_it() -> None:
    allowed = os.sched_getaffinity(0)
    only = min(allowed)
    os.sched_setaffinity(0, {only})
    try:
        with kept_off(only):
            assert os.sched_getaffinity(0) == {only}
    finally:
        os.sched_setaffinity(0, allowed)
