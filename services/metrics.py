"""Metrics: a Prometheus registry per process and its families, one struct a kind of process.

Children are bound to their labels when the struct is made, so that a hot path pays one method call and no
look-up. A gauge that mirrors state is read when it is scraped (`observe`), so it cannot drift.

Units: seconds, bytes, tokens, blocks and requests, as the end of the name says; `_total` counts for ever.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from proto.reports import ProcessKind
from proto.roles import Role

HandOverOutcome = Literal["pulled", "recomputed", "stayed", "sent_on"]
SwitchOutcome = Literal["done", "failed", "taken_back"]

KEPT_EPOCHS = 100
TTFT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
ITL_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
DURATION_BUCKETS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300)


class _CountThere(Collector):
    """A counter that is kept elsewhere."""

    def __init__(self, name: str, text: str, read: Callable[[], float]) -> None:
        self._name = name
        self._text = text
        self._read = read

    def collect(self) -> Iterator[CounterMetricFamily]:
        yield CounterMetricFamily(self._name, self._text, value=self._read())


class Tally(Collector):
    """A histogram that takes many equal observations at once. For one thread; scraped from any."""

    def __init__(self, name: str, text: str, buckets: Sequence[float]) -> None:
        self._name = name
        self._text = text
        self._bounds = tuple(buckets)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, num: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += num
        self._sum += value * num

    def collect(self) -> Iterator[HistogramMetricFamily]:
        ends = [*map(str, map(float, self._bounds)), "+Inf"]
        buckets = list(zip(ends, accumulate(self._counts), strict=True))
        yield HistogramMetricFamily(self._name, self._text, buckets, self._sum)


class Metrics:
    """The registry of one process. Families begin with `kvmesh_`; `kvmesh_process_info` says whose."""

    def __init__(self, kind: ProcessKind, process: str) -> None:
        self.registry = CollectorRegistry()
        self.gauge("process_info", "which process this is", ("kind", "process")).labels(kind, process).set(1)

    def watch_process(self) -> None:
        """Adds what the system knows of this process: memory, processor time, open files."""
        ProcessCollector(registry=self.registry)

    def counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(f"kvmesh_{name}", text, labels, registry=self.registry)

    def gauge(self, name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(f"kvmesh_{name}", text, labels, registry=self.registry)

    def observe(self, name: str, text: str, read: Callable[[], float]) -> None:
        """A gauge whose value is `read()` at each scrape; `read` must be cheap and thread-safe."""
        self.gauge(name, text).set_function(read)

    def observe_count(self, name: str, text: str, read: Callable[[], float]) -> None:
        """As `observe`, of what only ever grows; the name ends in `_total`."""
        self.registry.register(_CountThere(f"kvmesh_{name}", text, read))

    def histogram(
        self, name: str, text: str, buckets: Sequence[float], labels: Sequence[str] = ()
    ) -> Histogram:
        return Histogram(f"kvmesh_{name}", text, labels, buckets=buckets, registry=self.registry)

    def tally(self, name: str, text: str, buckets: Sequence[float]) -> Tally:
        tally = Tally(f"kvmesh_{name}", text, buckets)
        self.registry.register(tally)
        return tally

    def render(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self.registry)


class FrontendMetrics:
    """What clients feel. `finished(reason)` takes a finish reason or an error's code."""

    def __init__(self, metrics: Metrics) -> None:
        self.ttft_s = metrics.histogram(
            "ttft_seconds",
            "from the first byte of a request to its first token, whether that shows at once or not",
            TTFT_BUCKETS_S,
        )
        self.itl_s = metrics.tally(
            "itl_seconds", "between a request's tokens, each token of a frame alike", ITL_BUCKETS_S
        )
        self.duration_s = metrics.histogram(
            "request_seconds", "from the first byte of a request to its end", DURATION_BUCKETS_S
        )
        self.tokens_in = metrics.counter("tokens_in_total", "prompt tokens of accepted requests")
        self.tokens_out = metrics.counter("tokens_out_total", "tokens sent to clients")
        self.cached_tokens = metrics.counter(
            "cached_tokens_total", "prompt tokens whose KV was found, as told to clients"
        )
        self.running = metrics.gauge("requests_running", "requests that have begun and not ended")
        self.side_door_running = metrics.gauge(
            "side_door_requests_running", "requests over NATS that have begun and not ended"
        )
        self.tokenize_kept_bytes = metrics.gauge(
            "tokenize_kept_bytes", "memory for parts of chats and their tokens, of all models"
        )
        self.streams = metrics.gauge("streams_live", "streams of tokens that are awaited from workers")
        self.moves = metrics.counter("request_moves_total", "requests sent on after a worker was lost")
        self.resends = metrics.counter("stream_resends_total", "resends asked of workers after a gap")
        self._finished = metrics.counter("requests_total", "requests ended, by how", ("reason",))

    def finished(self, reason: str) -> None:
        self._finished.labels(reason).inc()


class RouterMetrics:
    """What the choice of workers costs and brings. `decided(outcome)`: sent, queued, or a refusal's code."""

    def __init__(self, metrics: Metrics) -> None:
        self.decision_s = metrics.histogram(
            "route_decision_seconds", "one choice of a worker, hashing included", DURATION_BUCKETS_S
        )
        self.queue_wait_s = metrics.histogram(
            "route_queue_wait_seconds", "time that a queued request waited", DURATION_BUCKETS_S
        )
        self.queue_length = metrics.gauge("route_queue_length", "requests that wait for a worker")
        self.prompt_blocks = metrics.counter("route_prompt_blocks_total", "full blocks of routed prompts")
        self.promised_blocks = metrics.counter(
            "route_promised_hit_blocks_total", "blocks that the index promised on the chosen worker"
        )
        self.running = metrics.gauge("route_requests_running", "requests in hand that have no answer yet")
        self.promised_sequences = metrics.gauge(
            "route_promised_sequences", "choices that no report of their worker includes yet"
        )
        self.promised_tokens = metrics.gauge("route_promised_tokens", "prompt tokens of these choices")
        self.index_blocks = metrics.gauge("route_index_blocks", "blocks in the index, over all workers")
        self.index_bytes = metrics.gauge("route_index_bytes", "memory of the index's table of blocks")
        self.workers = metrics.gauge("route_workers", "workers that may be chosen")
        self.events = metrics.counter("route_kv_events_total", "KV events applied to the index")
        self.snapshots = metrics.counter("route_snapshots_total", "snapshots asked of workers after a gap")
        self._decided = metrics.counter("route_decisions_total", "routed requests, by outcome", ("outcome",))
        self._not_taken = metrics.counter(
            "route_offers_not_taken_total", "offers that a worker did not take, by why", ("reason",)
        )

    def decided(self, outcome: str) -> None:
        self._decided.labels(outcome).inc()

    def not_taken(self, reason: str) -> None:
        """`reason` is an error's code: a small, fixed set."""
        self._not_taken.labels(reason).inc()


class WorkerMetrics:
    """What one engine does. `jobs_served` and `decode_served` prove a role by its work."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.prefill_wait_s = metrics.histogram(
            "remote_prefill_seconds", "from asking for a remote prefill to its landing", TTFT_BUCKETS_S
        )
        self.transfer_s = metrics.histogram(
            "kv_transfer_seconds", "one push or pull, from posting to its end", DURATION_BUCKETS_S
        )
        self.decode_tokens = metrics.counter("decode_tokens_total", "tokens sampled here")
        self.prompt_tokens = metrics.counter("prompt_tokens_total", "prompt tokens of accepted sequences")
        self.hit_tokens = metrics.counter(
            "prefix_hit_tokens_total", "prompt tokens found in the prefix cache"
        )
        self.prefix_hits = metrics.counter("prefix_hits_total", "sequences that found some of their prefix")
        self.bytes_pushed = metrics.counter("kv_bytes_pushed_total", "bytes of KV written to other workers")
        self.bytes_pulled = metrics.counter("kv_bytes_pulled_total", "bytes of KV read from other workers")
        self.decode_served = metrics.counter("decode_served_total", "sequences that ended here as decode")
        self.jobs_served = metrics.counter("prefill_jobs_served_total", "remote prefill jobs done here")
        prefills = metrics.counter("prefills_total", "prefills, by where they were done", ("where",))
        self.local_prefills = prefills.labels("local")
        self.remote_prefills = prefills.labels("remote")
        self._prefill_choices = metrics.counter(
            "prefill_choices_total", "where prompts were to be prefilled, and why", ("where", "reason")
        )
        self._prefill_terms = metrics.histogram(
            "prefill_predicted_seconds",
            "what a prefill's place was chosen by, here and with the best prefill worker",
            TTFT_BUCKETS_S,
            ("term",),
        )
        self.hand_over_stop_s = metrics.histogram(
            "hand_over_stop_seconds", "from a source's stop to its sequence's turn here", TTFT_BUCKETS_S
        )
        self.grammar_wait_s = metrics.histogram(
            "grammar_wait_seconds", "that a sequence waited for its grammar to be compiled", TTFT_BUCKETS_S
        )
        self._hand_overs = metrics.counter(
            "hand_overs_total",
            "sequences pulled or recomputed here after another worker; or that nobody took from here in time "
            "and that stayed, or were sent on without their KV",
            ("outcome",),
        )
        self._served = metrics.counter(
            "served_total", "sequences and jobs that ended here, in each term", ("role", "epoch", "what")
        )
        self._role_switches = metrics.counter(
            "role_switches_total", "orders executed, by the wanted role and how they ended", ("to", "outcome")
        )
        self._role_switch_s = metrics.histogram(
            "role_switch_seconds", "from an order's arrival to the new role", DURATION_BUCKETS_S
        )
        self._jobs_failed = metrics.counter(
            "prefill_jobs_failed_total", "remote prefill jobs that were not done here, by why", ("reason",)
        )

    def prefill_chosen(self, where: Literal["local", "remote"], reason: str) -> None:
        """`reason` is one of the choice's: a small, fixed set."""
        self._prefill_choices.labels(where, reason).inc()

    def prefill_predicted(self, terms_s: Mapping[str, float]) -> None:
        """By the names of the choice's terms: a small, fixed set."""
        for term, predicted_s in terms_s.items():
            self._prefill_terms.labels(term).observe(predicted_s)

    def handed_over(self, outcome: HandOverOutcome, num_sequences: int = 1) -> None:
        self._hand_overs.labels(outcome).inc(num_sequences)

    def note_served(self, role: Role, epoch: int, what: Literal["sequence", "job"]) -> None:
        """What was served `KEPT_EPOCHS` epochs ago is shown no more."""
        self._served.labels(role, epoch, what).inc()
        with suppress(KeyError):
            self._served.remove(role, str(epoch - KEPT_EPOCHS), what)

    def role_switched(self, to: Role, outcome: SwitchOutcome, took_s: float) -> None:
        self._role_switches.labels(to, outcome).inc()
        if outcome == "done":
            self._role_switch_s.observe(took_s)

    def job_failed(self, reason: str) -> None:
        """`reason` is an error's code: a small, fixed set."""
        self._jobs_failed.labels(reason).inc()

    def observe_queues(
        self,
        *,
        before_prefill: Callable[[], float],
        before_decode: Callable[[], float],
        running: Callable[[], float],
    ) -> None:
        """Sequences and jobs whose prompt waits; sequences that wait for decode; sequences in the batch."""
        self._metrics.observe("prefill_queue_length", "prompts that wait for prefill", before_prefill)
        self._metrics.observe("decode_queue_length", "sequences that wait for decode", before_decode)
        self._metrics.observe("sequences_running", "sequences in the batch", running)

    def observe_guesses(self, *, drafted: Callable[[], float], accepted: Callable[[], float]) -> None:
        """Tokens that were guessed and computed, and those of them that became tokens of an answer."""
        self._metrics.observe_count("drafted_tokens_total", "tokens of steps that were guesses", drafted)
        self._metrics.observe_count(
            "accepted_tokens_total", "guesses that were right: tokens without a step of their own", accepted
        )

    def observe_blocks(
        self,
        *,
        total: Callable[[], float],
        free: Callable[[], float],
        active: Callable[[], float],
        granted: Callable[[], float],
        quarantined: Callable[[], float],
        cached: Callable[[], float],
    ) -> None:
        """total = free + active + granted + quarantined; `cached` of the free ones hold reusable KV."""
        self._metrics.observe("blocks", "blocks of the pool", total)
        self._metrics.observe("blocks_free", "blocks that may be taken", free)
        self._metrics.observe("blocks_used", "blocks of running sequences", active)
        self._metrics.observe("blocks_granted", "blocks that another worker may write", granted)
        self._metrics.observe("blocks_quarantined", "blocks that a lost worker might write", quarantined)
        self._metrics.observe("blocks_cached", "free blocks that hold reusable KV", cached)
