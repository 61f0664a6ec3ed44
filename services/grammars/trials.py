"""Constraints tried in processes of their own before anybody here compiles them, few at a time.

```
 asked ──known──► verdict                     killed: by the kernel, or at the deadline
   │                 ▲                                     ▲
   └─► queue ──► slot: its child compiles ─────────────────┘──► another child for the next
```
While a constraint that no bound of the library helps against takes its seconds, the other slot is free.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from proto.constraints import Constraint, check_size
from proto.errors import InvalidRequest, Overloaded
from services.grammars.trial_slot import TrialSlot

MAX_KNOWN = 4096
NUM_SLOTS = 2
TRIAL_CPU_S = 1
MAX_WAITING = 64


class Trials:
    """Made by `open_trials`. Belongs to one event loop. Keeps the last `MAX_KNOWN` verdicts.

    At most `MAX_WAITING` wait for a verdict, those in trial included; a slot is used when others are busy.
    """

    def __init__(self, cpu_s: int, vocabulary: Sequence[str]) -> None:
        self._verdicts: OrderedDict[bytes, str] = OrderedDict()
        self._slots = [TrialSlot(cpu_s, vocabulary) for _ in range(NUM_SLOTS)]
        self._free = self._slots[::-1]
        self._turns = asyncio.Semaphore(NUM_SLOTS)
        self._in_trial: dict[bytes, asyncio.Event] = {}
        self._num_waiting = 0

    @property
    def is_running(self) -> bool:
        return any(slot.is_running for slot in self._slots)

    async def check(self, constraint: Constraint) -> None:
        """Returns when `constraint` can be compiled, within the bounds of a trial.

        Cancel: a trial that has begun ends with its child.

        Raises:
            InvalidRequest: it cannot, with the library's reason.
            Overloaded: too many wait to be tried.
            DeadlineExceeded, InternalFault: as `TrialSlot.find_verdict`.
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
            while key not in self._verdicts:
                if key in self._in_trial:
                    await self._in_trial[key].wait()
                else:
                    await self._try(key, constraint)
            return self._verdicts[key]
        finally:
            self._num_waiting -= 1

    async def _try(self, key: bytes, constraint: Constraint) -> None:
        """However often it is asked for at once, it takes one slot."""
        ended = self._in_trial[key] = asyncio.Event()
        try:
            async with self._turns:
                slot = self._free.pop()
                try:
                    self._keep(key, await slot.find_verdict(constraint))
                finally:
                    self._free.append(slot)
        finally:
            del self._in_trial[key]
            ended.set()

    def _keep(self, key: bytes, verdict: str) -> None:
        self._verdicts[key] = verdict
        if len(self._verdicts) > MAX_KNOWN:
            self._verdicts.popitem(last=False)

    async def close(self) -> None:
        """The children are killed; others start when they are needed."""
        for slot in self._slots:
            await slot.close()


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
