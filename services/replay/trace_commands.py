"""`kvmesh generate-trace`: write a trace whose sharing is known, a command for each kind of load."""

from pathlib import Path
from typing import Annotated

import typer

from services.replay import generators
from services.replay.arrivals import Bursts
from services.replay.generators import Shape
from services.replay.trace import TraceRequest, possible_hit_rate, write_trace

app = typer.Typer(
    name="generate-trace",
    help="Write a trace for `kvmesh replay`: a load whose sharing is known, in Mooncake's format.",
    no_args_is_help=True,
)

_Trace = Annotated[Path, typer.Argument(metavar="TRACE", help="the file to write")]
_Requests = Annotated[int, typer.Option(min=1, max=10**8, help="how many")]
_Rate = Annotated[float, typer.Option(min=1e-6, help="requests a second")]
_Input = Annotated[int, typer.Option(min=1, max=2**20, help="tokens of a prompt that are new, on average")]
_Output = Annotated[int, typer.Option(min=1, max=2**20, help="tokens of an answer, on average")]
_Seed = Annotated[int, typer.Option(help="the same seed gives the same trace")]
_Prefixes = Annotated[int, typer.Option(min=1, max=10**7, help="how many prefixes there are")]
_PrefixBlocks = Annotated[int, typer.Option(min=0, max=4096, help="length of a prefix, in blocks of 512")]


@app.command("shared-prefix")
def shared_prefix(
    trace: _Trace,
    requests: _Requests = 1000,
    rate: _Rate = 4.0,
    input_tokens: _Input = 256,
    output_tokens: _Output = 128,
    prefixes: _Prefixes = 8,
    prefix_blocks: _PrefixBlocks = 4,
    seed: _Seed = 0,
) -> None:
    """Each request begins with one of a few prefixes, all asked for alike: system prompts."""
    shape = Shape(requests, rate, input_tokens, output_tokens, seed)
    _write(trace, generators.shared_prefix(shape, prefixes, prefix_blocks))


@app.command("zipf")
def zipf(
    trace: _Trace,
    requests: _Requests = 1000,
    rate: _Rate = 4.0,
    input_tokens: _Input = 256,
    output_tokens: _Output = 128,
    prefixes: _Prefixes = 100,
    prefix_blocks: _PrefixBlocks = 4,
    exponent: Annotated[
        float, typer.Option(min=0, max=10, help="how uneven: the r-th prefix weighs 1/r^exponent")
    ] = 1.0,
    seed: _Seed = 0,
) -> None:
    """Each request begins with one of many prefixes, few of them asked for often: documents."""
    shape = Shape(requests, rate, input_tokens, output_tokens, seed)
    _write(trace, generators.zipf(shape, prefixes, prefix_blocks, exponent))


@app.command("burst")
def burst(
    trace: _Trace,
    requests: _Requests = 1000,
    rate: _Rate = 4.0,
    input_tokens: _Input = 256,
    output_tokens: _Output = 128,
    prefixes: _Prefixes = 8,
    prefix_blocks: _PrefixBlocks = 4,
    period_s: Annotated[float, typer.Option(min=1e-3, help="seconds from one burst to the next")] = 60.0,
    burst_s: Annotated[float, typer.Option(min=1e-3, help="seconds that a burst lasts")] = 5.0,
    factor: Annotated[
        float, typer.Option(min=1, help="how many times as often requests come in a burst")
    ] = 10.0,
    seed: _Seed = 0,
) -> None:
    """As shared-prefix, but requests come in bursts; the rate is that of the whole."""
    if burst_s > period_s:
        raise typer.BadParameter("a burst is longer than the period", param_hint="--burst-s")
    shape = Shape(requests, rate, input_tokens, output_tokens, seed)
    _write(trace, generators.burst(shape, prefixes, prefix_blocks, Bursts(period_s, burst_s, factor)))


@app.command("multi-turn")
def multi_turn(
    trace: _Trace,
    requests: _Requests = 1000,
    rate: _Rate = 4.0,
    input_tokens: _Input = 256,
    output_tokens: _Output = 128,
    turns: Annotated[int, typer.Option(min=1, max=1000, help="requests of a session")] = 8,
    system_blocks: Annotated[
        int, typer.Option(min=0, max=4096, help="what every session begins with, in blocks of 512")
    ] = 1,
    pause_s: Annotated[
        float, typer.Option(min=1e-3, help="seconds between two turns on average, the answer included")
    ] = 10.0,
    seed: _Seed = 0,
) -> None:
    """Sessions: each prompt is all that was said before, the answers too, and something new."""
    shape = Shape(requests, rate, input_tokens, output_tokens, seed)
    _write(trace, generators.multi_turn(shape, turns, system_blocks, pause_s))


def _write(path: Path, requests: list[TraceRequest]) -> None:
    write_trace(path, requests)
    typer.echo(
        f"{path}: {len(requests)} requests over {requests[-1].timestamp / 1e3:.0f} s, "
        f"possible hit rate {possible_hit_rate(requests):.1%}"
    )
