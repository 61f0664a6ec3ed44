"""The thread that an engine computes in: from the entry of the context to its exit, or to its own fault."""

import logging
import threading
from types import TracebackType
from typing import Self

from proto.errors import InternalFault, KvmeshError
from services.niceness import yield_to_others
from workers.engine.engine import Engine

log = logging.getLogger(__name__)


class EngineThread:
    """Runs the steps of `engine` while its context is open.

    A thread that cannot go on ends every sequence with the reason and leaves `engine.is_healthy` False.
    Leaving the context waits for the step in progress, at most `step_stall_s`; sequences that are left get
    no more steps. `niceness` is how much it yields to the other threads of the machine: those that answer and
    move KV have little to do, and should do it at once also where every core computes.
    """

    def __init__(self, engine: Engine, niceness: int = 0) -> None:
        self._engine = engine
        self._niceness = niceness
        # Daemonic: a step that never returns must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> bool:
        """Asks the thread to end and waits for it; whether it has ended. Blocks: not for an event loop."""
        self._engine.stop()
        return self.wait_ended(self._engine.settings.step_stall_s)

    def wait_ended(self, limit_s: float) -> bool:
        """Waits until the thread has ended, by order or by fault; whether it has within `limit_s`. Blocks."""
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        yield_to_others(self._niceness)
        try:
            while not self._engine.is_stopping:
                if not self._engine.step_once():
                    self._engine.wait_work()
        except KvmeshError as error:
            log.error("the engine ends: %s", error)
            self._engine.end(error)
        except Exception as error:
            log.exception("the engine ends")
            self._engine.end(InternalFault(reason=f"the engine thread died of {type(error).__name__}"))
