"""What `kvmesh up` is told: the table `[up]`."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from proto.cards import ReasoningParserName, ToolParserName
from services.mesh_settings import MeshSettings
from services.models.catalog import DEFAULT_MODEL

NumSlices = Annotated[
    int,
    Meta(
        description="of each such worker, see worker.tp; on GPUs name the first of each worker, as "
        "cuda:0,cuda:2: its other ranks are on those after it",
        ge=1,
        le=64,
    ),
]
NumStages = Annotated[int, Meta(description="of each such worker, see worker.pp", ge=1, le=64)]


class UpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mesh on this machine, as one launcher starts it."""

    mesh: MeshSettings = MeshSettings()
    model: Annotated[
        str, Meta(description="name of the catalog, folder in Hugging Face form, or hub name (org/name)")
    ] = DEFAULT_MODEL
    prefill: Annotated[
        str,
        Meta(description="prefill workers: how many, or where: cuda:0-3 (one a GPU), cpu:0-1,cpu:2 (cores)"),
    ] = "1"
    decode: Annotated[str, Meta(description="decode workers, as prefill; at least one")] = "1"
    prefill_tp: NumSlices = 1
    prefill_pp: NumStages = 1
    decode_tp: NumSlices = 1
    decode_pp: NumStages = 1
    engine: Annotated[
        Literal["torch", "simulated"], Meta(description="what computes: the model, or a stated timing of it")
    ] = "torch"
    tool_parser: Annotated[
        ToolParserName,
        Meta(
            description="how the model writes calls of tools: none, hermes (Qwen too), llama3 or mistral; "
            "auto: as worker.tool_parser says"
        ),
    ] = "auto"
    reasoning_parser: Annotated[
        ReasoningParserName,
        Meta(description="how it writes thoughts: none, think; auto: as worker.reasoning_parser says"),
    ] = "auto"
    host: Annotated[str, Meta(description="address that the frontends listen on")] = "127.0.0.1"
    port: Annotated[int, Meta(description="their port, which they share", ge=1, le=65535)] = 8000
    state: Annotated[str, Meta(description="folder for servers' data, logs and mesh.json")] = ".state"
    nats: Annotated[str, Meta(description="URL of a NATS to use; empty: start one")] = ""
    etcd: Annotated[str, Meta(description="host:port of an etcd to use; empty: start one")] = ""
    nats_port: Annotated[
        int, Meta(description="port of the NATS that is started; 0: a free one", ge=0, le=65535)
    ] = 0
    etcd_port: Annotated[
        int, Meta(description="port of the etcd that is started; 0: a free one", ge=0, le=65535)
    ] = 0
    frontends: Annotated[int, Meta(description="number of frontends", ge=1, le=64)] = 1
    routers: Annotated[int, Meta(description="number of routers", ge=1, le=64)] = 1
    planner: Annotated[
        bool, Meta(description="start a planner, which changes workers' roles as the load asks for it")
    ] = False
    ready_limit_s: Annotated[
        float, Meta(description="seconds that loading and connecting may take until all are ready", gt=0)
    ] = 300.0
