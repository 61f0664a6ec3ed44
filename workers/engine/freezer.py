"""Sequences that stop where they are: asked for at any time, frozen between two steps."""

from workers.engine.scheduler import Scheduler
from workers.engine.sequence import Sequence, SequenceState
from workers.engine.step import SequenceProgress

_FREEZABLE = (SequenceState.AWAITING, SequenceState.WAITING, SequenceState.RUNNING)


class Freezer:
    """Under the engine's lock. A frozen sequence keeps its blocks and is off the scheduler until it thaws."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._asked: list[Sequence] = []

    def ask(self, sequence: Sequence) -> None:
        """Freeze `sequence` before the next step; one that is frozen is said to be so once more."""
        self._asked.append(sequence)

    @property
    def asked(self) -> set[str]:
        """Names of those that are to be frozen before the next step."""
        return {each.name for each in self._asked}

    def freeze_asked(self) -> list[SequenceProgress]:
        """Before a step is planned. Those that have ended meanwhile, or were called back, say nothing."""
        asked, self._asked = self._asked, []
        return [SequenceProgress(each.name, is_frozen=True) for each in asked if self._freeze(each)]

    def thaw(self, sequence: Sequence) -> bool:
        """Let it wait for its turn, ahead of its equals since its KV lies idle; False if it is not frozen."""
        self._asked = [each for each in self._asked if each is not sequence]
        if sequence.state is not SequenceState.FROZEN:
            return False
        sequence.is_landed = sequence.num_computed > 0
        self._scheduler.enqueue(sequence)
        return True

    def _freeze(self, sequence: Sequence) -> bool:
        if sequence.state in _FREEZABLE:
            self._scheduler.remove(sequence)
            sequence.state = SequenceState.FROZEN
        return sequence.state is SequenceState.FROZEN
