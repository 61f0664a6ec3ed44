"""One attempt as its frontend sees it: where it was sent, and who shows work on it."""

from enum import Enum, auto

import msgspec

from frontend.requests.actions import Action, Actions, CancelAttempt, CancelQueued


class Phase(Enum):
    PAUSED = auto()
    ROUTING = auto()
    QUEUED = auto()
    SENT = auto()
    ACCEPTED = auto()


class Attempt(msgspec.Struct):
    """`due_at` ends the wait of its phase; an empty name is one not known yet."""

    number: int
    base: int
    phase: Phase
    due_at: float
    worker: str = ""
    router: str = ""
    heard_at: float = 0.0
    is_asking: bool = False
    wants_resend: bool = False
    ask_at: float = 0.0
    failing_since: float | None = None

    def apply_routed(self, worker: str, due_at: float) -> Actions:
        """A router has sent it to `worker`; where another one has it already, that one keeps it."""
        if self.phase is Phase.ROUTING:
            self.phase, self.worker, self.due_at = Phase.SENT, worker, due_at
            return ()
        return () if self.worker == worker else (CancelAttempt(worker, self.number),)

    def accept(self, worker: str, now: float) -> Actions:
        """Binds it to the first worker that shows work on it; another one named is cancelled."""
        named = self.worker
        self.phase, self.worker, self.heard_at = Phase.ACCEPTED, worker, now
        if named and named != worker:
            return (CancelAttempt(named, self.number),)
        return ()

    def is_with(self, process: str) -> bool:
        return self.worker == process and self.phase in (Phase.SENT, Phase.ACCEPTED)

    def cancel(self) -> Actions:
        """Empty while the choice is not known: then the router's reply or the first frame is answered so."""
        found: Action
        if self.phase is Phase.QUEUED:
            found = CancelQueued(self.router, self.number)
        elif self.phase in (Phase.SENT, Phase.ACCEPTED):
            found = CancelAttempt(self.worker, self.number)
        else:
            return ()
        return (found,)
