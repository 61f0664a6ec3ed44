"""`kvmesh replay` and `kvmesh generate-trace` as people use them, on a real mesh of simulated workers."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import uvloop
from PIL import Image
from typer.testing import CliRunner

from proto.errors import InvalidSetting
from services.replay import trace_commands
from services.replay.http_call import parse_url
from services.replay.replay_command import make_targets, replay
from services.replay.report import Report
from services.replay.session import Target, Terms, play_all
from services.replay.trace import TraceRequest, possible_hit_rate, read_trace
from tests.mesh.running_mesh import RunningMesh, run_mesh
from tests.tiny_model import write_tiny

ENGINE = {
    "KVMESH_SIMULATED_FIRST_TOKEN": "34",
    "KVMESH_SIMULATED_NUM_TOKENS": "60",
    "KVMESH_SIMULATED_STEP_S": "0.004",
}
CONTEXT = 4096


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    """Two workers that decode, of an engine that takes little time."""
    folder = tmp_path_factory.mktemp("replay")
    model = write_tiny(folder / "tiny", context=CONTEXT)
    flags = ("--engine", "simulated", "--prefill", "0", "--decode", "2")
    with run_mesh(folder / "state", str(model), *flags, environ=ENGINE) as mesh:
        mesh.wait_until("all are ready", lambda: "ready after" in mesh.output(), 60)
        yield mesh


def kvmesh(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "services.cli", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def read_reports(path: Path) -> list[Report]:
    return msgspec.json.decode(path.read_bytes(), type=list[Report])


def test_two_servers_are_compared_as_a_table_as_figures_and_as_a_picture(
    mesh: RunningMesh, tmp_path: Path
) -> None:
    """The second is the first one again, whose cache then has every prompt."""
    path, figures, picture = (tmp_path / name for name in ("trace.jsonl", "figures.json", "picture.png"))
    kind = "--requests 80 --rate 80 --prefixes 2 --prefix-blocks 2 --output-tokens 8"
    made = CliRunner().invoke(trace_commands.app, ["shared-prefix", str(path), *kind.split()])
    assert made.exit_code == 0, made.output
    trace = read_trace(path)
    assert f"possible hit rate {possible_hit_rate(trace):.1%}" in made.output

    where = ("--url", mesh.url, "--url", f"{mesh.url}/v1", "--label", "cold", "--label", "warm")
    done = kvmesh("replay", path, *where, "--json", figures, "--picture", picture)
    assert done.returncode == 0, done.stderr
    cold, warm = read_reports(figures)
    assert (cold.label, cold.num_answered, cold.errors) == ("cold", 80, {})
    assert (warm.label, warm.num_answered, warm.errors) == ("warm", 80, {})
    assert 0.3 < cold.hit_rate <= possible_hit_rate(trace) < warm.hit_rate < 1
    assert all(worker.startswith("worker-") for worker in cold.shares)
    assert sum(cold.shares.values()) == pytest.approx(1)
    num_tokens = sum(request.output_length for request in trace)
    assert cold.tokens_per_s * cold.duration_s == pytest.approx(num_tokens)
    assert cold.ttft_s is not None and 0 < cold.ttft_s.p50 <= cold.ttft_s.p99 < 60
    assert cold.itl_s is not None and cold.itl_s.mean > 0
    for word in ("cold", "warm", "ratio", "TTFT p99", "ITL p50", "hit rate", "goodput", "share of worker"):
        assert word in done.stdout
    with Image.open(picture) as image:
        image.load()
        assert image.format == "PNG"
        assert min(image.size) > 600
        assert len(image.getcolors(2**20) or []) > 50


def play(mesh: RunningMesh, trace: list[TraceRequest], seed: int, model: str = "") -> Report:
    target = Target("one", parse_url(mesh.url), model)
    [played] = uvloop.run(play_all(trace, [target], Terms(seed=seed), lambda _: None))
    return played.report


def test_prompts_that_are_too_long_are_counted_and_the_others_answered(mesh: RunningMesh) -> None:
    long = TraceRequest(0, CONTEXT + 512, 4, tuple(range(9)))
    report = play(mesh, [long, TraceRequest(100, 600, 4, (20, 21))], seed=1)
    assert (report.num_requests, report.num_answered) == (2, 1)
    assert report.errors == {"400 context_length_exceeded": 1}


def test_a_seed_used_before_finds_the_cache_warm_and_another_does_not(mesh: RunningMesh) -> None:
    trace = [TraceRequest(0, 1024, 2, (1, 2))]
    assert play(mesh, trace, 7).hit_rate == 0
    mesh.wait_until("the router knows what the worker has", lambda: play(mesh, trace, 7).hit_rate > 0.9)
    assert play(mesh, trace, 8).hit_rate == 0


def test_a_model_that_is_not_served_is_told_before_anything_is_played(mesh: RunningMesh) -> None:
    with pytest.raises(InvalidSetting, match=r"--model: 127.0.0.1:\d+ serves tiny$"):
        play(mesh, [TraceRequest(0, 10, 2, (1,))], 1, model="other")


def test_a_bad_line_is_one_line_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("{}\n")
    done = kvmesh("replay", path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"kvmesh: {path}:1: Object missing required field")
    assert done.stderr.count("\n") == 1


def test_what_cannot_be_done_in_the_end_is_refused_at_the_beginning(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    with pytest.raises(InvalidSetting, match="--max-in-flight: this process may open"):
        replay(trace, max_in_flight=2 * 10**9)
    for option in ("picture", "json"):
        with pytest.raises(InvalidSetting, match="none"):
            replay(trace, **{option: tmp_path / "none" / "file"})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["shared-prefix", "zipf", "burst", "multi-turn"])
def test_every_kind_of_load_becomes_a_file(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    done = CliRunner().invoke(trace_commands.app, [kind, str(path), "--requests", "20"])
    assert done.exit_code == 0, done.output
    assert done.output.startswith(f"{path}: 20 requests over ")
    assert len(read_trace(path)) == 20


def test_servers_are_called_by_their_labels_or_their_addresses() -> None:
    urls = ["http://a:1", "http://b:2", "http://c"]
    targets = make_targets(urls, ["first"], "m")
    assert [target.label for target in targets] == ["first", "b:2", "c:80"]
    assert {target.model for target in targets} == {"m"}


@pytest.mark.parametrize(
    ("urls", "labels"),
    [
        (["http://a:1"], ["x", "y"]),
        (["http://a:1", "http://a:1"], []),
        (["http://a:1", "http://b:1"], ["x", "x"]),
    ],
)
def test_labels_that_tell_no_server_from_another_are_refused(urls: list[str], labels: list[str]) -> None:
    with pytest.raises(InvalidSetting, match="--label"):
        make_targets(urls, labels, "")
