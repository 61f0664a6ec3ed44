"""The console command `kvmesh`: start a mesh or a part of it, look at it, fetch a model, show settings."""

import asyncio
import functools
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from proto.errors import InvalidSetting, KvmeshError
from services.demo.demo_command import demo_roles
from services.drain import drain
from services.entry import KINDS, TRIAL_KINDS, ProcessEntry, find_entry
from services.launcher.up_settings import UpSettings
from services.process import EXIT_FAILED, EXIT_WRONG_SETTING, end_now, run_process
from services.replay import trace_commands
from services.replay.replay_command import replay
from services.role import role
from services.route.route_settings import RouteSettings
from services.settings_file import render_settings
from services.settings_flags import with_flags
from services.status.status_settings import StatusSettings

_TEXTS = {
    "frontend": "Run one frontend: text in and out, over HTTP.",
    "router": "Run one router: which worker, and why.",
    "worker": "Run one worker: an engine that prefills or decodes.",
    "planner": "Run one planner: which workers prefill and which decode, as the load asks for it.",
    "simulate": "Run many workers that compute nothing, in one process: time from a stated model.",
}
_FILE_WIDTH = 200

app = typer.Typer(
    name="kvmesh",
    help="A disaggregated LLM serving mesh.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"kvmesh {version('kvmesh')}")
        raise typer.Exit


@app.callback()
def _root(
    is_version_asked: Annotated[
        bool,
        typer.Option("--version", help="show the version and end", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """A disaggregated LLM serving mesh."""


_read_up = with_flags(UpSettings, "up")(lambda settings: settings)


@functools.wraps(_read_up)
def _up(config: Path | None = None, **flags: Any) -> None:
    from services.launcher.up import run_up

    settings = _read_up(config=config, **flags)
    raise typer.Exit(run_up(settings, config.resolve() if config else None, Console()))


app.command("up", help="Start a whole mesh on this machine, and end it at Ctrl-C.")(_up)


@with_flags(StatusSettings, "status")
def _status(settings: StatusSettings) -> None:
    from services.status.show import show_status

    def show(shutdown: asyncio.Event) -> Any:
        return show_status(settings, _wide_console(), shutdown)

    raise typer.Exit(run_process(show, drain_limit_s=0))


def _wide_console() -> Console:
    """As wide as the terminal; what goes to a file or a program is not cut."""
    return Console() if sys.stdout.isatty() else Console(width=_FILE_WIDTH)


app.command("status", help="Show the workers of a mesh: a live table, or once.")(_status)


@with_flags(RouteSettings, "route")
def _route(settings: RouteSettings) -> None:
    from services.route.show import show_route

    def show(shutdown: asyncio.Event) -> Any:
        return show_route(settings, _wide_console(), shutdown)

    raise typer.Exit(run_process(show, drain_limit_s=0))


app.command("route", help="Ask a router where a prompt would go, and why: a dry run.")(_route)


@app.command()
def pull(name: Annotated[str, typer.Argument(help="catalog name, hub name (org/name) or folder")]) -> None:
    """Fetch a model, convert it where needed, and print its folder."""
    from services.launcher.narrator import Narrator
    from services.models.folder import resolve_model

    with Narrator(Console(stderr=True)).bars() as progress:
        model = resolve_model(name, progress)
    typer.echo(model.path)


app.command("drain")(drain)
app.command("role")(role)
app.command("replay")(replay)
app.command("demo-roles")(demo_roles)
app.add_typer(trace_commands.app)


@app.command()
def settings() -> None:
    """Print every setting with its text and default, as a TOML file."""
    typer.echo(render_settings(settings_kinds()), nl=False)


def settings_kinds() -> dict[str, type[msgspec.Struct]]:
    """Every table that a process or command has of its own, and its struct."""
    entries = [find_entry(kind) for kind in (*KINDS, *TRIAL_KINDS)]
    return {
        **{entry.section: entry.settings for entry in entries},
        "up": UpSettings,
        "status": StatusSettings,
        "route": RouteSettings,
    }


def _add_process(entry: ProcessEntry) -> None:
    @with_flags(entry.settings, entry.section)
    def run(settings: Any) -> None:
        limit_s = settings.mesh.drain_limit_s
        end_now(run_process(lambda shutdown: entry.run(settings, shutdown), drain_limit_s=limit_s))

    app.command(entry.kind, help=_TEXTS[entry.kind])(run)


def main() -> None:
    """What the console script calls: one line for every error of ours, and its exit code."""
    try:
        for kind in (*KINDS, *TRIAL_KINDS):
            _add_process(find_entry(kind))
        app()
    except KvmeshError as error:
        typer.echo(f"kvmesh: {error}", err=True)
        sys.exit(EXIT_WRONG_SETTING if isinstance(error, InvalidSetting) else EXIT_FAILED)


if __name__ == "__main__":
    main()
