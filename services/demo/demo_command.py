"""`kvmesh demo-roles`: what it is told."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from services.models.catalog import DEFAULT_MODEL


def demo_roles(
    seconds: Annotated[
        float | None, typer.Option(min=0.1, help="end after so long (default: at Ctrl-C)")
    ] = None,
    phase_s: Annotated[float, typer.Option(min=1.0, help="seconds after which the load changes")] = 40.0,
    speed: Annotated[
        float, typer.Option(min=0.1, help="how many times as fast as stated workers and planner run")
    ] = 2.0,
    model: Annotated[
        str,
        typer.Option(help="catalog name, hub name or folder whose tokenizer is used; nothing is computed"),
    ] = DEFAULT_MODEL,
    state: Annotated[Path, typer.Option(help="folder for servers' data, logs and mesh.json")] = Path(
        ".state/demo-roles"
    ),
) -> None:
    """Run a mesh of simulated workers under a load that swings, and show how a planner moves their roles.

    NATS, etcd, router, frontend and planner are real; of eight workers a prompt-heavy load wants six to
    prefill, an answer-heavy one a single one. Without a terminal there is a line every few seconds.
    """
    from services.demo.demo import run_demo
    from services.demo.stage import StagePlan

    raise typer.Exit(run_demo(StagePlan(state, model, speed), phase_s, seconds, Console()))
