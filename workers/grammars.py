"""Where the grammars of a worker are compiled: tried in another process first, then in a thread here."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

from proto.constraints import Constraint
from proto.errors import InvalidRequest, InvalidSetting, KvmeshError
from services.grammars.trials import Trials, open_trials
from services.grammars.vocabulary import Vocabulary
from services.models.folder import ModelFolder
from workers.engine.grammar_state import GrammarState

_T = TypeVar("_T")


class GrammarCompiler:
    """Made by `open_grammar_compiler`. Belongs to one event loop.

    Each sequence gets a matcher of its own (see `Matcher`), compiled one after the other; which constraints
    can be compiled is kept by `trials`. The vocabulary is read when it is first needed.
    """

    def __init__(self, folder: ModelFolder, trials: Trials, thread: ThreadPoolExecutor) -> None:
        self._folder = folder
        self._trials = trials
        self._thread = thread
        self._vocabulary: Vocabulary | None = None

    async def compile(self, state: GrammarState) -> None:
        """`state` has its grammar, or has been refused one.

        Raises:
            InvalidRequest: there is no such grammar, or none for this model.
            KvmeshError: as `Trials.check`.
        """
        try:
            vocabulary = await self._run(self._read_vocabulary, state.constraint)
            await self._trials.check(state.constraint)
            state.load(await self._run(vocabulary.compile, state.constraint))
        except KvmeshError as error:
            state.refuse(error)
            raise

    async def _run(self, work: Callable[[Constraint], _T], constraint: Constraint) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, constraint)

    def _read_vocabulary(self, constraint: Constraint) -> Vocabulary:
        if self._vocabulary is None:
            folder = self._folder
            try:
                self._vocabulary = Vocabulary(folder.tokenizer_path, folder.vocab_size, folder.eos_tokens)
            except InvalidSetting as error:
                reason = f"not with this model: {error}"
                raise InvalidRequest(field=constraint.field, reason=reason) from error
        return self._vocabulary


@asynccontextmanager
async def open_grammar_compiler(folder: ModelFolder) -> AsyncIterator[GrammarCompiler]:
    """For the body. At the end a compilation that runs is waited for: it has a bound."""
    thread = ThreadPoolExecutor(1, thread_name_prefix="grammar compiler")
    async with open_trials(folder.tokenizer_path, folder.vocab_size, folder.eos_tokens) as trials:
        try:
            yield GrammarCompiler(folder, trials, thread)
        finally:
            await asyncio.to_thread(thread.shutdown, cancel_futures=True)
