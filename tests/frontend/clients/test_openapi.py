"""Schemathesis against `/openapi.json`: what fits the schema, or does not, ends in a documented answer."""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.mesh.running_mesh import RunningMesh

CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
NUM_CASES = 8


@pytest.fixture(scope="module")
def schema(mesh: RunningMesh) -> Any:
    return schemathesis.openapi.from_url(f"{mesh.url}/openapi.json")


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_no_case_ends_in_a_server_error_or_breaks_the_schema(
    schema: Any, model: str, mode: GenerationMode
) -> None:
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) >= 6
    checks = CHECKS
    if mode is GenerationMode.NEGATIVE:
        operations = [operation for operation in operations if operation.method.upper() == "POST"]
        checks = [*CHECKS, negative_data_rejection]
    for operation in operations:

        @settings(
            max_examples=NUM_CASES,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: Case) -> None:
            if mode is GenerationMode.POSITIVE:
                _aim(case, model)
            case.call_and_validate(checks=checks, timeout=60)

        ask()


def _aim(case: Case, model: str) -> None:
    """At the model that there is, and at short answers: so do cases reach the mesh."""
    if isinstance(case.body, dict):
        case.body["model"] = model
        if case.operation.path.startswith("/v1/"):
            case.body["max_tokens"] = 2
