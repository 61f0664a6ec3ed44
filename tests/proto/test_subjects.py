"""Subjects stay what they are: processes of two versions meet on them."""

import re

from hypothesis import given
from hypothesis import strategies as st

from proto import subjects

MODEL = "org/Model-1.5"


def test_subjects_stay_what_they_are() -> None:
    assert {
        "openai": subjects.openai("ns", "chat"),
        "route": subjects.route("ns", MODEL),
        "route_any": subjects.route_any("ns"),
        "router_control": subjects.router_control("ns", "r1"),
        "choice": subjects.choice("ns", MODEL),
        "choice_any": subjects.choice_any("ns"),
        "worker_generate": subjects.worker_generate("ns", "w1"),
        "worker_control": subjects.worker_control("ns", "w1"),
        "stream": subjects.stream("ns", "c1"),
        "kv": subjects.kv("ns", "w1"),
        "kv_any": subjects.kv_any("ns"),
        "beat": subjects.beat("ns", "p1"),
        "beat_any": subjects.beat_any("ns"),
        "prefill": subjects.prefill("ns", MODEL),
        "prefill_any": subjects.prefill_any("ns"),
        "prefill_stream": subjects.prefill_stream("ns"),
        "objects_bucket": subjects.objects_bucket("ns"),
    } == {
        "openai": "kvmesh.ns.openai.chat",
        "route": "kvmesh.ns.route.org=2fModel-1=2e5",
        "route_any": "kvmesh.ns.route.*",
        "router_control": "kvmesh.ns.router.r1.control",
        "choice": "kvmesh.ns.choice.org=2fModel-1=2e5",
        "choice_any": "kvmesh.ns.choice.*",
        "worker_generate": "kvmesh.ns.worker.w1.generate",
        "worker_control": "kvmesh.ns.worker.w1.control",
        "stream": "kvmesh.ns.stream.c1",
        "kv": "kvmesh.ns.kv.w1",
        "kv_any": "kvmesh.ns.kv.*",
        "beat": "kvmesh.ns.beat.p1",
        "beat_any": "kvmesh.ns.beat.*",
        "prefill": "kvmesh.ns.prefill.org=2fModel-1=2e5",
        "prefill_any": "kvmesh.ns.prefill.*",
        "prefill_stream": "KVMESH_ns_PREFILL",
        "objects_bucket": "KVMESH_ns_OBJECTS",
    }


@given(st.text(min_size=1))
def test_whatever_a_model_is_called_its_subject_has_four_tokens_and_no_wildcard(model: str) -> None:
    for subject in (subjects.route("ns", model), subjects.choice("ns", model), subjects.prefill("ns", model)):
        assert re.fullmatch(r"kvmesh\.ns\.[a-z]+\.[A-Za-z0-9_=-]+", subject)


def test_the_id_at_the_end_of_a_subject_is_found() -> None:
    assert subjects.last_token(subjects.beat("ns", "p1")) == "p1"
    assert subjects.last_token(subjects.kv("ns", "w1")) == "w1"
