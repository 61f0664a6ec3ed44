"""The steps of one engine on the event loop, each when its time has come: no thread, and nothing computed.

```
 something to do ─► begin_step ─► … its time passes, others have the loop … ─► end_step ─► begin_step ─► …
```
"""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

from proto.errors import InternalFault, KvmeshError
from workers.engine.engine import Engine
from workers.engine.simulated_model import SimulatedTime
from workers.engine.step import StepPlan

MAX_DEBT_S = 0.05
"""The most that a late step shortens the next ones by: what a machine is too slow for is not made good."""


log = logging.getLogger(__name__)


class Lateness:
    """How far a process is behind the time that it simulates. Units: `late_s` seconds, over all steps."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.late_s = 0.0

    def note(self, late_s: float) -> None:
        self.num_steps += 1
        self.late_s += max(0.0, late_s)


class Pacer:
    """Drives one engine for as long as `run` runs. Belongs to the event loop."""

    def __init__(self, engine: Engine, model_time: SimulatedTime, lateness: Lateness) -> None:
        self._engine = engine
        self._time = model_time
        self._lateness = lateness
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.Handle | None = None
        self._due_s = 0.0

    async def run(self) -> None:
        """For ever.

        Raises:
            InternalFault: the engine has ended.
        """
        self._engine.on_change(self._wake)
        self._wake()
        try:
            await self._ended
        finally:
            self._ended.cancel()
            if self._timer is not None:
                self._timer.cancel()

    def _wake(self) -> None:
        """There may be something to do. While a step is on its way, its end looks anyhow."""
        if self._timer is None and not self._ended.done():
            self._timer = self._loop.call_soon(self._begin_anew)

    def _begin_anew(self) -> None:
        self._due_s = time.monotonic()
        self._step(self._begin)

    def _step(self, step: Callable[[], None]) -> None:
        """An engine that fails ends, with all that it serves: like the thread of one that computes."""
        try:
            step()
        except KvmeshError as error:
            self._fail(error)
        except Exception as error:
            log.exception("a simulated engine ends")
            self._fail(InternalFault(reason=f"a simulated step died of {type(error).__name__}"))

    def _fail(self, error: KvmeshError) -> None:
        self._engine.end(error)
        if not self._ended.done():
            self._ended.set_exception(error)

    def _begin(self) -> None:
        """The next step begins when the last one should have ended, so that the mean is right."""
        plan = self._engine.begin_step()
        if plan is None:
            self._timer = None
            return
        if plan.rows:
            self._due_s += self._time.step_s(plan.rows)
        wait_s = max(0.0, self._due_s - time.monotonic())
        self._timer = self._loop.call_later(wait_s, self._step, partial(self._end, plan))

    def _end(self, plan: StepPlan) -> None:
        now_s = time.monotonic()
        self._lateness.note(now_s - self._due_s)
        self._engine.end_step(plan)
        self._due_s = max(self._due_s, now_s - MAX_DEBT_S)
        self._begin()
