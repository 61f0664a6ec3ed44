"""A leader in this process with followers that are processes of their own."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from services.logs import LogSettings
from tests.workers.engine.tiny_torch import TINY_TORCH
from workers.engine.runner import RunnerEnded, SampleParams, ScheduledSequence, StepBatch
from workers.ranks.crew import Crew
from workers.ranks.grid import Grid
from workers.ranks.rank_loading import Around, load_ranked_runner
from workers.ranks.ranked_runner import RankedRunner

LIMIT_S = 60.0
SILENT_S = 6.0
AROUND = Around("tiny", 5, LIMIT_S, LogSettings())


class Led(NamedTuple):
    """A runner of many ranks."""

    runner: RankedRunner
    crew: Crew


@contextmanager
def started(grid: Grid) -> Iterator[Crew]:
    """Followers that were told nothing yet."""
    crew = Crew(grid, SILENT_S)
    crew.start()
    try:
        yield crew
    finally:
        crew.end()


@contextmanager
def led(grid: Grid, folder: Path) -> Iterator[Led]:
    with started(grid) as crew:
        yield Led(
            load_ranked_runner(folder, TINY_TORCH, crew, Around("tiny", 5, LIMIT_S, LogSettings())), crew
        )


class Decoding:
    """A thread that runs one step after the other, until the runner has ended."""

    def __init__(self, runner: RankedRunner) -> None:
        self.reason = ""
        self.is_under_way = threading.Event()
        self._runner = runner
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait_ended(self) -> str:
        """Why it has."""
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()
        return self.reason

    def _run(self) -> None:
        row = ScheduledSequence([7], 0, [3], SampleParams(), 1)
        try:
            while True:
                self._runner.run(StepBatch([row]), None)
                self.is_under_way.set()
        except RunnerEnded as error:
            self.reason = str(error)
