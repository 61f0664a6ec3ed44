"""What lies in `deploy` is true to the code: settings, flags, variables and metrics are those there are."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from services.cli import settings_kinds
from services.entry import KINDS, find_entry
from services.metrics import FrontendMetrics, Metrics, RouterMetrics, WorkerMetrics
from services.planner.metrics import PlannerMetrics
from services.settings import ENVIRONMENT_ONLY, list_settings, load_settings
from services.settings_file import render_settings

DEPLOY = Path(__file__).parents[2] / "deploy"
YAML_FILES = [*DEPLOY.glob("*.yaml"), *DEPLOY.glob("kubernetes/*.yaml")]


def _documents() -> Iterator[tuple[str, Any]]:
    for file in YAML_FILES:
        for document in yaml.safe_load_all(file.read_text()):
            yield file.name, document


def _commands(node: Any) -> Iterator[list[str]]:
    """Every command line of kvmesh in a document: a list of words that begins with a kind of process."""
    if isinstance(node, dict):
        for value in node.values():
            yield from _commands(value)
    elif isinstance(node, list):
        if node and node[0] in KINDS:
            yield node
        for value in node:
            yield from _commands(value)


def _variables(node: Any) -> Iterator[tuple[str, Any]]:
    """Every variable of kvmesh that a document sets, and its value; None for one read from elsewhere."""
    if isinstance(node, dict):
        yield from ((key, value) for key, value in node.items() if str(key).startswith("KVMESH_"))
        if str(node.get("name", "")).startswith("KVMESH_"):
            yield node["name"], node.get("value")
    for value in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _variables(value)


def test_the_settings_file_is_what_the_code_renders() -> None:
    rendered = render_settings(settings_kinds())
    assert (DEPLOY / "kvmesh.toml").read_text() == rendered, (
        "write it anew: kvmesh settings > deploy/kvmesh.toml"
    )


@pytest.mark.parametrize("section", ["frontend", "router", "worker", "planner", "simulate", "up", "status"])
def test_the_settings_file_says_the_defaults(section: str) -> None:
    kind = settings_kinds()[section]
    from_file = load_settings(kind, section, file=DEPLOY / "kvmesh.toml", environ={}, flags={})
    assert from_file == load_settings(kind, section, file=None, environ={}, flags={})


def test_every_command_line_in_deploy_is_understood() -> None:
    found = [(name, command) for name, document in _documents() for command in _commands(document)]
    assert {command[0] for _, command in found} == set(KINDS)
    for name, (kind, *words) in found:
        entry = find_entry(kind)
        parameters = {
            setting.flag: setting.parameter for setting in list_settings(entry.settings, entry.section)
        }
        assert set(words[::2]) <= set(parameters), f"{name}: {shlex.join([kind, *words])}"
        flags = {parameters[flag]: value for flag, value in zip(words[::2], words[1::2], strict=True)}
        load_settings(entry.settings, entry.section, file=None, environ={}, flags=flags)


def test_every_variable_in_deploy_is_a_setting_of_every_process() -> None:
    found = [variable for _, document in _documents() for variable in _variables(document)]
    environ = {name: value for name, value in found if isinstance(value, str)}
    assert "KVMESH_BUS_URL" in environ
    assert {name for name, _ in found} - environ.keys() == {"KVMESH_MESH_HOST"}
    for kind in KINDS:
        entry = find_entry(kind)
        told = environ | {"KVMESH_MESH_HOST": "node-1"}
        loaded = load_settings(entry.settings, entry.section, file=None, environ=told, flags={})
        assert loaded.admin.port == 9100


def test_every_variable_of_the_image_is_known() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    assert set(re.findall(r"\b(KVMESH_\w+)=", text)) <= ENVIRONMENT_ONLY


def test_every_metric_on_the_dashboard_is_one_that_a_process_has() -> None:
    shown = set(re.findall(r"kvmesh_\w+", "".join(_expressions())))
    assert len(shown) > 15
    assert shown <= _metric_names()


def test_the_dashboard_shows_all_that_a_planner_says() -> None:
    metrics = Metrics("planner", "p")
    PlannerMetrics(metrics)
    said = set(re.findall(r"^# TYPE (kvmesh_planner_\w+)", metrics.render().decode(), re.MULTILINE))
    assert said
    shown = set(re.findall(r"kvmesh_planner_\w+", "".join(_expressions())))
    assert {name.removesuffix("_bucket") for name in shown} == {
        name for name in said if not name.endswith("_created")
    }


def _expressions() -> Iterator[str]:
    dashboard = json.loads((DEPLOY / "grafana" / "kvmesh.json").read_text())
    for panel in dashboard["panels"]:
        yield from (target["expr"] + "\n" for target in panel["targets"])


def _metric_names() -> set[str]:
    """The names of samples, as Prometheus sees them, and of histograms' buckets."""
    names: set[str] = set()
    kinds = {
        "frontend": FrontendMetrics,
        "router": RouterMetrics,
        "worker": WorkerMetrics,
        "planner": PlannerMetrics,
    }
    for kind, build in kinds.items():
        metrics = Metrics(kind, "p")  # type: ignore[arg-type]
        built = build(metrics)
        if isinstance(built, WorkerMetrics):
            _observe(built)
        names |= set(re.findall(r"^# (?:HELP|TYPE) (\w+)", metrics.render().decode(), re.MULTILINE))
    return names | {f"{name}_bucket" for name in names}


def _observe(worker: WorkerMetrics) -> None:
    def zero() -> float:
        return 0.0

    worker.observe_queues(before_prefill=zero, before_decode=zero, running=zero)
    worker.observe_guesses(drafted=zero, accepted=zero)
    worker.observe_blocks(total=zero, free=zero, active=zero, granted=zero, quarantined=zero, cached=zero)


def test_every_manifest_is_listed_and_its_probes_ask_the_admin_port() -> None:
    kustomization = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())
    files = {file.name for file in (DEPLOY / "kubernetes").glob("*.yaml")} - {"kustomization.yaml"}
    assert set(kustomization["resources"]) == files
    for kind in ("router", "frontend", "planner", "prefill", "decode"):
        pod = _pod(kind)
        container = pod["containers"][0]
        assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "admin"}
        assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "admin"}
        assert {"name": "admin", "containerPort": 9100} in container["ports"]
        assert pod["terminationGracePeriodSeconds"] > 30 + 5


def _pod(kind: str) -> Any:
    documents = yaml.safe_load_all((DEPLOY / "kubernetes" / f"{kind}.yaml").read_text())
    found = next(doc for doc in documents if doc["kind"] in ("Deployment", "StatefulSet"))
    return found["spec"]["template"]["spec"]
