"""What a caller hears while a model is fetched and converted."""

from typing import Protocol


class Progress(Protocol):
    """Told at the beginning, during and at the end of each step.

    Units: `done` and `total` count one thing per step (bytes, tensors); `total` is 0 while unknown.
    Called from the thread that fetches; what it raises ends the work.
    """

    def __call__(self, step: str, done: int, total: int) -> None: ...


def no_progress(step: str, done: int, total: int) -> None:
    """For callers who do not listen."""
