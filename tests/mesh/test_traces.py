"""One trace a request, from the front door through router and prefill worker to the end of its decoding."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.mesh.running_mesh import RunningMesh, run_mesh
from tests.services.test_tracing import Collector, collector  # noqa: F401 - a fixture
from tests.tiny_model import write_tiny_llama
from workers.roles.prefill_choice import Terms

NUM_TOKENS = 5
SECRET = "thequickbrownfoxjumpsoverthelazydogandnobodyshallreadofit"
TREE = {
    "request": "",
    "route": "request",
    "accept": "route",
    "prefill choice": "accept",
    "remote prefill": "accept",
    "prefill job": "accept",
    "push": "prefill job",
    "decode": "accept",
}
TERMS = {field.name for field in dataclasses.fields(Terms)}
ATTRIBUTES = {
    "model",
    "tokens",
    "num_blocks",
    "num_bytes",
    "num_tokens",
    "num_steps",
    "reason",
    "strategy",
    "worker",
} | TERMS

Trace = dict[str, Span]


@pytest.fixture
def mesh(collector: Collector, tmp_path: Path) -> Iterator[RunningMesh]:  # noqa: F811
    """One prefill and one decode worker, simulated, whose spans go to the collector."""
    environ = {
        "KVMESH_TRACING_ENDPOINT": collector.endpoint,
        "KVMESH_WORKER_REMOTE_MIN_TOKENS": "16",
        "KVMESH_WORKER_PREFILL_CHOICE": "threshold",
        "KVMESH_SIMULATED_FIRST_TOKEN": "20",
        "KVMESH_SIMULATED_NUM_TOKENS": "200",
        "KVMESH_SIMULATED_STEP_S": "0.01",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }
    model = write_tiny_llama(tmp_path / "tiny")
    with run_mesh(tmp_path / "state", str(model), "--engine", "simulated", environ=environ) as mesh:
        mesh.wait_until("all are ready", lambda: "ready after" in mesh.output(), 60)
        yield mesh


def ask(mesh: RunningMesh, salt: str) -> None:
    body = {"model": "tiny", "prompt": SECRET * 3, "max_tokens": NUM_TOKENS, "ignore_eos": True}
    assert mesh.http.post("/v1/completions", json=body | {"cache_salt": salt}).is_success


def find_whole(collector: Collector) -> Trace:  # noqa: F811
    """The spans by name of one trace that has them all; none while there is no such trace."""
    by_trace: dict[bytes, Trace] = {}
    for span in list(collector.all_spans):
        by_trace.setdefault(span.trace_id, {})[span.name] = span
    return next((trace for trace in by_trace.values() if trace.keys() >= TREE.keys()), {})


def test_one_trace_follows_a_request_through_every_process(mesh: RunningMesh, collector: Collector) -> None:  # noqa: F811
    def is_prefilled_elsewhere() -> bool:  # a decode worker learns of prefill workers by their beats
        ask(mesh, str(len(collector.bodies)))
        return mesh.metric("prefill-0", "kvmesh_prefill_jobs_served_total") > 0

    mesh.wait_until("prompts are prefilled elsewhere", is_prefilled_elsewhere)
    mesh.wait_until("a whole trace was exported", lambda: bool(find_whole(collector)))
    trace = find_whole(collector)

    parents = {name: trace[parent].span_id if parent else b"" for name, parent in TREE.items()}
    assert {name: trace[name].parent_span_id for name in TREE} == parents
    assert all(span.end_time_unix_nano > span.start_time_unix_nano for span in trace.values())
    # each token after the first takes a step of 10 ms
    assert _took_s(trace["decode"]) > (NUM_TOKENS - 1) * 0.009
    assert _took_s(trace["push"]) <= _took_s(trace["prefill job"]) <= _took_s(trace["remote prefill"])
    assert trace["remote prefill"].end_time_unix_nano <= trace["decode"].start_time_unix_nano

    choice = {attribute.key: attribute.value for attribute in trace["prefill choice"].attributes}
    assert choice.keys() == {"reason", "worker"} | TERMS
    assert choice["reason"].string_value == "chosen"
    assert choice["worker"].string_value

    words = [SECRET[start : start + 5].encode() for start in range(0, len(SECRET) - 5, 5)]
    exported = b"".join(collector.bodies)
    assert not any(word in exported for word in words)
    spans = collector.all_spans
    assert {attribute.key for span in spans for attribute in span.attributes} <= ATTRIBUTES
    assert not any(span.events for span in spans)


def _took_s(span: Span) -> float:
    return (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
