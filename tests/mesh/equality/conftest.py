"""The model under test, and what it must answer: computed once for all meshes."""

from pathlib import Path

import pytest

from tests.mesh.equality.recompute import Expected, Recompute
from tests.mesh.equality.rows import CONTEXT, CROWD, EOS_PROMPT, ROWS
from tests.tiny_model import EOS_TOKEN_IDS, write_eos, write_tiny


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that ends its answer to `EOS_PROMPT` with the first token."""
    folder = write_tiny(tmp_path_factory.mktemp("equality") / "tiny", context=CONTEXT)
    write_eos(folder, (*EOS_TOKEN_IDS, Recompute(folder, CONTEXT).first_token(EOS_PROMPT)))
    return folder


@pytest.fixture(scope="session")
def table(model: Path) -> list[Expected]:
    recompute = Recompute(model, CONTEXT)
    return [recompute.expect(row) for row in ROWS]


@pytest.fixture(scope="session")
def crowd(model: Path) -> Expected:
    return Recompute(model, CONTEXT).expect(CROWD)
