"""A model folder of which only the text is there."""

from pathlib import Path

import pytest

from tests.tiny_model import write_tiny
from tests.workers.simulated.scene import MODEL


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Neither weights nor `config.json`."""
    folder = write_tiny(tmp_path_factory.mktemp("texts") / MODEL)
    for file in folder.iterdir():
        if not file.name.startswith("tokenizer"):
            file.unlink()
    return folder
