"""Where the engine's thread meets the event loop: the one file that knows both.

The engine calls `on_step` and `on_layers` in its own thread. Steps are handed to the loop, one call each;
layers go straight to the push of their sequence, so that no byte waits for the loop.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from proto.errors import InternalFault, from_fault
from proto.layout import LayerRange
from workers.engine.step import SequenceProgress, StepOutput
from workers.transfer.push import Push

OnProgress = Callable[[list[SequenceProgress]], None]


class EngineBridge:
    """The engine's listener. Create it on the loop that it serves."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_progress: OnProgress = _ignore
        self._pushes: dict[str, Push] = {}
        self._held: dict[str, asyncio.Future[None]] = {}

    def connect(self, on_progress: OnProgress) -> None:
        """`on_progress` gets, on the loop, what each step did for sequences that no job follows."""
        self._on_progress = on_progress

    @contextmanager
    def following(self, sequence: str, push: Push) -> Iterator["asyncio.Future[None]"]:
        """For the body, layers of `sequence` go to `push`; the future is done once all are computed."""
        held: asyncio.Future[None] = self._loop.create_future()
        self._pushes[sequence] = push
        self._held[sequence] = held
        try:
            yield held
        finally:
            del self._pushes[sequence], self._held[sequence]
            if not held.cancel() and not held.cancelled():
                held.exception()  # looked at, so that the loop does not report one that nobody waited for

    def on_step(self, output: StepOutput) -> None:
        for event in output.events:
            push = self._pushes.get(event.sequence) if event.is_held else None
            if push is not None:
                push.note_computed()
        self._loop.call_soon_threadsafe(self._take, output.events)

    def on_layers(
        self, sequence: str, start: int, end: int, blocks: list[int], rank: int, layers: LayerRange
    ) -> None:
        push = self._pushes.get(sequence)
        if push is not None:
            push.write(rank, start, end, blocks, layers)

    def _take(self, events: list[SequenceProgress]) -> None:
        self._on_progress([event for event in events if not self._is_followed(event)])

    def _is_followed(self, event: SequenceProgress) -> bool:
        held = self._held.get(event.sequence)
        if held is None or held.done():
            return held is not None
        if event.is_held:
            held.set_result(None)
        elif event.fault is not None:
            held.set_exception(from_fault(event.fault))
        else:
            held.set_exception(InternalFault(reason="a prefill ended before it was complete"))
        return True


def _ignore(_: list[SequenceProgress]) -> None:
    """Steps before anybody listens."""
