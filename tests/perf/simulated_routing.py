"""Policies beside one another on simulated workers: the highest rate that each sustains, and its hits.

One mesh with a crowd of workers for each policy, alike in all else. A worker stands for a model of eight
billion parameters on one GPU of 300 GB/s and 120 TFLOP/s (an L4): 55 ms a step to read its weights, some
4,000 tokens of a prompt a second at half of its peak, 6 GB for KV. 160 prefixes of 2,048 tokens would fill
nine tenths of the eight pools together; each request adds 128 tokens of its own, and answers 32.
"""

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from services.replay.generators import Shape, shared_prefix, zipf
from services.replay.report import Limits, Report
from services.replay.trace import TraceRequest
from services.servers import start_etcd, start_nats
from tests.mesh.simulated_mesh import SimulatedMesh
from workers.engine.simulated_model import SimulatedModel

POLICIES = ("kv", "round_robin", "least_loaded")
NUM_WORKERS = 8
SPEED = 2.0
CARD = SimulatedModel(
    first_token=4,  # of the tiny tokenizer: letters and digits, so that every token shows at once
    num_tokens=60,
    step_s=0.055,
    sequence_s=0.0002,
    context_token_s=0.0000004,
    prefill_token_s=0.00026,
    jitter=0.05,
    speed_up=SPEED,
)
POOL_BLOCKS = 2860
CONTEXT_TOKENS = 8192
NUM_PREFIXES = 160
PREFIX_BLOCKS = 4  # of a trace: of 512 tokens
OWN_TOKENS = 128
ANSWER_TOKENS = 32
ZIPF_EXPONENT = 1.0
LIMITS = Limits(ttft_s=2.0, itl_s=float("inf"))
SUSTAINED = 0.9  # share of the requests whose TTFT keeps the limit
WARM_RATE, WARM_REQUESTS = 12.0, 240
FIRST_RATE, STEP_UP = 10.0, 1.25
MOST_STEPS = 12
MOST_PLAYS = 3
MOST_LATE_S = 0.2  # p99 of the player; where it is more, a miss says nothing of the policy
PLAY_S = 14.0  # of the trace
UNSHARED_TOKENS, UNSHARED_RATE, UNSHARED_ROUNDS = 1024, 18.0, 3


class Sustained(msgspec.Struct, frozen=True):
    """The highest rate that a policy sustains, and the first that it does not, with its report there."""

    rate: float
    failed_rate: float
    at_failed: Report


class Figures(msgspec.Struct, frozen=True):
    throughput_ratio: float
    hit_ratio: float
    no_sharing_ratio: float


@contextmanager
def crowds(folder: Path) -> Iterator[SimulatedMesh]:
    """A crowd for each policy, under its name, ready."""
    nats, etcd = start_nats(folder / "nats"), start_etcd(folder / "etcd")
    routing = {"policies": [f"{policy}={policy}" for policy in POLICIES]}
    try:
        with SimulatedMesh(folder, nats.url, etcd.url, routing) as mesh:
            for policy in POLICIES:
                mesh.start_crowd(
                    policy,
                    policy,
                    workers=NUM_WORKERS,
                    simulated=CARD,
                    num_blocks=POOL_BLOCKS,
                    context_tokens=CONTEXT_TOKENS,
                )
            mesh.wait_workers(NUM_WORKERS * len(POLICIES))
            yield mesh
    finally:
        etcd.stop()
        nats.stop()


class Bench:
    """Plays traces to the crowds, and tells of each. Prompts of one seed share their prefixes."""

    def __init__(self, mesh: SimulatedMesh) -> None:
        self._mesh = mesh

    async def run(self) -> Figures:
        for policy in ("round_robin", "kv"):
            await self._play(policy, WARM_RATE, uniform(WARM_RATE, WARM_REQUESTS), "warming")
        plain = await self._find_sustained("round_robin", FIRST_RATE)
        at_failed = await self._play_uniform("kv", plain.failed_rate)
        smart = await self._find_sustained("kv", plain.failed_rate * STEP_UP)
        for policy in ("round_robin", "kv"):
            await self._play(policy, plain.failed_rate, popular(plain.failed_rate), "zipf")
        return Figures(
            throughput_ratio=smart.rate / plain.rate,
            hit_ratio=at_failed.hit_rate / plain.at_failed.hit_rate,
            no_sharing_ratio=await self._compare_unshared(),
        )

    async def _find_sustained(self, policy: str, rate: float) -> Sustained:
        """From `rate` upwards; where that is too much already, downwards."""
        sustained = failed = 0.0
        report: Report | None = None
        for _ in range(MOST_STEPS):
            played = await self._play_uniform(policy, rate)
            if played.good_share >= SUSTAINED:
                sustained = rate
            else:
                failed, report = rate, played
            if sustained and report is not None:
                break
            rate = rate / STEP_UP if failed else rate * STEP_UP
        assert report is not None and sustained, f"{policy} sustains any rate, or none"
        print(f"{policy} sustains {sustained:.1f} requests/s, and {failed:.1f} not", flush=True)
        return Sustained(sustained, failed, report)

    async def _play_uniform(self, policy: str, rate: float) -> Report:
        """Again, with other requests, where the limit was missed while the player could not keep time."""
        for seed in range(MOST_PLAYS):
            played = await self._play(policy, rate, uniform(rate, seed=seed), "uniform")
            assert played.late_s is not None
            if played.good_share >= SUSTAINED or played.late_s.p99 < MOST_LATE_S:
                break
        return played

    async def _compare_unshared(self) -> float:
        """Median over rounds of kv's requests within the limit, over those of least_loaded."""
        ratios = []
        for round_ in range(UNSHARED_ROUNDS):
            good = {}
            for policy in ("kv", "least_loaded"):
                trace = unshared(UNSHARED_RATE, round_)
                played = await self._play(policy, UNSHARED_RATE, trace, "unshared", seed=1 + round_)
                good[policy] = played.good_share
            ratios.append(good["kv"] / good["least_loaded"])
        return statistics.median(ratios)

    async def _play(
        self, policy: str, rate: float, trace: Sequence[TraceRequest], kind: str, seed: int = 0
    ) -> Report:
        began_s, spent_s = time.monotonic(), self._mesh.cpu_s("router")
        report = await self._mesh.play(policy, trace, LIMITS, SPEED, seed)
        routing = (self._mesh.cpu_s("router") - spent_s) / (time.monotonic() - began_s)
        print(f"{kind:8s} {policy:12s} {rate:5.1f}/s: {_told(report)}, router {routing:.0%} CPU", flush=True)
        assert report.num_answered == report.num_requests, report.errors
        return report


def uniform(rate: float, num_requests: int = 0, seed: int = 0) -> list[TraceRequest]:
    shape = _shape(rate, num_requests or round(rate * PLAY_S), OWN_TOKENS, seed)
    return shared_prefix(shape, NUM_PREFIXES, PREFIX_BLOCKS)


def popular(rate: float) -> list[TraceRequest]:
    """Some prefixes are asked for much more often than others."""
    return zipf(_shape(rate, round(rate * PLAY_S), OWN_TOKENS), NUM_PREFIXES, PREFIX_BLOCKS, ZIPF_EXPONENT)


def unshared(rate: float, seed: int) -> list[TraceRequest]:
    return shared_prefix(_shape(rate, round(rate * PLAY_S), UNSHARED_TOKENS, seed), 1, 0)


def _shape(rate: float, num_requests: int, own_tokens: int, seed: int = 0) -> Shape:
    """Other moments and other prefixes at every rate."""
    return Shape(num_requests, rate, own_tokens, ANSWER_TOKENS, seed=seed + round(100 * rate))


def _told(report: Report) -> str:
    ttft_s, late_s = report.ttft_s, report.late_s
    assert ttft_s is not None and late_s is not None
    return (
        f"{report.good_share:6.1%} within {LIMITS.ttft_s:g} s,"
        f" TTFT p50 {ttft_s.p50:.2f} p99 {ttft_s.p99:.2f} s,"
        f" hits {report.hit_rate:.1%}, most {max(report.shares.values()):.0%} at one worker,"
        f" player late by {late_s.p99 * 1e3:.0f} ms"
    )


async def measure() -> Figures:
    with tempfile.TemporaryDirectory() as folder, crowds(Path(folder)) as mesh:
        return await Bench(mesh).run()
