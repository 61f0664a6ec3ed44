"""One mesh with a tiny model, which all clients share."""

from collections.abc import Iterator

import pytest
from openai import OpenAI

from tests.mesh.running_mesh import RunningMesh, run_mesh
from tests.tiny_model import write_tiny


@pytest.fixture(scope="package")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    folder = tmp_path_factory.mktemp("clients")
    model = write_tiny(folder / "tiny")
    with run_mesh(folder / "state", str(model), "--prefill", "0") as mesh:
        yield mesh


@pytest.fixture(scope="package")
def model(mesh: RunningMesh) -> str:
    [name] = mesh.models()
    return name


@pytest.fixture(scope="package")
def client(mesh: RunningMesh) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{mesh.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client
