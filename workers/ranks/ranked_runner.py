"""The runner of a leader: every step is sent to all ranks, and computed by all at once."""

import threading
from collections.abc import Sequence
from functools import partial

from proto.errors import InternalFault
from proto.layout import PoolLayout
from workers.engine.runner import IsWanted, OnLayers, RowResult, RunnerEnded, StepBatch, always_wanted
from workers.engine.torch_runner import TorchRunner, chunks_of
from workers.ranks.apart import RanksApart
from workers.ranks.crew import Crew
from workers.ranks.messages import LayersDone, Step


class RankedRunner:
    """A `Runner` whose own share is `own`, whose answers are those of all: it samples.

    It leaves no step in its midst: the ranks would have to agree on the layer. A rank that fails ends it.
    """

    def __init__(self, own: TorchRunner, pools: Sequence[PoolLayout], crew: Crew) -> None:
        self.dtype = own.dtype
        self.block_size = own.block_size
        self.num_blocks = own.num_blocks
        self.pools: tuple[PoolLayout, ...] = (*own.pools, *pools)
        self._own = own
        self._crew = crew
        self._changed = threading.Condition()
        self._on_layers: OnLayers | None = None
        self._num_untold = 0
        crew.on_fault(self._wake)
        for rank, link in enumerate(crew.links, 1):
            link.on(LayersDone, partial(self._hear, rank))

    def run(
        self, batch: StepBatch, on_layers: OnLayers | None, is_wanted: IsWanted = always_wanted
    ) -> list[RowResult]:
        """See `Runner`. `is_wanted` is not asked. What `on_layers` raises ends the runner.

        A step that has begun and not ended leaves the ranks apart from each other, whatever its reason.
        """
        if not batch.rows:
            return []
        is_whole = False
        try:
            results = self._run(batch, on_layers)
            is_whole = True
        except (InternalFault, RanksApart) as error:
            raise RunnerEnded(str(self._crew.find_cause(error))) from error
        finally:
            if not is_whole:
                self._crew.fail(InternalFault(reason="a step failed in the midst of its ranks"))
        return results

    def _run(self, batch: StepBatch, on_layers: OnLayers | None) -> list[RowResult]:
        self._crew.check()
        self._on_layers = on_layers
        self._num_untold = sum(pool.num_layers for pool in self.pools) if on_layers is not None else 0
        self._crew.send_all(Step(chunks_of(batch), wants_layers=on_layers is not None))
        results = self._own.run(batch, self._tell if on_layers is not None else None)
        with self._changed:
            self._changed.wait_for(lambda: not self._num_untold or self._crew.fault is not None)
            self._on_layers = None
        self._crew.check()
        return results

    def _hear(self, rank: int, done: LayersDone) -> None:
        """In the thread of the link."""
        self._tell(rank, done.first_layer, done.num_layers)

    def _tell(self, rank: int, first_layer: int, num_layers: int) -> None:
        """One at a time."""
        with self._changed:
            if self._on_layers is not None:
                self._on_layers(rank, first_layer, num_layers)
            self._num_untold -= num_layers
            self._changed.notify_all()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
