"""What the launcher tells people: bars and spinners on a terminal, plain lines anywhere else."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn


class Narrator:
    """One console; `say` and `step` come from the main thread, a bar from whichever thread fetches."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def say(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Says that `what` is being done, and how long it took; a failure is its caller's to tell."""
        began = time.monotonic()
        if self.console.is_terminal:
            with self.console.status(f"{what} …"):
                yield
        else:
            self.say(f"{what} ...")
            yield
        self.say(f"{what}: done in {time.monotonic() - began:.1f} s")

    @contextmanager
    def bars(self) -> Iterator["StepBars | StepLines"]:
        """A `services.models.progress.Progress` for the time of the body."""
        if not self.console.is_terminal:
            yield StepLines(self)
            return
        columns = (
            TextColumn("{task.description:<10}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self.console) as progress:
            yield StepBars(progress)


class StepBars:
    """A bar for each step."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bars: dict[str, TaskID] = {}

    def __call__(self, step: str, done: int, total: int) -> None:
        if step not in self._bars:
            self._bars[step] = self._progress.add_task(step, total=total or None)
        self._progress.update(self._bars[step], completed=done, total=total or None)


class StepLines:
    """A line when a step begins, and one when it has come to its end."""

    def __init__(self, narrator: Narrator) -> None:
        self._narrator = narrator
        self._begun: set[str] = set()
        self._ended: set[str] = set()

    def __call__(self, step: str, done: int, total: int) -> None:
        if step not in self._begun:
            self._begun.add(step)
            self._narrator.say(f"{step} ...")
        if 0 < total <= done and step not in self._ended:
            self._ended.add(step)
            self._narrator.say(f"{step}: done")
