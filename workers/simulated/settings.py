"""Every setting of a process of simulated workers."""

from typing import Annotated

import msgspec
from msgspec import Meta

from services.admin import AdminSettings
from services.bus import BusSettings
from services.directory import DirectorySettings
from services.logs import LogSettings
from services.mesh_settings import MeshSettings
from services.models.catalog import DEFAULT_MODEL
from services.objects import ObjectSettings
from services.tracing import TraceSettings
from services.work_queue import WorkQueueSettings
from workers.engine.simulated_model import SimulatedModel
from workers.settings import (
    BlockSize,
    PrefillChoice,
    PrefillStepTokens,
    RemoteMinTokens,
    SlowdownWeight,
    WorkerSettings,
)


class SimulateSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table `[simulate]`, and the tables that workers have. How fast they are says `[simulated]`."""

    mesh: MeshSettings = MeshSettings()
    bus: BusSettings = BusSettings()
    directory: DirectorySettings = msgspec.field(default_factory=DirectorySettings)
    logs: LogSettings = LogSettings()
    tracing: TraceSettings = TraceSettings()
    admin: AdminSettings = AdminSettings()
    jobs: WorkQueueSettings = WorkQueueSettings()
    objects: ObjectSettings = ObjectSettings()
    simulated: SimulatedModel = SimulatedModel()

    workers: Annotated[int, Meta(ge=1, description="decode workers in this process")] = 8
    prefill_workers: Annotated[int, Meta(ge=0, description="prefill workers in this process")] = 0
    name: Annotated[
        str, Meta(description="first part of the workers' ids: sim gives sim-0, and sim-prefill-0")
    ] = "sim"
    model: Annotated[
        str,
        Meta(
            description="catalog name, folder or hub name, as for a worker; "
            "a folder needs no weights, and no config.json where context_tokens is set"
        ),
    ] = DEFAULT_MODEL
    context_tokens: Annotated[
        int,
        Meta(ge=0, description="most tokens of a sequence, prompt and answer; 0: as the model's folder says"),
    ] = 0
    num_blocks: Annotated[int, Meta(ge=1, description="blocks of KV in each pool")] = 4096
    block_size: BlockSize = 16
    step_tokens: Annotated[int, Meta(ge=2, description="most tokens computed in one step")] = 2048
    prefill_step_tokens: PrefillStepTokens = 0
    max_sequences: Annotated[int, Meta(ge=1, description="most sequences computed at once, by each")] = 64
    max_waiting: Annotated[
        int, Meta(ge=1, description="most sequences that wait for their turn, at each")
    ] = 512
    remote_min_tokens: RemoteMinTokens = 128
    prefill_choice: PrefillChoice = "predicted"
    slowdown_weight: SlowdownWeight = 1.0
    max_jobs: Annotated[int, Meta(ge=1, description="prefill jobs that each has in hand at once")] = 4
    link_gbit_per_s: Annotated[
        float,
        Meta(gt=0, description="gigabits of KV a second that leave a worker for others of this process"),
    ] = 200.0
    link_latency_s: Annotated[
        float, Meta(ge=0, description="seconds that each transfer of KV takes beside its bytes")
    ] = 0.00002

    @property
    def each(self) -> WorkerSettings:
        """The settings of each of the workers."""
        return WorkerSettings(
            mesh=self.mesh,
            bus=self.bus,
            directory=self.directory,
            jobs=self.jobs,
            objects=self.objects,
            simulated=self.simulated,
            engine="simulated",
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            step_tokens=self.step_tokens,
            prefill_step_tokens=self.prefill_step_tokens,
            max_sequences=self.max_sequences,
            max_waiting=self.max_waiting,
            remote_min_tokens=self.remote_min_tokens,
            prefill_choice=self.prefill_choice,
            slowdown_weight=self.slowdown_weight,
            max_jobs=self.max_jobs,
        )
