"""`kvmesh replay`: play a trace to one server, or to several and compare them."""

import resource
import secrets
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import msgspec
import typer
import uvloop
from rich.console import Console

from proto.errors import InvalidSetting
from services.replay.http_call import parse_url
from services.replay.player import Pace
from services.replay.report import Limits
from services.replay.session import Played, Target, Terms, play_all
from services.replay.table import make_table
from services.replay.trace import possible_hit_rate, read_trace

_OTHER_FILES = 64
_WIDTH = 160
_DEFAULT_URL = "http://127.0.0.1:8000"

_WHAT = "What is played"
_PACE = "How fast"
_SHOWN = "What is shown"


def replay(
    trace: Annotated[
        Path, typer.Argument(metavar="TRACE", help="a trace in Mooncake's format (see generate-trace)")
    ],
    url: Annotated[
        list[str] | None,
        typer.Option(help=f"an OpenAI API to play to, once or more often (default: {_DEFAULT_URL})"),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(help="what each --url is called in the report, in their order (default: its address)"),
    ] = None,
    model: Annotated[str, typer.Option(help="model to ask for (default: the first that is served)")] = "",
    requests: Annotated[
        int | None, typer.Option(min=1, help="only the first so many", rich_help_panel=_WHAT)
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="chooses the tokens of the blocks; a used one finds its cache warm (default: a new one)",
            min=0,
            rich_help_panel=_WHAT,
        ),
    ] = None,
    vocab_size: Annotated[
        int | None,
        typer.Option(
            min=1, help="prompts have ids below it (default: what the server says)", rich_help_panel=_WHAT
        ),
    ] = None,
    rate: Annotated[
        float, typer.Option(min=0.001, help="requests come so many times as often", rich_help_panel=_PACE)
    ] = 1.0,
    speed: Annotated[
        float,
        typer.Option(
            min=0.001,
            help="the mesh runs so many times as fast as it stands for (simulated workers can): requests "
            "come as much faster, and times are told in the trace's own seconds",
            rich_help_panel=_PACE,
        ),
    ] = 1.0,
    request_limit_s: Annotated[
        float, typer.Option(min=0.1, help="seconds after which a request has failed", rich_help_panel=_PACE)
    ] = 300.0,
    max_in_flight: Annotated[
        int, typer.Option(min=1, help="requests beyond so many open ones fail", rich_help_panel=_PACE)
    ] = 4096,
    ttft_limit_ms: Annotated[
        float, typer.Option(min=0, help="TTFT of a good answer, at most", rich_help_panel=_SHOWN)
    ] = 1000.0,
    itl_limit_ms: Annotated[
        float, typer.Option(min=0, help="mean ITL of a good answer, at most", rich_help_panel=_SHOWN)
    ] = 100.0,
    picture: Annotated[
        Path | None,
        typer.Option(help="also draw a PNG into this file (needs matplotlib)", rich_help_panel=_SHOWN),
    ] = None,
    json: Annotated[
        Path | None, typer.Option(help="also write the figures into this file", rich_help_panel=_SHOWN)
    ] = None,
) -> None:
    """Play a trace of requests to a server, and show TTFT, ITL, hit rate, shares of workers and goodput.

    Several --url are played to in turn, with the same prompts, and compared: two meshes whose routers
    choose by different policies, say. Requests come when the trace says, however late answers are; those
    that fail are counted by the type of their error. Any server of OpenAI's API will do whose completions
    take token ids.
    """
    _check_outputs(picture, json)
    _allow_connections(max_in_flight)
    asked = read_trace(trace, requests)
    terms = Terms(
        pace=Pace(speed, rate, request_limit_s, max_in_flight),
        limits=Limits(ttft_limit_ms / 1e3, itl_limit_ms / 1e3),
        seed=secrets.randbits(32) if seed is None else seed,
        vocab_size=vocab_size or 0,
    )
    targets = make_targets(url or [_DEFAULT_URL], label or [], model)
    errors = Console(stderr=True, soft_wrap=True, markup=False, highlight=False)
    played = uvloop.run(play_all(asked, targets, terms, errors.print))
    title = f"{trace.name}: {len(asked)} requests, possible hit rate {possible_hit_rate(asked):.1%}"
    _show(title, played, terms.limits, picture, json)
    if not any(one.report.num_answered for one in played):
        raise typer.Exit(1)


def make_targets(urls: list[str], labels: list[str], model: str) -> list[Target]:
    """
    Raises:
        InvalidSetting: not a URL, more labels than URLs, or two servers of one name.
    """
    if len(labels) > len(urls):
        raise InvalidSetting(setting="--label", reason=f"{len(labels)} labels for {len(urls)} servers")
    servers = [parse_url(url) for url in urls]
    names = labels + [f"{server.host}:{server.port}" for server in servers[len(labels) :]]
    if len(set(names)) < len(names):
        raise InvalidSetting(setting="--label", reason="two servers have the same one; name each")
    return [Target(name, server, model) for name, server in zip(names, servers, strict=True)]


def _check_outputs(picture: Path | None, json: Path | None) -> None:
    """Before the trace is played, which may take an hour."""
    if picture is not None and find_spec("matplotlib") is None:
        raise InvalidSetting(setting="--picture", reason="needs matplotlib: pip install 'kvmesh[picture]'")
    for path in (picture, json):
        if path is not None:
            try:
                path.touch()
            except OSError as error:
                raise InvalidSetting(setting=str(path), reason=error.strerror or str(error)) from error


def _allow_connections(num_connections: int) -> None:
    """Raises the limit of open files as far as this process may."""
    wanted = num_connections + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            reason = f"this process may open {hard} files, of which {_OTHER_FILES} are needed otherwise"
            raise InvalidSetting(setting="--max-in-flight", reason=reason)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _show(title: str, played: list[Played], limits: Limits, picture: Path | None, json: Path | None) -> None:
    reports = [one.report for one in played]
    width = None if sys.stdout.isatty() else _WIDTH
    console = Console(width=width, markup=False, highlight=False)  # words of servers are no markup
    console.print(make_table(title, reports, limits))
    if json is not None:
        json.write_bytes(msgspec.json.format(msgspec.json.encode(reports)) + b"\n")
    if picture is not None:
        from services.replay.picture import draw_picture

        draw_picture(picture, title, played, limits)
