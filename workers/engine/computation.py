"""The part of a step outside the lock: the runner's call, its time, its layers, its failures."""

import logging
import time
from collections.abc import Callable
from functools import partial

from proto.errors import Fault, InternalFault, to_fault
from proto.layout import LayerRange
from workers.engine.block_ledger import BlockLedger
from workers.engine.engine_settings import EngineSettings
from workers.engine.grammar_masks import GrammarMasks
from workers.engine.outcome import Outcome, abandon, fail, take_in
from workers.engine.rates import Rates
from workers.engine.runner import OnLayers, RowResult, Runner, RunnerEnded, StepAbandoned, StepBatch
from workers.engine.sequence import SequenceKind
from workers.engine.step import EngineListener, StepPlan

log = logging.getLogger(__name__)


TakeIn = Callable[[StepPlan, BlockLedger], Outcome]
"""What a step that was run means for its sequences; called under the engine's lock."""


class Computation:
    """Runs steps, one at a time. `num_failed` counts those that raised since the last that did not."""

    def __init__(
        self, runner: Runner, settings: EngineSettings, listener: EngineListener, rates: Rates
    ) -> None:
        self.num_failed = 0
        self._runner = runner
        self._settings = settings
        self._listener = listener
        self._rates = rates
        self._masks = GrammarMasks()
        self._began_s = 0.0

    @property
    def stall(self) -> Fault | None:
        """What is wrong when a step has not returned for `step_stall_s`."""
        began_s = self._began_s
        if not began_s or time.monotonic() - began_s <= self._settings.step_stall_s:
            return None
        return to_fault(InternalFault(reason=f"a step takes over {self._settings.step_stall_s} s"))

    def begin(self) -> None:
        """A step has begun: its time counts from here."""
        self._began_s = time.monotonic()

    def run(self, plan: StepPlan) -> TakeIn:
        """Runs the step. That the runner raises is its bug, which must not end the loop.

        Raises:
            InternalFault: the runner has ended.
        """
        try:
            results = self._compute(plan)
        except StepAbandoned:
            return abandon
        except RunnerEnded as error:
            raise InternalFault(reason=str(error)) from error
        except Exception:
            log.exception("a step of %d sequences failed", len(plan.rows))
            self.num_failed += 1
            return fail
        finally:
            took_s, self._began_s = time.monotonic() - self._began_s, 0.0
        if plan.rows:
            self.num_failed = 0
            self._note(plan, results, took_s)
        return partial(take_in, results)

    def _note(self, plan: StepPlan, results: list[RowResult], took_s: float) -> None:
        if plan.prefill_tokens:
            self._rates.note_prefill(plan.prefill_tokens, took_s)
            return
        given = [len(result.tokens) for result in results if result.tokens]
        self._rates.note_decode(plan.num_tokens, sum(given) / len(given) if given else 1.0, took_s)

    def _compute(self, plan: StepPlan) -> list[RowResult]:
        if not plan.rows:
            return []
        with self._masks.filling(plan) as masks:
            batch = StepBatch(plan.rows, masks)
            return self._runner.run(batch, self._layers_callback(plan), lambda: plan.is_wanted)

    def _layers_callback(self, plan: StepPlan) -> OnLayers | None:
        """Tells the listener which KV of which PREFILL is there; None when the step has no such row."""
        size = self._settings.block_size
        spans = []
        for row, sequence in zip(plan.rows, plan.sequences, strict=True):
            if sequence.spec.kind is SequenceKind.PREFILL:
                end = row.start + len(row.tokens)
                spans.append((sequence, row.start, end, row.blocks[row.start // size : -(-end // size)]))
        if not spans:
            return None

        def on_layers(rank: int, first_layer: int, num_layers: int) -> None:
            for sequence, start, end, blocks in spans:
                if not sequence.is_cancelled:
                    self._listener.on_layers(
                        sequence.name, start, end, blocks, rank, LayerRange(first_layer, num_layers)
                    )

        return on_layers
