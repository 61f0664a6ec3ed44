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
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from proto.codec import encode
from proto.constraints import Constraint, check_size
from proto.errors import DeadlineExceeded, InternalFault, InvalidRequest, Overloaded
from services.child import bound_command
from services.grammars.trial import LENGTH_BYTES, TRIAL_BYTES

TRIAL_MODULE = "services.grammars.trial"
MAX_KNOWN = 4096
NUM_TRIES = 2
TRIAL_CPU_S = 3
MAX_WAITING = 64
TRIAL_LIMIT_S = 60.0
"""How long one may take by the clock: for a machine that stands still. What bounds it is `TRIAL_CPU_S`."""


class Trials:
    """Made by `open_trials`. Belongs to one event loop. Keeps the last `MAX_KNOWN` verdicts.

    At most `MAX_WAITING` wait for their turn; the child starts with the first.
    """

    def __init__(self, cpu_s: int, vocabulary: Sequence[str]) -> None:
        self._cpu_s = cpu_s
        self._vocabulary = vocabulary
        self._verdicts: OrderedDict[bytes, str] = OrderedDict()
        self._turn = asyncio.Lock()
        self._num_waiting = 0
        self._child: asyncio.subprocess.Process | None = None

    @property
    def num_waiting(self) -> int:
        """Those in trial included."""
        return self._num_waiting

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
                    verdict = await self._ask(self._child or await self._start(), encode(constraint))
                    if verdict is not None:
                        return verdict
        except TimeoutError as error:
            raise DeadlineExceeded(what="the trial of a constraint", limit_s=TRIAL_LIMIT_S) from error
        finally:
            if verdict is None:
                await self.close()  # half asked, it would answer the next one wrongly
        raise InternalFault(reason="the process that tries constraints is killed again and again")

    async def _ask(self, child: asyncio.subprocess.Process, message: bytes) -> str | None:
        """The verdict; None when somebody has killed the child, which says nothing of the constraint."""
        assert child.stdin is not None
        try:
            child.stdin.write(len(message).to_bytes(LENGTH_BYTES, "big") + message)
            return (await _read(child)).decode()
        except (asyncio.IncompleteReadError, ConnectionError):
            self._child = None
        code = await child.wait()
        if code == -signal.SIGKILL:
            return None
        if code == -signal.SIGXCPU:
            return f"it takes more than {self._cpu_s} s to compile"
        return f"it takes more than {TRIAL_BYTES >> 20} MiB to compile, or the grammar library fails on it"

    async def _start(self) -> asyncio.subprocess.Process:
        """
        Raises:
            InternalFault: it ended at once.
        """
        self._child = child = await asyncio.create_subprocess_exec(
            *bound_command([sys.executable, "-P", "-m", TRIAL_MODULE, str(self._cpu_s), *self._vocabulary]),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            await _read(child)
        except asyncio.IncompleteReadError as error:
            raise InternalFault(reason="no process to try constraints in can be started") from error
        return child

    async def close(self) -> None:
        """The child is killed; another one starts when it is needed."""
        child, self._child = self._child, None
        if child is not None:
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()


async def _read(child: asyncio.subprocess.Process) -> bytes:
    """The next message of `child`.

    Raises:
        IncompleteReadError: it has ended.
    """
    assert child.stdout is not None
    length = int.from_bytes(await child.stdout.readexactly(LENGTH_BYTES), "big")
    return await child.stdout.readexactly(length)


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
