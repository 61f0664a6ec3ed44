"""The others, as a process sees them: who could take a prefill job, and how each one's memory is reached."""

from collections.abc import Callable

from proto.reports import AnyBeat, LoadReport
from services.liveness import Liveness
from workers.roles.prefill_view import PrefillView
from workers.transfer.agents import Agents


class Neighbours:
    """One view for all workers of a process, however many. Loop only."""

    def __init__(self, view: PrefillView, agents: Agents) -> None:
        self.view = view
        self.agents = agents
        self._lost_listeners: list[Callable[[str], None]] = []
        self._liveness: Liveness[AnyBeat] | None = None

    def on_lost(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """`listener(process)` when a process beats no more; the result takes it off again."""
        self._lost_listeners.append(listener)
        return lambda: self._lost_listeners.remove(listener)

    def listen(self, liveness: Liveness[AnyBeat]) -> None:
        """Learn from every beat from now on, and from its absence."""
        self._liveness = liveness
        liveness.on_beat(self._hear)
        liveness.on_change(self._note_life)

    def is_lost(self, process: str) -> bool:
        """As `Liveness.is_lost`; nobody is before `listen`."""
        return self._liveness is not None and self._liveness.is_lost(process)

    def _hear(self, _: str, beat: AnyBeat) -> None:
        if isinstance(beat, LoadReport):
            self.view.learn(beat)

    def _note_life(self, process: str, is_alive: bool) -> None:
        """A process beats, for the first time or again; or it beats no more."""
        if is_alive:
            self.agents.regain(process)
            return
        self.view.lose(process)
        for listener in list(self._lost_listeners):
            listener(process)
        self.agents.lose(process)
