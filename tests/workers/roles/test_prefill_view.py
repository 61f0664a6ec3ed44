"""Who could take a prefill job, while prefill workers come and go."""

from collections.abc import Callable

import pytest

from proto.reports import LoadReport
from proto.roles import Role, WorkerState
from workers.roles.prefill_view import PrefillView

READY = LoadReport("p", "m", "life", 1, Role.PREFILL, WorkerState.READY, prefill_rate=1000.0)


def go_silent(view: PrefillView) -> None:
    view.lose("p")


def drain(view: PrefillView) -> None:
    view.learn(LoadReport("p", "m", "life", 1, Role.PREFILL, WorkerState.DRAINING))


def leave(view: PrefillView) -> None:
    view.learn(LoadReport("p", "m", "life", 1, Role.PREFILL, WorkerState.LEAVING))


def switch_role(view: PrefillView) -> None:
    view.learn(LoadReport("p", "m", "life", 2, Role.DECODE, WorkerState.READY))


@pytest.mark.parametrize("go", [go_silent, drain, leave, switch_role])
def test_prefill_elsewhere_is_on_again_after_fifty_absences(go: Callable[[PrefillView], None]) -> None:
    view = PrefillView("m")
    for _ in range(50):
        view.learn(READY)
        assert view.choose() == READY
        go(view)
        assert view.is_empty
        assert view.choose() is None
    view.learn(READY)
    assert view.wait_s() == 0.0
    assert view.choose() == READY
