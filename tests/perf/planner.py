"""What a planner is worth under a load that swings, how still it keeps, and how soon it answers.

Run: `python -m tests.perf.planner [PICTURE.png]`. Eight simulated workers behind NATS, etcd, a router and a
frontend run `SPEED` times as fast as `services/demo/swing.py` states them, with their loads and limits. The
planner is `kvmesh planner` with its defaults, at the same speed.

`goodput_vs_best_fixed`: the load is prompt-heavy and answer-heavy by turns; requests that kept both limits,
TTFT and the mean between the tokens of the answer, over those of the same trace under the best fixed split.
Which split that is shows a short form of the trace, played to all from 0:8 to 7:1. Clients leave after the
time in which an answer can keep the limits, so that no split suffers long from what it could not serve.
`recovery_periods`: from a step of the load to the first half period in which nine in ten requests are good
again, over the planner's period; the worst of all steps. `moves_steady_hour`: changes of a role in an hour of
the planner's time at a steady load that wants 4:4; the hour runs `HOUR_SPEED` times faster than it is, and
what comes in one of its minutes is so much less: noise that the planner has to bear.
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path

import msgspec

from services.demo.swing import ANSWERS, EVEN, LIMITS, NUM_WORKERS, PROMPTS, swing
from services.planner.settings import PlannerSettings
from tests.perf.planned_mesh import PlannedMesh, Run, open_planned_mesh
from tests.perf.planner_figures import count_moves, find_recovery_s, roles_between
from tests.perf.planner_picture import Story, draw_story

SPEED = 4.0
HOUR_SPEED = 24.0
HOUR_S, SETTLING_S = 3600.0, 180.0  # of the planner's time
PHASE_S, SHORT_PHASE_S = 150.0, 24.0  # of the workers' time
MIXES = (PROMPTS, ANSWERS, PROMPTS, ANSWERS)
PERIOD_S = PlannerSettings().period_s
SEED = 1


class Figures(msgspec.Struct, frozen=True):
    goodput_vs_best_fixed: float
    moves_steady_hour: int
    recovery_periods: float
    good_share: float
    good_share_best_fixed: float


class Bench:
    """Plays to one mesh with a planner, without one, and for an hour; tells of each."""

    def __init__(self, mesh: PlannedMesh) -> None:
        self._mesh = mesh

    async def run(self, picture: Path | None) -> Figures:
        planned = await self._play_planned()
        best_prefill = await self._find_best_fixed()
        fixed = await self._play_fixed(best_prefill)
        assert fixed.good_share, "no request kept the limits under any fixed split: is the machine too busy?"
        if picture is not None:
            draw_story(picture, make_story(planned, fixed, best_prefill))
        recoveries = tell_recoveries(planned)
        return Figures(
            goodput_vs_best_fixed=planned.good_share / fixed.good_share,
            moves_steady_hour=await self._count_steady_moves(),
            recovery_periods=max(recoveries),
            good_share=planned.good_share,
            good_share_best_fixed=fixed.good_share,
        )

    async def _play_planned(self) -> Run:
        """Beforehand the planner sees a phase like the first, so that it knows what a worker can do."""
        async with self._mesh.planned(SPEED):
            await self._mesh.play("planner learns", swing(MIXES[:1], PHASE_S, SEED + 1))
            return await self._mesh.play("planner", swing(MIXES, PHASE_S, SEED))

    async def _find_best_fixed(self) -> int:
        """How many workers prefill in the split that serves a short form of the load best."""
        shares = {}
        for num_prefill in range(NUM_WORKERS):
            await self._mesh.set_split(num_prefill)
            title = f"fixed {num_prefill}:{NUM_WORKERS - num_prefill}"
            run = await self._mesh.play(title, swing((PROMPTS, ANSWERS), SHORT_PHASE_S, SEED))
            shares[num_prefill] = run.good_share
        return max(shares, key=lambda num_prefill: shares[num_prefill])

    async def _play_fixed(self, num_prefill: int) -> Run:
        await self._mesh.set_split(num_prefill)
        title = f"best: {num_prefill}:{NUM_WORKERS - num_prefill}"
        return await self._mesh.play(title, swing(MIXES, PHASE_S, SEED))

    async def _count_steady_moves(self) -> int:
        """What happens while the planner learns the load is no flapping."""
        as_played = SPEED / HOUR_SPEED
        num_prefill = NUM_WORKERS // 2
        await self._mesh.set_split(num_prefill)
        async with self._mesh.planned(HOUR_SPEED):
            trace = swing((EVEN,), (SETTLING_S + HOUR_S) * as_played, SEED)
            run = await self._mesh.play("steady hour", trace)
        from_s, until_s = SETTLING_S * as_played, (SETTLING_S + HOUR_S) * as_played
        roles = roles_between(run.roles, 0.0, until_s)
        told = [(round(each.at_s / as_played), each.num_prefill) for each in roles]
        print(f"prefill workers over the planner's seconds: {told}", flush=True)
        return count_moves(run.roles, from_s, until_s)


def make_story(planned: Run, fixed: Run, fixed_prefill: int) -> Story:
    roles = roles_between(planned.roles, 0.0, len(MIXES) * PHASE_S)
    return Story(MIXES, PHASE_S, LIMITS, planned.asked, roles, fixed.asked, fixed_prefill)


def tell_recoveries(run: Run) -> list[float]:
    """In periods of the planner, of each step; and what roles did meanwhile."""
    periods = []
    for number in range(1, len(MIXES)):
        step_s = number * PHASE_S
        took_s = find_recovery_s(run.asked, step_s, PHASE_S, PERIOD_S / 2)
        periods.append(took_s / PERIOD_S)
        roles = roles_between(run.roles, step_s, step_s + PHASE_S)
        told = ", ".join(f"{each.num_prefill} after {each.at_s - step_s:.1f} s" for each in roles)
        name = MIXES[number].name
        print(f"step to {name}: good again after {took_s:.1f} s; prefill workers: {told}", flush=True)
    return periods


async def measure(picture: Path | None) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        async with open_planned_mesh(Path(folder), SPEED) as mesh:
            return await Bench(mesh).run(picture)


def main() -> None:
    picture = Path(sys.argv[1]) if sys.argv[1:] else None
    figures = msgspec.to_builtins(asyncio.run(measure(picture)))
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
