"""Every setting of a worker."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from proto.cards import ReasoningParserName, ToolParserName
from proto.roles import Role
from services.admin import AdminSettings
from services.bus import BusSettings
from services.directory import DirectorySettings
from services.logs import LogSettings
from services.mesh_settings import MeshSettings
from services.objects import ObjectSettings
from services.tracing import TraceSettings
from services.work_queue import WorkQueueSettings
from workers.engine.drafter import SpeculativeName
from workers.engine.simulated_model import SimulatedModel
from workers.engine.torch_settings import DtypeName, WeightsName
from workers.roles.prefill_choice import PrefillMode
from workers.transfer.transfer_settings import TransferSettings

Dtype = Annotated[
    DtypeName,
    Meta(
        description="auto, float32, bfloat16 or float16, of what is computed and of KV; "
        "auto: as the weights are stored, where the device computes in it, else float32"
    ),
]
Weights = Annotated[
    WeightsName,
    Meta(
        description="full: weights in dtype; int8: on a CPU, matrices in 8 bits and what they multiply in 16"
    ),
]
TensorParallel = Annotated[
    int,
    Meta(
        ge=1,
        le=64,
        description="ranks among which heads and columns of each layer are divided; "
        "KV heads are held by several where there are fewer",
    ),
]
PipelineParallel = Annotated[
    int,
    Meta(
        ge=1,
        le=64,
        description="stages among which the layers are divided; tp * pp processes, on devices from device on",
    ),
]
PoolShare = Annotated[
    float,
    Meta(
        ge=0,
        lt=1,
        description="share of the device's memory that is free once the weights are loaded, for the pool; "
        "0: pool_mib says it",
    ),
]
ToolParser = Annotated[
    ToolParserName,
    Meta(
        description="how the model writes calls of tools: none, hermes (Qwen too), llama3 or mistral; "
        "auto: as its chat template shows"
    ),
]
ReasoningParser = Annotated[
    ReasoningParserName,
    Meta(description="how it writes thoughts: none, think; auto: as its chat template shows"),
]
BlockSize = Annotated[
    int, Meta(ge=1, description="tokens a block; of a multiple of 16 the KV moves in the largest pieces")
]
Speculative = Annotated[
    SpeculativeName,
    Meta(
        description="off, or ngram: what followed the last tokens where they came before in the same text is "
        "guessed to follow again, and several tokens a step are tried where that is likely to pay"
    ),
]
RemoteMinTokens = Annotated[
    int, Meta(ge=0, description="uncached tokens from which a prompt is prefilled elsewhere")
]
PrefillChoice = Annotated[
    PrefillMode,
    Meta(
        description="predicted: prefilled elsewhere where the first token comes sooner by it; "
        "threshold: always, from remote_min_tokens on"
    ),
]
SlowdownWeight = Annotated[
    float,
    Meta(ge=0, description="a second that each running sequence loses to a prefill, against one of waiting"),
]
PrefillStepTokens = Annotated[
    int,
    Meta(
        ge=0,
        description="most tokens of a step in which nothing decodes, as on a prefill worker; "
        "at least step_tokens",
    ),
]


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One worker: what it runs, where, and how much it takes."""

    mesh: MeshSettings = MeshSettings()
    bus: BusSettings = BusSettings()
    directory: DirectorySettings = msgspec.field(default_factory=DirectorySettings)
    logs: LogSettings = LogSettings()
    tracing: TraceSettings = TraceSettings()
    admin: AdminSettings = AdminSettings()
    jobs: WorkQueueSettings = WorkQueueSettings()
    objects: ObjectSettings = ObjectSettings()
    transfer: TransferSettings = msgspec.field(default_factory=TransferSettings)
    simulated: SimulatedModel = SimulatedModel()

    name: Annotated[str, Meta(description="id of this worker; empty: one made at start")] = ""
    role: Annotated[Role, Meta(description="role at start: prefill or decode")] = Role.DECODE
    model: Annotated[
        str, Meta(description="catalog name, local Hugging Face folder, or hub name org/name")
    ] = "smollm2-135m"
    tool_parser: ToolParser = "auto"
    reasoning_parser: ReasoningParser = "auto"
    engine: Annotated[
        Literal["torch", "simulated"], Meta(description="torch, or simulated: time from [simulated]")
    ] = "torch"
    device: Annotated[str, Meta(description="torch device, such as cpu or cuda:0")] = "cpu"
    dtype: Dtype = "float32"
    weights: Weights = "full"
    threads: Annotated[
        int,
        Meta(
            ge=1,
            description="threads that torch computes with on a CPU, of all ranks together; "
            "each has one at least",
        ),
    ] = 1
    tp: TensorParallel = 1
    pp: PipelineParallel = 1
    rank_silent_s: Annotated[
        float,
        Meta(
            ge=1,
            description="seconds without a sign of life from a rank that end its worker; "
            "at most half of directory.lease_ttl_s",
        ),
    ] = 5.0
    niceness: Annotated[
        int,
        Meta(
            ge=0,
            le=19,
            description="how much the computing yields to other threads on its cores, as those that answer "
            "and move KV; 0: not at all",
        ),
    ] = 5
    num_blocks: Annotated[
        int, Meta(ge=0, description="blocks of KV in the pool; 0: as many as pool_share or pool_mib holds")
    ] = 0
    pool_share: PoolShare = 0.0
    pool_mib: Annotated[
        int, Meta(ge=1, description="size of the pool in MiB, where num_blocks and pool_share are 0")
    ] = 512
    block_size: BlockSize = 16
    step_tokens: Annotated[int, Meta(ge=2, description="most tokens computed in one step")] = 256
    prefill_step_tokens: PrefillStepTokens = 0
    speculative: Speculative = "off"
    draft_tokens: Annotated[
        int, Meta(ge=1, le=64, description="most tokens that are guessed for a sequence in a step")
    ] = 8
    ngram_min_tokens: Annotated[
        int, Meta(ge=1, description="last tokens that must have come before for a guess")
    ] = 3
    ngram_max_tokens: Annotated[
        int, Meta(ge=1, description="of several such places, tokens that are compared to choose the best")
    ] = 8
    max_sequences: Annotated[int, Meta(ge=1, description="most sequences computed at once")] = 64
    max_waiting: Annotated[int, Meta(ge=1, description="most sequences that wait for their turn")] = 512
    step_stall_s: Annotated[float, Meta(gt=0, description="seconds after which a step counts as hung")] = 30.0
    remote_min_tokens: RemoteMinTokens = 128
    prefill_choice: PrefillChoice = "predicted"
    slowdown_weight: SlowdownWeight = 1.0
    asks_directly: Annotated[
        bool, Meta(description="ask the best prefill worker before a job goes to the queue")
    ] = True
    grant_wait_s: Annotated[
        float, Meta(gt=0, description="seconds that a job may wait for its taker to ask for the grant")
    ] = 5.0
    landing_wait_s: Annotated[
        float, Meta(gt=0, description="seconds from the offer of a job until its KV must have landed")
    ] = 60.0
    max_jobs: Annotated[int, Meta(ge=1, description="prefill jobs in hand at once")] = 4
    max_lent_share: Annotated[
        float, Meta(gt=0, le=1, description="share of the pool that may be granted or in quarantine")
    ] = 0.75
    hand_over_wait_s: Annotated[
        float, Meta(gt=0, description="seconds that a sequence stands still for a taker that is silent")
    ] = 10.0
    hand_over_pause_s: Annotated[
        float,
        Meta(
            gt=0,
            description="seconds that all sequences of a worker that lets go of them stand still, once the "
            "first is taken, for those who take the others",
        ),
    ] = 0.5
    bulk_pull_mib: Annotated[
        int,
        Meta(
            ge=0,
            description="MiB of KV from which on a sequence is read from another worker while that still "
            "decodes it; less is read at once when it has stopped there",
        ),
    ] = 32
    max_quarantine_s: Annotated[
        float, Meta(gt=0, description="seconds in quarantine after which this worker starts anew")
    ] = 600.0
    push_kib: Annotated[
        int,
        Meta(
            ge=1,
            description="least KiB of a head in 16 tokens that leave at once while others compute",
        ),
    ] = 128
    early_cancel_s: Annotated[
        float, Meta(gt=0, description="seconds that a cancel of a request not seen yet is remembered")
    ] = 10.0
    keep_ended_s: Annotated[
        float, Meta(gt=0, description="seconds that an ended stream waits for its acknowledgement")
    ] = 60.0
