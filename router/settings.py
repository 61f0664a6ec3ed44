"""Every setting of the router, with its unit and its default."""

import re
from typing import Annotated, cast, get_args

import msgspec
from msgspec import Meta

from router.cost import Weights
from router.event_feed import FeedRules
from router.policy import Policy
from router.snapshots import SnapshotRules
from services.admin import AdminSettings
from services.bus import BusSettings
from services.directory import DirectorySettings
from services.liveness import BeatSettings
from services.logs import LogSettings
from services.mesh_settings import MeshSettings
from services.tracing import TraceSettings

_MODEL_POLICY = re.compile(rf".+=({'|'.join(get_args(Policy))})")


class RouterSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table `[router]`, and the tables that every process shares."""

    mesh: MeshSettings = MeshSettings()
    bus: BusSettings = BusSettings()
    directory: DirectorySettings = DirectorySettings()
    logs: LogSettings = LogSettings()
    tracing: TraceSettings = TraceSettings()
    admin: AdminSettings = AdminSettings()

    policy: Annotated[
        Policy,
        Meta(description="how a worker is chosen: kv, round_robin, random, least_loaded or power_of_two"),
    ] = "kv"
    policies: Annotated[
        list[str], Meta(description="another policy for some models, each as model=policy")
    ] = []
    slowdown_weight: Annotated[
        float, Meta(description="a second that running sequences feel, against a second of waiting", ge=0)
    ] = 1.0
    work_weight: Annotated[
        float, Meta(description="a second of prefill that is to be done, against a second of waiting", ge=0)
    ] = 0.5
    answer_tokens: Annotated[
        int, Meta(description="the most tokens of an answer that the cost foresees", ge=1)
    ] = 128
    remote_min_tokens: Annotated[
        int,
        Meta(
            description="uncached tokens from which prefill goes elsewhere, as workers are set",
            ge=1,
        ),
    ] = 128
    block_shortage_s: Annotated[
        float, Meta(description="seconds added to the cost of a worker that is short of blocks", ge=0)
    ] = 30.0
    assumed_prefill_rate: Annotated[
        float, Meta(description="tokens a second, while no worker of a model has measured its own", gt=0)
    ] = 2000.0
    assumed_decode_step_s: Annotated[
        float,
        Meta(description="seconds a decode step, while no worker of a model has measured its own", gt=0),
    ] = 0.02
    fill_limit: Annotated[
        float, Meta(description="sequences at a worker, over its seats, from which it counts as full", gt=0)
    ] = 1.25
    offer_limit_s: Annotated[
        float, Meta(description="seconds a worker may take to accept a request", gt=0)
    ] = 1.0
    num_offers: Annotated[
        int,
        Meta(description="workers that a request is offered to at most, those not counted that leave", ge=1),
    ] = 4
    suspect_s: Annotated[
        float, Meta(description="seconds that a worker is avoided which did not answer, or is leaving", ge=0)
    ] = 2.0
    promise_ttl_s: Annotated[
        float, Meta(description="seconds that a choice counts which no report and no event confirms", gt=0)
    ] = 10.0
    promise_limit: Annotated[
        int, Meta(description="unconfirmed choices kept for each worker; beyond, the oldest is dropped", ge=1)
    ] = 1024
    queue_limit: Annotated[
        int, Meta(description="requests of a model that may wait here while every worker is full", ge=0)
    ] = 256
    queue_wait_s: Annotated[
        float, Meta(description="longest wait there, in seconds; who would wait longer is refused", gt=0)
    ] = 30.0
    open_limit: Annotated[
        int, Meta(description="requests that are hashed or offered at once; beyond, they are refused", ge=1)
    ] = 1024
    event_grace_s: Annotated[
        float, Meta(description="seconds that a missing KV event may still come by itself", ge=0)
    ] = 0.1
    event_batches: Annotated[
        int, Meta(description="batches of KV events held back for each worker while one is missing", ge=1)
    ] = 1024
    snapshot_page_s: Annotated[
        float, Meta(description="seconds that a page of a snapshot may take", gt=0)
    ] = 2.0
    snapshot_pause_s: Annotated[
        float, Meta(description="longest pause, in seconds, between snapshots of a worker that fail", gt=0)
    ] = 2.0
    snapshots_at_once: Annotated[int, Meta(description="snapshots fetched at once", ge=1)] = 4
    warm_limit_s: Annotated[
        float, Meta(description="seconds that a starting router waits for workers' snapshots", ge=0)
    ] = 4.0

    def __post_init__(self) -> None:
        for entry in self.policies:
            if not _MODEL_POLICY.fullmatch(entry):
                raise ValueError(f"policies: {entry!r} is not model=policy")

    def policy_of(self, model: str) -> Policy:
        """How workers of this model are chosen."""
        chosen = dict(entry.rsplit("=", 1) for entry in self.policies)
        return cast(Policy, chosen.get(model, self.policy))

    @property
    def weights(self) -> Weights:
        return Weights(
            slowdown=self.slowdown_weight,
            work=self.work_weight,
            answer_tokens=self.answer_tokens,
            remote_min_tokens=self.remote_min_tokens,
            shortage_s=self.block_shortage_s,
        )

    @property
    def feed_rules(self) -> FeedRules:
        return FeedRules(
            grace_s=self.event_grace_s, pause_s=self.snapshot_pause_s, max_held=self.event_batches
        )

    @property
    def snapshot_rules(self) -> SnapshotRules:
        return SnapshotRules(page_s=self.snapshot_page_s, num_at_once=self.snapshots_at_once)

    @property
    def beats(self) -> BeatSettings:
        return BeatSettings(interval_s=self.mesh.beat_s, lost_after_s=self.mesh.lost_after_s)
