"""What a planner made of a swinging load, as a picture: load, roles and latencies over time."""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from services.demo.swing import NUM_WORKERS, Mix
from services.replay.report import Limits
from tests.perf.planner_figures import Asked, RolesAt, between, good_share

INCHES = (11.0, 8.0)
DPI = 80
BIN_S = 3.0
LATE_SHARE = 0.9
MOST_OVER = 4.0  # times the limit: the axis ends there


class Story(msgspec.Struct, frozen=True):
    """A trace of `mixes` by turns, each for `phase_s`, and what became of it; `best_fixed` is the same trace
    with roles that stay, so many of which prefill."""

    mixes: Sequence[Mix]
    phase_s: float
    limits: Limits
    asked: Sequence[Asked]
    roles: Sequence[RolesAt]
    best_fixed: Sequence[Asked]
    fixed_prefill: int

    @property
    def end_s(self) -> float:
        return len(self.mixes) * self.phase_s


def draw_story(path: Path, story: Story) -> None:
    figure = Figure(figsize=INCHES, layout="constrained")
    figure.suptitle(f"{NUM_WORKERS} simulated workers under a load that swings: roles follow it")
    load, roles, ttft, itl, good = figure.subplots(5, 1, sharex=True)
    _draw_load(load, story)
    _draw_roles(roles, story)
    _draw_latency(ttft, story, "TTFT p90, s", story.limits.ttft_s, lambda one: one.ttft_s)
    _draw_latency(itl, story, "ITL p90, s", story.limits.itl_s, lambda one: one.itl_s)
    _draw_good(good, story)
    good.set_xlabel("seconds of the workers' time")
    for axes in (load, roles, ttft, itl, good):
        axes.grid(alpha=0.3)
        axes.set_xlim(0, story.end_s)
        for number in range(1, len(story.mixes)):
            axes.axvline(number * story.phase_s, color="grey", linewidth=0.8)
    figure.savefig(path, format="png", dpi=DPI)


def _draw_load(axes: Axes, story: Story) -> None:
    """As stated: what is drawn by chance varies around it."""
    edges = [number * story.phase_s for number in range(len(story.mixes) + 1)]
    prompts = [mix.rate_per_s * mix.prompt_tokens / 1e3 for mix in story.mixes]
    answers = [mix.rate_per_s * mix.answer_tokens / 1e3 for mix in story.mixes]
    axes.stairs(prompts, edges, color="tab:blue", linewidth=2)
    axes.set_ylabel("prompts,\n1,000 tokens/s", color="tab:blue")
    axes.set_ylim(0, 1.15 * max(prompts))
    right = axes.twinx()
    right.stairs(answers, edges, color="tab:orange", linewidth=2)
    right.set_ylabel("answers,\n1,000 tokens/s", color="tab:orange")
    right.set_ylim(0, 1.15 * max(answers))


def _draw_roles(axes: Axes, story: Story) -> None:
    at_s = [each.at_s for each in story.roles] + [story.end_s]
    num_prefill = [each.num_prefill for each in story.roles]
    num_prefill.append(num_prefill[-1])
    axes.fill_between(at_s, num_prefill, step="post", color="tab:blue", alpha=0.5, label="prefill")
    axes.fill_between(
        at_s, num_prefill, NUM_WORKERS, step="post", color="tab:orange", alpha=0.5, label="decode"
    )
    axes.set_ylim(0, NUM_WORKERS)
    axes.set_ylabel("workers")
    axes.legend(loc="center right")


def _draw_latency(
    axes: Axes, story: Story, name: str, limit_s: float, read_s: Callable[[Asked], float]
) -> None:
    for label, asked, colour in _runs(story):
        bins = [
            (from_s, [read_s(one) for one in some if read_s(one)]) for from_s, some in _bins(asked, story)
        ]
        told = [(from_s, _late(values)) for from_s, values in bins if values]
        axes.plot(*zip(*told, strict=True), color=colour, label=label)
    axes.axhline(limit_s, color="black", linestyle=":", label="limit")
    axes.set_ylim(0, MOST_OVER * limit_s)
    axes.set_ylabel(name)
    axes.legend(loc="upper right", ncols=3, fontsize="small")


def _draw_good(axes: Axes, story: Story) -> None:
    for label, asked, colour in _runs(story):
        told = [(from_s, good_share(some)) for from_s, some in _bins(asked, story) if some]
        axes.plot(*zip(*told, strict=True), color=colour, label=f"{label}: {good_share(asked):.0%} in all")
    axes.set_ylim(0, 1.05)
    axes.set_ylabel("within\nboth limits")
    axes.legend(loc="lower right", ncols=2, fontsize="small")


def _runs(story: Story) -> list[tuple[str, Sequence[Asked], str]]:
    fixed = f"fixed at {story.fixed_prefill}:{NUM_WORKERS - story.fixed_prefill}"
    return [("planner", story.asked, "tab:green"), (fixed, story.best_fixed, "tab:red")]


def _bins(asked: Sequence[Asked], story: Story) -> list[tuple[float, list[Asked]]]:
    starts_s = [number * BIN_S for number in range(int(story.end_s / BIN_S))]
    return [(from_s, between(asked, from_s, from_s + BIN_S)) for from_s in starts_s]


def _late(values_s: Sequence[float]) -> float:
    ordered = sorted(values_s)
    return ordered[min(len(ordered) - 1, int(LATE_SHARE * len(ordered)))]
