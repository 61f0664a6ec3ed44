"""One trace a request, from the front door through router and decode worker to the prefill worker."""

from pathlib import Path

from tests.mesh.running_mesh import run_mesh
from tests.services.test_tracing import Collector, collector  # noqa: F401 - a fixture
from tests.tiny_model import write_tiny_llama

SPANS = {"request", "route", "accept", "remote prefill", "prefill job"}


def test_one_trace_follows_a_request_through_every_process(collector: Collector, tmp_path: Path) -> None:  # noqa: F811
    model = write_tiny_llama(tmp_path / "tiny")
    environ = {
        "KVMESH_TRACING_ENDPOINT": collector.endpoint,
        "KVMESH_WORKER_REMOTE_MIN_TOKENS": "16",
        "KVMESH_SIMULATED_FIRST_TOKEN": "20",
        "KVMESH_SIMULATED_NUM_TOKENS": "200",
    }
    body = {"model": "tiny", "prompt": list(range(20, 120)), "max_tokens": 2, "ignore_eos": True}
    with run_mesh(tmp_path / "state", str(model), "--engine", "simulated", environ=environ) as mesh:
        mesh.wait_until("all are ready", lambda: "ready after" in mesh.output(), 60)
        mesh.wait_until(  # a decode worker learns of prefill workers by their beats
            "prompts are prefilled elsewhere",
            lambda: (
                mesh.http.post(
                    "/v1/completions", json=body | {"cache_salt": str(len(collector.bodies))}
                ).is_success
                and mesh.metric("prefill-0", "kvmesh_prefill_jobs_served_total") > 0
            ),
        )
    by_trace: dict[bytes, set[str]] = {}
    for span in collector.all_spans:
        by_trace.setdefault(span.trace_id, set()).add(span.name)
    assert any(names >= SPANS for names in by_trace.values()), by_trace
