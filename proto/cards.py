"""What lies in the directory: who is there, and what they can do."""

from typing import Literal

from proto.layout import PoolLayout
from proto.roles import Role, WorkerState
from proto.struct import WireStruct

ToolParserName = Literal["auto", "none", "hermes", "llama3", "mistral"]
ReasoningParserName = Literal["auto", "none", "think"]
Strategy = Literal["direct", "host"]
"""How KV reaches a pool: `direct`, or `host`: through memory of its host that peers see in its place."""


class KvClass(WireStruct, frozen=True):
    """What must be equal for two workers to share KV blocks, and for a router to hash for both.

    Units: `block_size` in tokens.
    """

    weights_digest: str
    dtype: str
    block_size: int


class TextFiles(WireStruct, frozen=True):
    """What turns text into tokens and back, by digest in the object store.

    `chat_template` is empty for a model that has none.
    """

    tokenizer: str
    chat_template: str = ""
    bos_token: str = ""
    eos_token: str = ""


class ModelCard(WireStruct, frozen=True):
    """A model as the mesh serves it; the first worker to serve it publishes the card.

    `tool_parser` and `reasoning_parser` say how it writes calls of tools and thoughts: a `ToolParserName` and
    a `ReasoningParserName`, or one of a later version, which is as good as `none`; `auto`: as its chat
    template shows. Units: `context_tokens` counts prompt and answer together.
    """

    name: str
    kv_class: KvClass
    text: TextFiles
    context_tokens: int
    vocab_size: int
    eos_tokens: list[int]
    created_s: int = 0
    tool_parser: str = "auto"
    reasoning_parser: str = "auto"


class WorkerCard(WireStruct, frozen=True):
    """A worker, as it registers. The newest of card and report wins, see `roles.newness`.

    Units: `max_sequences` sequences at once, `num_blocks` blocks in its pool; `change` counts the changes of
    role and state in this life. `strategy`, how others reach its KV, is a `Strategy` or a later one.
    """

    worker: str
    model: str
    role: Role
    epoch: int
    incarnation: str
    state: WorkerState
    kv_class: KvClass
    num_blocks: int
    max_sequences: int
    host: str = ""
    zone: str = ""
    hardware: str = ""
    change: int = 0
    strategy: str = "direct"


class ProcessIdentity(WireStruct, frozen=True):
    """Names one life of one process so well that its end can be proven from the same host.

    A process is gone when boot and PID namespace are ours and no process with this pid and start time is
    left. Units: `start_ticks` in clock ticks since boot. Source: proc(5), `/proc/[pid]/stat` field 22.
    """

    boot_id: str
    pid_namespace: str
    pid: int
    start_ticks: int


class AgentCard(WireStruct, frozen=True):
    """How to reach a worker's memory: NIXL metadata and pool of each rank.

    `process` is that of the first rank, which speaks for the worker; `followers` are those of the others.
    """

    worker: str
    incarnation: str
    process: ProcessIdentity
    ranks: list["RankAgent"]
    followers: list[ProcessIdentity] = []

    @property
    def processes(self) -> list[ProcessIdentity]:
        """All that may write into memory of others: a worker is gone when each of them is."""
        return [self.process, *self.followers]


class RankAgent(WireStruct, frozen=True):
    """One rank's NIXL agent: its name, its metadata as NIXL serialises it, its pool."""

    agent: str
    metadata: bytes
    pool: PoolLayout


class Presence(WireStruct, frozen=True):
    """A frontend, a router or a planner that is there."""

    process: str
    incarnation: str
    host: str = ""
    url: str = ""
