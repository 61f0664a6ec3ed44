"""Signs of life: every process's each second, a worker's with its load."""

from typing import Literal

from proto.codec import Decoder
from proto.roles import Role, WorkerState
from proto.struct import WireStruct
from proto.traffic import ModelTraffic

ProcessKind = Literal["frontend", "router", "worker", "planner", "launcher"]


class Beat(WireStruct, frozen=True, tag="beat"):
    """Of every process that is no worker. `traffic`: a frontend's, of each model that was asked for there."""

    process: str
    kind: ProcessKind
    incarnation: str
    is_leaving: bool = False
    traffic: list[ModelTraffic] = []


class LoadReport(WireStruct, frozen=True, tag="load"):
    """A worker's beat: what it carries, how fast it is, and what it has heard.

    Units: `prefill_rate` uncached prompt tokens a second while prefilling; `decode_step_s` seconds from token
    to token of a sequence, `push_bytes_per_s` bytes of KV written to others (0 until measured, for all
    three); `waiting_tokens` prompt tokens promised and not yet computed here, `job_tokens` those of remote
    prefill jobs taken, which are not among them; `jobs_taken` counts the jobs that this includes, since the
    start, `num_served` the sequences and jobs that ended here in this epoch, `change` as in the card. Blocks:
    total = free + active + granted + quarantined, and `cached_blocks` of the free ones hold reusable KV.
    `decisions` maps a router to the number of its last decision that this report includes; `last_event` is
    the number of the last KV event published.
    """

    worker: str
    model: str
    incarnation: str
    epoch: int
    role: Role
    state: WorkerState
    num_running: int = 0
    num_waiting: int = 0
    waiting_tokens: int = 0
    num_jobs: int = 0
    job_tokens: int = 0
    max_sequences: int = 0
    total_blocks: int = 0
    free_blocks: int = 0
    cached_blocks: int = 0
    granted_blocks: int = 0
    quarantined_blocks: int = 0
    prefill_rate: float = 0.0
    decode_step_s: float = 0.0
    hit_tokens: int = 0
    prompt_tokens: int = 0
    last_event: int = 0
    decisions: dict[str, int] = {}
    push_bytes_per_s: float = 0.0
    jobs_taken: int = 0
    zone: str = ""
    change: int = 0
    num_served: int = 0


AnyBeat = Beat | LoadReport
BEATS = Decoder[AnyBeat](AnyBeat)


def process_of(beat: AnyBeat) -> str:
    return beat.worker if isinstance(beat, LoadReport) else beat.process
