"""The figures of servers side by side, as a picture: TTFT, ITL, hit rate, good answers, shares of workers."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from proto.errors import InvalidSetting
from services.replay.report import Limits, itls_s, ttfts_s
from services.replay.session import Played

_INCHES = (12.0, 8.0)
_DPI = 110
_MAX_NAMED = 16
_ROOM = 1.25  # the legend stands above the bars
_MIN_MS = 0.1  # a logarithmic axis has no zero


def draw_picture(path: Path, title: str, played: Sequence[Played], limits: Limits) -> None:
    """Writes a PNG.

    Raises:
        InvalidSetting: the file cannot be written.
    """
    figure = Figure(figsize=_INCHES, layout="constrained")
    figure.suptitle(title)
    (first, second), (third, fourth) = figure.subplots(2, 2)
    ttfts = [(one.report.label, ttfts_s(one.readings, one.speed)) for one in played]
    itls = [(one.report.label, itls_s(one.readings, one.speed)) for one in played]
    _draw_distribution(first, "TTFT", ttfts, limits.ttft_s)
    _draw_distribution(second, "ITL", itls, limits.itl_s)
    _draw_shares(third, played)
    _draw_rates(fourth, played)
    try:
        figure.savefig(path, format="png", dpi=_DPI)
    except OSError as error:
        raise InvalidSetting(setting=str(path), reason=error.strerror or str(error)) from error


def _draw_distribution(
    axes: Axes, name: str, curves: Sequence[tuple[str, Sequence[float]]], limit_s: float
) -> None:
    axes.set_title(f"{name}: share of {'requests' if name == 'TTFT' else 'tokens'} that took no longer")
    axes.set_xscale("log")
    for label, values_s in curves:
        if values_s:
            ordered_ms = [max(_MIN_MS, value_s * 1e3) for value_s in sorted(values_s)]
            shares = [(index + 1) / len(ordered_ms) for index in range(len(ordered_ms))]
            axes.step(ordered_ms, shares, where="post", label=label)
    axes.axvline(limit_s * 1e3, color="grey", linestyle=":", label="limit")
    axes.set_xlabel("milliseconds")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(0, 1.02)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")


def _draw_shares(axes: Axes, played: Sequence[Played]) -> None:
    """By name where all servers have the same few workers, else each one's from the largest share down."""
    axes.set_title("share of requests per worker")
    axes.set_ylabel("share")
    shares = [one.report.shares for one in played]
    labels = [one.report.label for one in played]
    num_workers = max(map(len, shares))
    if num_workers <= _MAX_NAMED and all(found.keys() == shares[0].keys() for found in shares):
        _draw_bars(axes, list(shares[0]), labels, [list(found.values()) for found in shares])
        axes.tick_params("x", rotation=30 if num_workers > 4 else 0)
    else:
        _draw_ranks(axes, labels, [sorted(found.values(), reverse=True) for found in shares], num_workers)
    largest = max((share for found in shares for share in found.values()), default=1)
    axes.set_ylim(0, _ROOM * largest)
    axes.legend(ncols=len(played))


def _draw_ranks(
    axes: Axes, labels: Sequence[str], ranked: Sequence[Sequence[float]], num_workers: int
) -> None:
    axes.set_xlabel("workers, by share")
    if num_workers > _MAX_NAMED:
        for label, shares in zip(labels, ranked, strict=True):
            axes.plot(range(1, len(shares) + 1), shares, label=label)
        return
    ranks = [str(rank) for rank in range(1, num_workers + 1)]
    _draw_bars(axes, ranks, labels, [[*shares, *[0.0] * (num_workers - len(shares))] for shares in ranked])


def _draw_rates(axes: Axes, played: Sequence[Played]) -> None:
    axes.set_title("hit rate, and requests within both limits")
    axes.set_ylabel("share")
    groups = [[one.report.hit_rate, one.report.good_share] for one in played]
    _draw_bars(axes, ["hit rate", "good"], [one.report.label for one in played], groups)
    for container in axes.containers:
        axes.bar_label(container, fmt="{:.0%}")  # type: ignore[arg-type]
    axes.set_ylim(0, _ROOM)
    axes.legend(ncols=len(played))


def _draw_bars(
    axes: Axes, names: Sequence[str], labels: Sequence[str], groups: Sequence[Sequence[float]]
) -> None:
    """A group of bars for each name, in it one for each label."""
    width = 0.8 / len(groups)
    for index, (label, heights) in enumerate(zip(labels, groups, strict=True)):
        places = [place + (index - (len(groups) - 1) / 2) * width for place in range(len(names))]
        axes.bar(places, heights, width, label=label)
    axes.set_xticks(range(len(names)), names)
