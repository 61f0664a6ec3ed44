"""Every setting of the frontend, with its unit and its default."""

from typing import Annotated

import msgspec
from msgspec import Meta

from frontend.requests.stream_hub import HubRules
from frontend.requests.stream_rules import StreamRules
from frontend.side_door.door_rules import DoorRules
from frontend.text.tokenize_pool import TokenizeLimits
from services.admin import AdminSettings
from services.bus import BusSettings
from services.directory import DirectorySettings
from services.liveness import BeatSettings
from services.logs import LogSettings
from services.mesh_settings import MeshSettings
from services.objects import ObjectSettings
from services.tracing import TraceSettings


class FrontendSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table `[frontend]`, and the tables that it shares."""

    mesh: MeshSettings = MeshSettings()
    bus: BusSettings = BusSettings()
    directory: DirectorySettings = msgspec.field(default_factory=DirectorySettings)
    objects: ObjectSettings = ObjectSettings()
    logs: LogSettings = LogSettings()
    tracing: TraceSettings = TraceSettings()
    admin: AdminSettings = AdminSettings()

    host: Annotated[str, Meta(description="address that the OpenAI API listens on")] = "127.0.0.1"
    port: Annotated[int, Meta(description="its port; 0: a free one", ge=0, le=65535)] = 8000
    shares_port: Annotated[
        bool,
        Meta(description="other frontends on this host may listen on the same port, each taking its share"),
    ] = False
    side_door: Annotated[
        bool, Meta(description="OpenAI's API over NATS, on kvmesh.{ns}.openai.* and kvmesh.{ns}.tokens")
    ] = True
    side_door_beat_s: Annotated[
        float, Meta(description="seconds without a word before a client on NATS gets a sign of life", gt=0)
    ] = 2.0
    side_door_askers: Annotated[
        int, Meta(description="questions of what the service on NATS is that may wait; beyond, dropped", ge=1)
    ] = 256
    kserve: Annotated[
        bool, Meta(description="KServe's v2 protocol, as Triton speaks it, on the same port under /v2")
    ] = True
    body_limit_bytes: Annotated[int, Meta(description="largest body of a request", ge=1024)] = 4 * 2**20
    body_limit_s: Annotated[
        float, Meta(description="seconds that a client may take to send its body", gt=0)
    ] = 30.0
    request_limit_s: Annotated[float, Meta(description="seconds that a request may take in all", gt=0)] = (
        600.0
    )
    live_limit: Annotated[int, Meta(description="requests at once; beyond, they are refused", ge=1)] = 4096
    tokenize_short_chars: Annotated[
        int, Meta(description="characters below which a prompt is tokenised at once, in no thread", ge=0)
    ] = 2048
    tokenize_threads: Annotated[int, Meta(description="threads that apply templates and tokenise", ge=1)] = 2
    tokenize_long_threads: Annotated[
        int, Meta(description="threads, and processes, that do so for long prompts: no short one waits", ge=1)
    ] = 1
    tokenize_long_chars: Annotated[
        int, Meta(description="characters from which on a prompt is a long one", ge=1)
    ] = 32_768
    tokenize_kept_bytes: Annotated[
        int, Meta(description="memory for parts of a model's chats and their tokens; 0: none", ge=0)
    ] = 16 * 2**20
    kept_models: Annotated[
        int, Meta(description="models whose tokenizer and template are kept; others are read again", ge=1)
    ] = 64
    tokenize_queue: Annotated[
        int, Meta(description="prompts of each kind that may wait for it; beyond, they are refused", ge=1)
    ] = 256
    tokenize_limit_s: Annotated[
        float, Meta(description="seconds that one prompt may wait for its tokens", gt=0)
    ] = 30.0
    text_files_limit_s: Annotated[
        float,
        Meta(description="seconds that reading a model's tokenizer from the object store may take", gt=0),
    ] = 20.0
    route_limit_s: Annotated[
        float, Meta(description="seconds that a router may take to answer before another is asked", gt=0)
    ] = 3.0
    accept_limit_s: Annotated[
        float, Meta(description="seconds from a router's choice to the worker's first frame", gt=0)
    ] = 2.0
    queued_limit_s: Annotated[
        float, Meta(description="least seconds that a request queued at a router is left there", gt=0)
    ] = 60.0
    silence_limit_s: Annotated[
        float, Meta(description="seconds without a word of a request before a resend is asked", gt=1)
    ] = 3.0
    resend_limit_s: Annotated[
        float, Meta(description="seconds of unanswered resends before the request moves on", gt=0)
    ] = 5.0
    outage_limit_s: Annotated[
        float, Meta(description="seconds that a running request outlives an outage of the bus", gt=0)
    ] = 60.0
    reroute_limit_s: Annotated[
        float, Meta(description="seconds of vain attempts, no token coming, before a request fails", gt=0)
    ] = 30.0
    lost_limit: Annotated[
        int, Meta(description="lost workers that a request survives; 0: it fails with its first", ge=0)
    ] = 3

    @property
    def beats(self) -> BeatSettings:
        return BeatSettings(interval_s=self.mesh.beat_s, lost_after_s=self.mesh.lost_after_s)

    @property
    def tokenize_limits(self) -> TokenizeLimits:
        return TokenizeLimits(
            short_chars=self.tokenize_short_chars,
            num_threads=self.tokenize_threads,
            num_long_threads=self.tokenize_long_threads,
            long_chars=self.tokenize_long_chars,
            max_waiting=self.tokenize_queue,
            kept_models=self.kept_models,
        )

    @property
    def door_rules(self) -> DoorRules:
        return DoorRules(self.body_limit_bytes, self.live_limit, self.side_door_beat_s, self.side_door_askers)

    @property
    def hub_rules(self) -> HubRules:
        stream = StreamRules(
            accept_s=self.accept_limit_s,
            queued_s=self.queued_limit_s,
            silence_s=self.silence_limit_s,
            resend_s=self.resend_limit_s,
            outage_s=self.outage_limit_s,
            reroute_s=self.reroute_limit_s,
            max_lost=self.lost_limit,
        )
        return HubRules(stream, route_s=self.route_limit_s, tick_s=0.1, max_live=self.live_limit)
