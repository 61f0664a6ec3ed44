"""Eight simulated workers under long prompts: all decode with chunked prefill, or some prefill for the rest.

The shape is that of eight billion parameters on one GPU of 3.3 TB/s and a peak of 990 TFLOP/s: 6 ms a step,
20,000 tokens of a prompt a second where it begins and half of that at token 32,768, 131 KB of KV a token,
34 GB for KV, links of 200 Gbit/s. Prompts and answers are as long as those of the Mooncake trace on average,
7,500 and 180 tokens, and nobody shares one. The goodput of a mesh is the most requests a second that kept
both limits, TTFT and the mean between the tokens of the answer, over the rates that were tried: these go up,
and a mesh that becomes no better, or is far behind the best of its kind, is not tried at the next.

It is the whole path: HTTP, frontend, router, NATS, etcd, and eight workers of one process, at `SPEED` times
the stated speed. Each line tells what frontend, router and workers took of a core and how late steps ended:
where that is not small beside a step, the machine was too slow for the figures.
"""

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from services.replay.generators import Shape, shared_prefix
from services.replay.http_call import parse_url
from services.replay.player import Pace
from services.replay.report import Limits, Report, make_report
from services.replay.session import Played, Target, Terms, play_all
from services.replay.trace import TraceRequest
from services.servers import start_etcd, start_nats
from tests.mesh.simulated_mesh import SimulatedMesh
from workers.engine.simulated_model import SimulatedModel

NUM_WORKERS = 8
SPEED = 1.0
MODEL = SimulatedModel(
    first_token=4,  # of the tiny tokenizer: letters and digits, so that every token shows at once
    num_tokens=60,
    num_layers=32,
    num_kv_heads=8,
    head_dim=64,  # of four bytes: as many as 128 of two
    jitter=0.05,
    speed_up=SPEED,
)
PREFILL_STEP_TOKENS = 2048
POOL_BLOCKS = 16384
CONTEXT_TOKENS = 32768
PROMPT_TOKENS, ANSWER_TOKENS = 7500, 180
LIMITS = Limits(ttft_s=2.0, itl_s=0.0125)
LOOSE = Limits(ttft_s=2.0, itl_s=0.05)
FIRST_RATE, STEP_UP, MOST_RATES = 7.0, 1.3, 4
PLAY_S = 9.0  # of the trace
LEFT_BEHIND = 0.85  # of the best of its kind


@dataclass
class Contender:
    """A mesh of eight. Units: requests a second within `LIMITS`, and within `LOOSE`, its best so far."""

    name: str
    num_prefill: int
    step_tokens: int
    good_per_s: float = 0.0
    loose_per_s: float = 0.0

    def take(self, rate: float, report: Report, loose: Report) -> bool:
        """Whether it has become better by either."""
        good_per_s, loose_per_s = rate * report.good_share, rate * loose.good_share
        is_better = good_per_s > self.good_per_s or loose_per_s > self.loose_per_s
        self.good_per_s = max(self.good_per_s, good_per_s)
        self.loose_per_s = max(self.loose_per_s, loose_per_s)
        return is_better


@dataclass
class Kind:
    """Contenders of whom the best counts. Those in `running` are tried at the next rate."""

    name: str
    running: list[Contender]
    all: list[Contender] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.all = list(self.running)

    @property
    def best(self) -> Contender:
        return max(self.all, key=lambda each: each.good_per_s)

    @property
    def loose_per_s(self) -> float:
        return max(each.loose_per_s for each in self.all)

    def leave_behind(self, improved: Sequence[Contender]) -> None:
        """Who became no better, or is far behind the best under either limits, is not tried again."""
        least, loose_least = LEFT_BEHIND * self.best.good_per_s, LEFT_BEHIND * self.loose_per_s
        self.running = [
            each
            for each in self.running
            if each in improved and (each.good_per_s >= least or each.loose_per_s >= loose_least)
        ]


def contenders() -> tuple[Kind, Kind]:
    chunked = [Contender(f"chunks-{tokens}", 0, tokens) for tokens in (256, 512, 1024)]
    split = [Contender(f"{count}-{NUM_WORKERS - count}", count, 512) for count in (4, 5, 6)]
    return Kind("chunked", chunked), Kind("split", split)


@contextmanager
def crowds(folder: Path, each: Sequence[Contender]) -> Iterator[SimulatedMesh]:
    """A crowd for each contender, under its name, ready."""
    nats, etcd = start_nats(folder / "nats"), start_etcd(folder / "etcd")
    try:
        with SimulatedMesh(folder, nats.url, etcd.url) as mesh:
            for contender in each:
                mesh.start_crowd(
                    contender.name,
                    contender.name,
                    workers=NUM_WORKERS - contender.num_prefill,
                    prefill_workers=contender.num_prefill,
                    step_tokens=contender.step_tokens,
                    prefill_step_tokens=PREFILL_STEP_TOKENS,
                    simulated=MODEL,
                    num_blocks=POOL_BLOCKS,
                    context_tokens=CONTEXT_TOKENS,
                )
            mesh.wait_workers(sum(NUM_WORKERS - contender.num_prefill for contender in each))
            yield mesh
    finally:
        etcd.stop()
        nats.stop()


class Race:
    """Plays the same loads to contenders of both kinds, rate by rate."""

    def __init__(self, mesh: SimulatedMesh) -> None:
        self._mesh = mesh

    async def run(self, kinds: Sequence[Kind]) -> None:
        rate = FIRST_RATE
        for _ in range(MOST_RATES):
            for kind in kinds:
                kind.leave_behind([each for each in kind.running if await self._try_rate(each, rate)])
            if not any(kind.running for kind in kinds):
                return
            rate *= STEP_UP

    async def _try_rate(self, contender: Contender, rate: float) -> bool:
        played = await self.play(contender.name, rate, long_prompts(rate))
        loose = make_report(contender.name, played.readings, LOOSE, SPEED)
        return contender.take(rate, played.report, loose)

    async def play(self, name: str, rate: float, trace: Sequence[TraceRequest]) -> Played:
        before, began_s = self._spent(name), time.monotonic()
        terms = Terms(pace=Pace(speed=SPEED), limits=LIMITS, seed=round(100 * rate))
        target = Target(name, parse_url(self._mesh.url), name)
        (played,) = await play_all(trace, [target], terms, lambda _: None)
        wall_s, after = time.monotonic() - began_s, self._spent(name)
        spent = {what: after[what] - before[what] for what in after}
        print(f"{name:12s} {rate:5.1f}/s: {_told(played.report)}, {_told_spent(spent, wall_s)}", flush=True)
        return played

    def _spent(self, name: str) -> dict[str, float]:
        """Seconds of CPU by process; steps of the crowd, and the seconds that they ended too late."""
        crowd = self._mesh.processes[name]
        return {
            **{process: self._mesh.cpu_s(process) for process in ("frontend", "router", name)},
            "steps": crowd.metric("kvmesh_engine_steps"),
            "late": crowd.metric("kvmesh_simulated_late_seconds"),
        }


def long_prompts(rate: float) -> list[TraceRequest]:
    """Other prompts and other moments at every rate, the same for every contender."""
    shape = Shape(round(rate * PLAY_S), rate, PROMPT_TOKENS, ANSWER_TOKENS, seed=round(100 * rate))
    return shared_prefix(shape, 1, 0)


def _told(report: Report) -> str:
    ttft_s, itl_s, late_s = report.ttft_s, report.itl_s, report.late_s
    failed = f", {report.errors}" if report.errors else ""
    assert ttft_s is not None and itl_s is not None and late_s is not None
    return (
        f"{report.good_share:6.1%} good, TTFT p50 {ttft_s.p50:.2f} p99 {ttft_s.p99:.2f} s,"
        f" ITL mean {itl_s.mean * 1e3:.1f} p99 {itl_s.p99 * 1e3:.1f} ms, {report.remote_share:.0%} remote,"
        f" player late by {late_s.p99 * 1e3:.0f} ms{failed}"
    )


def _told_spent(spent: Mapping[str, float], wall_s: float) -> str:
    """The share of a core that each process took, and how late a step ended on average."""
    *processes, steps, late = spent
    shares = "/".join(f"{spent[process] / wall_s:.0%}" for process in processes)
    return f"CPU {shares}, steps late by {spent[late] / max(1.0, spent[steps]) * 1e3:.2f} ms"


async def measure() -> dict[str, float]:
    kinds = contenders()
    each = [contender for kind in kinds for contender in kind.all]
    with tempfile.TemporaryDirectory() as folder, crowds(Path(folder), each) as mesh:
        await Race(mesh).run(kinds)
    return compare(*kinds)


def compare(chunked: Kind, split: Kind) -> dict[str, float]:
    """The best of either kind, under either limits."""
    for best in (chunked.best, split.best):
        assert best.good_per_s, f"nothing kept the limits: {best.name}"
        print(f"{best.name}: {best.good_per_s:.1f} good requests/s", flush=True)
    return {
        "goodput_ratio_simulated": split.best.good_per_s / chunked.best.good_per_s,
        "goodput_ratio_simulated_loose_itl": split.loose_per_s / chunked.loose_per_s,
        "goodput_per_s_simulated": split.best.good_per_s,
        "goodput_per_s_simulated_local": chunked.best.good_per_s,
        "ttft_limit_s_simulated": LIMITS.ttft_s,
        "itl_limit_s_simulated": LIMITS.itl_s,
        "loose_itl_limit_s_simulated": LOOSE.itl_s,
    }
