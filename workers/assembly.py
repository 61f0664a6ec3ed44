"""How the parts of a worker hang together: wiring, and no I/O."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from proto.cards import ModelCard
from services.bus import Bus
from services.directory import Directory
from services.metrics import Metrics, WorkerMetrics
from services.tracing import Tracing
from services.work_queue import WorkQueue
from workers.bridge import EngineBridge
from workers.control_client import ControlClient
from workers.decode_desk import DecodeDesk, DecodeRules
from workers.door import WorkerDoor
from workers.engine.engine import Engine
from workers.engine.simulated_model import SimulatedTime
from workers.engine.step import SequenceProgress
from workers.event_publisher import EventPublisher
from workers.grammars import GrammarCompiler
from workers.neighbours import Neighbours
from workers.outbox import Outbox
from workers.prefill_desk import PrefillDesk
from workers.reporter import Reporter
from workers.roles.drainer import Drainer
from workers.roles.hand_over import HandOver
from workers.roles.hand_over_giver import HandOverGiver
from workers.roles.hand_over_taker import TakerTools
from workers.roles.held_grants import HeldGrants
from workers.roles.held_job import HolderTools
from workers.roles.lender import Lender
from workers.roles.letting_go import LettingGo
from workers.roles.order_watch import OrderWatch
from workers.roles.patrol import Patrol
from workers.roles.pinned_reads import PinnedReads
from workers.roles.prefill_choice import PrefillRules
from workers.roles.remote_prefill import RemotePrefillLimits, RemotePrefills
from workers.roles.role_switch import RoleSwitch
from workers.roles.term import Term
from workers.settings import WorkerSettings
from workers.transfer.moved import MovedCounter
from workers.transfer.own_memory import OwnMemory
from workers.transfer.peers import Peers


@dataclass(frozen=True, slots=True)
class Ground:
    """What the parts stand on: opened before them, closed after them. `time` is there if simulated,
    `grammars` if not."""

    settings: WorkerSettings
    term: Term
    orders: OrderWatch
    bus: Bus
    directory: Directory
    queue: WorkQueue
    engine: Engine
    bridge: EngineBridge
    memory: OwnMemory
    peers: Peers
    neighbours: Neighbours
    card: ModelCard
    metrics: WorkerMetrics
    tracing: Tracing
    moved: MovedCounter
    time: SimulatedTime | None = None
    grammars: GrammarCompiler | None = None


@dataclass(frozen=True, slots=True)
class Parts:
    """A worker, put together."""

    outbox: Outbox
    publisher: EventPublisher
    lender: Lender
    held: HeldGrants
    patrol: Patrol
    decode_desk: DecodeDesk
    giver: HandOverGiver
    hand_over: HandOver
    drainer: Drainer
    role_switch: RoleSwitch
    prefill_desk: PrefillDesk
    door: WorkerDoor
    reporter: Reporter

    def take_step(self, events: list[SequenceProgress]) -> None:
        """What the engine has done: to those whose sequences moved, and to the routers' view of the cache."""
        self.decode_desk.take_progress(events)
        self.giver.note_step(events)
        self.publisher.note_step()

    def lose(self, process: str) -> None:
        """A process beats no more: nothing is awaited from it, and nothing computed for it."""
        self.lender.lose(process)
        self.prefill_desk.lose(process)

    def lives(self) -> dict[str, Coroutine[None, None, None]]:
        """All of it that goes on while the worker serves, by name."""
        return {
            "outbox": self.outbox.run(),
            "KV events": self.publisher.run(),
            "patrol": self.patrol.run(),
            "decode desk": self.decode_desk.run(),
            "prefill desk": self.prefill_desk.run(),
            "door": self.door.run(),
            "drainer": self.drainer.run(),
            "role switch": self.role_switch.run(),
        }


def assemble(ground: Ground, on_overdue: Callable[[], None]) -> Parts:
    """Args: `on_overdue` is called when blocks are in quarantine for too long."""
    settings, term, engine = ground.settings, ground.term, ground.engine
    ns = settings.mesh.ns
    control = ControlClient(ground.bus, ns)
    held = HeldGrants()
    outbox = Outbox(ground.bus, ns, term.worker, term.incarnation, settings.keep_ended_s)
    publisher = EventPublisher(ground.bus, ns, term.worker, term.incarnation, engine)
    lender = Lender(engine, ground.peers, ground.memory, settings.max_lent_share)
    reads = PinnedReads(engine, control, ground.memory)
    decode_desk = _decode_desk(ground, control, reads, outbox, lender)
    giver = HandOverGiver(
        term, engine, lender, decode_desk.served, settings.hand_over_wait_s, settings.hand_over_pause_s
    )
    prefill_desk = _prefill_desk(ground, control, reads, held)
    hand_over = HandOver(decode_desk.served, outbox, ground.metrics)
    letting_go = LettingGo(hand_over, decode_desk, prefill_desk, lender)
    role_switch = RoleSwitch(term, ground.orders, letting_go, prefill_desk, ground.metrics)
    drainer = Drainer(term, hand_over, prefill_desk, role_switch)
    door = WorkerDoor(
        term,
        decode_desk,
        giver,
        drainer,
        role_switch,
        prefill_desk,
        outbox,
        lender,
        held,
        publisher,
        ground.time,
        ground.tracing,
    )
    return Parts(
        outbox=outbox,
        publisher=publisher,
        lender=lender,
        held=held,
        patrol=Patrol(lender, control, settings.max_quarantine_s, on_overdue),
        decode_desk=decode_desk,
        giver=giver,
        hand_over=hand_over,
        drainer=drainer,
        role_switch=role_switch,
        prefill_desk=prefill_desk,
        door=door,
        reporter=_reporter(ground, decode_desk, prefill_desk, lender, publisher),
    )


def _decode_desk(
    ground: Ground, control: ControlClient, reads: PinnedReads, outbox: Outbox, lender: Lender
) -> DecodeDesk:
    settings, view = ground.settings, ground.neighbours.view
    remote = RemotePrefills(
        settings.mesh.ns,
        ground.engine,
        lender,
        view,
        control,
        ground.queue,
        RemotePrefillLimits(settings.grant_wait_s, settings.landing_wait_s),
        settings.asks_directly,
        ground.tracing,
    )
    return DecodeDesk(
        ground.term,
        ground.card,
        ground.engine,
        outbox,
        view,
        remote,
        _taker_tools(ground, control, reads),
        ground.grammars,
        _decode_rules(ground),
        ground.tracing,
        ground.metrics,
    )


def _reporter(
    ground: Ground,
    decode_desk: DecodeDesk,
    prefill_desk: PrefillDesk,
    lender: Lender,
    publisher: EventPublisher,
) -> Reporter:
    return Reporter(
        ground.term,
        ground.card.name,
        ground.engine,
        decode_desk,
        prefill_desk,
        lender,
        publisher,
        ground.moved,
        ground.settings.mesh.zone,
    )


def _prefill_desk(
    ground: Ground, control: ControlClient, reads: PinnedReads, held: HeldGrants
) -> PrefillDesk:
    tools = HolderTools(
        term=ground.term,
        engine=ground.engine,
        bridge=ground.bridge,
        memory=ground.memory,
        peers=ground.peers,
        control=control,
        reads=reads,
        held=held,
        weights_digest=ground.card.kv_class.weights_digest,
        tracing=ground.tracing,
    )
    settings, model = ground.settings, ground.card.name
    return PrefillDesk(settings.mesh.ns, model, tools, ground.queue, settings.max_jobs, ground.metrics)


def _taker_tools(ground: Ground, control: ControlClient, reads: PinnedReads) -> TakerTools:
    memory = ground.memory
    bulk_blocks = -(-ground.settings.bulk_pull_mib * 2**20 // memory.block_bytes)
    size = memory.block_size
    return TakerTools(
        ground.term, ground.engine, ground.peers, control, reads, size, bulk_blocks, ground.metrics
    )


def _decode_rules(ground: Ground) -> DecodeRules:
    """A prompt with less than a block to compute never goes elsewhere."""
    settings, memory = ground.settings, ground.memory
    prefill = PrefillRules(
        mode=settings.prefill_choice,
        min_tokens=max(settings.remote_min_tokens, memory.block_size),
        slowdown=settings.slowdown_weight,
        zone=settings.mesh.zone,
    )
    return DecodeRules(prefill, memory.block_bytes / memory.block_size, settings.early_cancel_s)


def observe(metrics: Metrics, ground: Ground, parts: Parts) -> None:
    """Gauges that are read when they are scraped, so that they cannot drift."""
    engine, lender = ground.engine, parts.lender
    ground.metrics.observe_queues(
        before_prefill=lambda: engine.load().num_waiting + parts.prefill_desk.num_jobs,
        before_decode=lambda: engine.load().num_awaiting,
        running=lambda: engine.load().num_running,
    )
    ground.metrics.observe_guesses(
        drafted=lambda: engine.load().drafted_tokens, accepted=lambda: engine.load().accepted_tokens
    )
    ground.metrics.observe_blocks(
        total=lambda: engine.settings.num_blocks,
        free=lambda: engine.load().free_blocks,
        active=lambda: engine.load().active_blocks,
        granted=lambda: lender.grants.num_granted_blocks,
        quarantined=lambda: lender.grants.num_quarantined_blocks,
        cached=lambda: engine.load().cached_blocks,
    )
    metrics.observe("engine_steps", "steps computed since the start", lambda: engine.load().num_steps)
    metrics.observe(
        "computed_tokens",
        "tokens that went through the model since the start",
        lambda: engine.load().computed_tokens,
    )
    metrics.observe(
        "preemptions", "sequences that gave their blocks back", lambda: engine.load().num_preemptions
    )
    metrics.observe("role_epoch", "which term of a role it is", lambda: ground.term.epoch)
    metrics.observe("attempts_served", "attempts taken and not ended", lambda: len(parts.decode_desk.served))
    metrics.observe(
        "jobs_in_hand", "remote prefill jobs taken and not ended", lambda: parts.prefill_desk.num_jobs
    )
    metrics.observe(
        "grants", "grants given to others, those in quarantine included", lambda: len(lender.grants)
    )
    metrics.observe("sequences_frozen", "sequences that another worker takes", lambda: parts.giver.num_frozen)
    metrics.observe("grants_held", "grants of others that may still be written here", lambda: len(parts.held))
    metrics.observe("pins", "pins given to others", lambda: len(lender.pins))
    _observe_staging(metrics, ground, lender)
    metrics.observe("streams_kept", "streams kept for resends", lambda: len(parts.outbox))
    metrics.observe("bus_dropped", "messages lost to a full buffer", lambda: ground.bus.num_dropped)
    metrics.observe("bus_expired", "messages dropped as too old", lambda: ground.bus.num_expired)
    metrics.observe("bus_connects", "connections made to the bus", lambda: ground.bus.num_connects)


def _observe_staging(metrics: Metrics, ground: Ground, lender: Lender) -> None:
    strategy, num_blocks = ground.memory.strategy, ground.memory.num_staging_blocks
    metrics.gauge("transfer_strategy", "1 for the way in which KV reaches the pool", ("strategy",)).labels(
        strategy
    ).set(1)
    metrics.observe("staging_blocks", "blocks that others see in place of the pool", lambda: num_blocks)
    metrics.observe(
        "staging_blocks_lent",
        "of these, blocks that others may write or read, or that are being copied",
        lambda: num_blocks - lender.lent.num_free,
    )
