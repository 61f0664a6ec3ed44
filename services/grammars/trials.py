"""Constraints tried in a process of their own before anybody here compiles them, one at a time.

```
 asked ──known──► verdict                     killed: by the kernel, or at the deadline
   │                 ▲                                     ▲
   └─► queue ──► child: compiles ──────────────────────────┘──► another child for the next
```
"""

import asyncio
import hashlib
import signal
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from proto.codec import encode
from proto.constraints import Constraint, check_size
from proto.errors import DeadlineExceeded, InternalFault, InvalidRequest, Overloaded
from services.grammars.trial import TRIAL_BYTES
from services.grammars.trial_child import TrialChild, start_trial_child

MAX_KNOWN = 4096
NUM_TRIES = 2
TRIAL_CPU_S = 3
MAX_WAITING = 64
TRIAL_LIMIT_S = 60.0
"""How long one may take by the clock: for a machine that stands still. What bounds it is `TRIAL_CPU_S`."""


class Trials:
    """Made by `open_trials`. Belongs to one event loop. Keeps the last `MAX_KNOWN` verdicts.

    At most `MAX_WAITING` wait for a verdict, the one in trial included; the child starts with the first.
    """

    def __init__(self, cpu_s: int, vocabulary: Sequence[str]) -> None:
        self._cpu_s = cpu_s
        self._vocabulary = vocabulary
        self._verdicts: OrderedDict[bytes, str] = OrderedDict()
        self._turn = asyncio.Lock()
        self._num_waiting = 0
        self._child: TrialChild | None = None

    @property
    def is_running(self) -> bool:
        return self._child is not None

    async def check(self, constraint: Constraint) -> None:
        """Returns when `constraint` can be compiled, within the bounds of a trial.

        Cancel: a trial that has begun ends with its child.

        Raises:
            InvalidRequest: it cannot, with the library's reason.
            Overloaded: too many wait to be tried.
            DeadlineExceeded: no verdict after `TRIAL_LIMIT_S`.
        """
        check_size(constraint)
        key = hashlib.blake2b(f"{constraint.kind} {constraint.text}".encode(), digest_size=16).digest()
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = await self._wait_verdict(key, constraint)
        self._verdicts.move_to_end(key)
        if verdict:
            raise InvalidRequest(field=constraint.field, reason=verdict)

    async def _wait_verdict(self, key: bytes, constraint: Constraint) -> str:
        if self._num_waiting >= MAX_WAITING:
            raise Overloaded(reason=f"{self._num_waiting} constraints wait to be tried", retry_after_s=1)
        self._num_waiting += 1
        try:
            async with self._turn:
                if key not in self._verdicts:
                    self._keep(key, await self._try(constraint))
                return self._verdicts[key]
        finally:
            self._num_waiting -= 1

    def _keep(self, key: bytes, verdict: str) -> None:
        self._verdicts[key] = verdict
        if len(self._verdicts) > MAX_KNOWN:
            self._verdicts.popitem(last=False)

    async def _try(self, constraint: Constraint) -> str:
        verdict = None
        try:
            async with asyncio.timeout(TRIAL_LIMIT_S):
                for _ in range(NUM_TRIES):
                    verdict = await self._ask(encode(constraint))
                    if verdict is not None:
                        return verdict
        except TimeoutError as error:
            raise DeadlineExceeded(what="the trial of a constraint", limit_s=TRIAL_LIMIT_S) from error
        finally:
            if verdict is None:
                await self.close()  # half asked, it would answer the next one wrongly
        raise InternalFault(reason="the process that tries constraints is killed again and again")

    async def _ask(self, message: bytes) -> str | None:
        """The verdict; None when somebody has killed the child, which says nothing of the constraint."""
        child = self._child or await self._start()
        verdict = await asyncio.to_thread(child.ask, message)
        if verdict is not None:
            return verdict
        code = await asyncio.to_thread(child.wait_ended, TRIAL_LIMIT_S)
        await self.close()
        if code is None or code == -signal.SIGKILL:
            return None
        if code == -signal.SIGXCPU:
            return f"it takes more than {self._cpu_s} s to compile"
        return f"it takes more than {TRIAL_BYTES >> 20} MiB to compile, or the grammar library fails on it"

    async def _start(self) -> TrialChild:
        """
        Raises:
            InternalFault: it ended at once.
        """
        self._child = child = start_trial_child(self._cpu_s, self._vocabulary)
        if not await asyncio.to_thread(child.wait_ready):
            raise InternalFault(reason="no process to try constraints in can be started")
        return child

    async def close(self) -> None:
        """The child is killed; another one starts when it is needed."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            await asyncio.to_thread(child.end)


@asynccontextmanager
async def open_trials(
    tokenizer_path: Path | None = None,
    vocab_size: int = 0,
    eos_tokens: Sequence[int] = (),
    *,
    cpu_s: int = TRIAL_CPU_S,
) -> AsyncIterator[Trials]:
    """Trials for the body, over the tokens of a model, or for no model in particular.

    Units: `cpu_s` whole seconds of the processor for each.
    """
    vocabulary = [] if tokenizer_path is None else [tokenizer_path, vocab_size, *eos_tokens]
    trials = Trials(cpu_s, [str(each) for each in vocabulary])
    try:
        yield trials
    finally:
        await trials.close()
