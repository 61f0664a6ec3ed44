from pathlib import Path

import pytest

from services.models.catalog import CATALOG, DEFAULT_MODEL, cache_folder, models_folder


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({"KVMESH_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, Path("/a")),
        ({"KVMESH_CACHE": "~/a"}, Path.home() / "a"),
        ({"XDG_CACHE_HOME": "/b"}, Path("/b/kvmesh")),
        ({"KVMESH_CACHE": "", "XDG_CACHE_HOME": "relative"}, Path.home() / ".cache" / "kvmesh"),
        ({}, Path.home() / ".cache" / "kvmesh"),
    ],
)
def test_the_cache_lies_where_the_environment_says(environ: dict[str, str], wanted: Path) -> None:
    assert cache_folder(environ) == wanted


def test_models_lie_in_the_cache_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVMESH_CACHE", "/somewhere")
    assert models_folder() == Path("/somewhere/models")


def test_every_name_of_the_catalog_is_its_models_own_and_pinned() -> None:
    assert DEFAULT_MODEL in CATALOG
    for name, model in CATALOG.items():
        assert model.name == name
        assert "==" in model.requirement
        assert len(bytes.fromhex(model.member_sha256)) == 32
