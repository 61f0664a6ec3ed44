"""Settings from defaults, a file, the environment and flags; what is wrong is refused with its source."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
import typer
from msgspec import Meta
from typer.testing import CliRunner

from proto.errors import InvalidSetting
from services.mesh_settings import MeshSettings
from services.settings import load_settings
from services.settings_file import render_settings
from services.settings_flags import with_flags


class _LampSettings(msgspec.Struct, frozen=True, kw_only=True):
    colour: Annotated[Literal["red", "green"], Meta(description="its colour")] = "red"
    tags: Annotated[list[str], Meta(description="what it is for")] = msgspec.field(default_factory=list)


class _RouterSettings(msgspec.Struct, frozen=True, kw_only=True):
    mesh: MeshSettings = MeshSettings()
    bus: _LampSettings = _LampSettings()
    queue_limit: Annotated[int, Meta(description="requests that may wait", ge=0)] = 100
    wait_s: Annotated[float, Meta(description="seconds one may wait")] = 1.5
    is_proud: Annotated[bool, Meta(description="whether it boasts")] = False
    model: Annotated[str, Meta(description="what it serves")]
    folder: Annotated[Path | None, Meta(description="where it lives")] = None


def _load(
    text: str | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
    *,
    folder: Path | None = None,
) -> _RouterSettings:
    file = None
    if text is not None and folder is not None:
        file = folder / "kvmesh.toml"
        file.write_text(text)
    return load_settings(
        _RouterSettings, "router", file=file, environ=environ or {}, flags={"model": "m"} | dict(flags or {})
    )


def test_what_is_said_nowhere_has_its_default() -> None:
    assert _load() == _RouterSettings(model="m")


def test_a_name_that_is_none_of_those_is_refused_with_the_list() -> None:
    with pytest.raises(InvalidSetting, match=r"bus.colour: 'blue' in .*: one of red, green"):
        _load(environ={"KVMESH_BUS_COLOUR": "blue"})


def test_flags_win_over_the_environment_which_wins_over_the_file(tmp_path: Path) -> None:
    text = '[router]\nqueue_limit = 1\nwait_s = 2\nfolder = "a"\n[bus]\ncolour = "green"\ntags = ["x"]\n'
    environ = {"KVMESH_ROUTER_QUEUE_LIMIT": "2", "KVMESH_ROUTER_IS_PROUD": "true", "KVMESH_BUS_TAGS": "y, z"}
    loaded = _load(text, environ, {"queue_limit": 3, "is_proud": None, "folder": None}, folder=tmp_path)
    assert loaded == _RouterSettings(
        bus=_LampSettings(colour="green", tags=["y", "z"]),
        queue_limit=3,
        wait_s=2.0,
        is_proud=True,
        model="m",
        folder=Path("a"),
    )


def test_tables_of_other_processes_are_left_alone(tmp_path: Path) -> None:
    environ = {"KVMESH_WORKER_ANYTHING": "1", "KVMESH_CACHE": "/somewhere", "HOME": "/root"}
    assert _load("[worker]\nanything = 1\n", environ, folder=tmp_path) == _RouterSettings(model="m")


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("[router]\nqueue_limits = 1\n", "router.queue_limit?"),
        ("[bus]\ncolor = 'red'\n", "bus.colour?"),
        ("[ruter]\nqueue_limit = 1\n", "router?"),
        ("queue_limit = 1\n", "did you mean"),
    ],
)
def test_an_unknown_name_in_the_file_is_refused_with_the_nearest(
    text: str, near: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidSetting) as caught:
        _load(text, folder=tmp_path)
    assert near in str(caught.value)
    assert "kvmesh.toml" in str(caught.value)


@pytest.mark.parametrize(
    "variable", ["KVMESH_ROUTER_QUEUE_LIMITS", "KVMESH_RUTER_QUEUE_LIMIT", "KVMESH_QUEUE"]
)
def test_an_unknown_name_in_the_environment_is_refused_with_the_nearest(variable: str) -> None:
    with pytest.raises(InvalidSetting, match=rf"{variable}.*environment.*KVMESH_ROUTER_QUEUE_LIMIT\?"):
        _load(environ={variable: "1"})


def test_an_unknown_flag_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="did you mean bus_colour"):
        _load(flags={"bus_color": "red"})


@pytest.mark.parametrize(
    ("text", "environ", "flags", "named"),
    [
        ('[router]\nqueue_limit = "1"\n', {}, {}, ("router.queue_limit", "kvmesh.toml", "Expected `int`")),
        ("[router]\nqueue_limit = -1\n", {}, {}, ("router.queue_limit", "kvmesh.toml", ">= 0")),
        ("[bus]\ntags = 1\n", {}, {}, ("bus.tags", "kvmesh.toml", "array")),
        ("[bus", {}, {}, ("kvmesh.toml", "end of document")),
        (None, {"KVMESH_ROUTER_WAIT_S": "long"}, {}, ("router.wait_s", "KVMESH_ROUTER_WAIT_S", "'long'")),
        (None, {}, {"bus_colour": "blue"}, ("bus.colour", "--bus-colour", "'blue'")),
        (None, {}, {"mesh_ns": "a.b"}, ("mesh.ns", "--mesh-ns", "'a.b'")),
        (None, {}, {"mesh_beat_s": 2.0}, ("mesh", "twice beat_s")),
    ],
)
def test_a_wrong_value_is_refused_with_its_name_and_source(
    text: str | None,
    environ: Mapping[str, str],
    flags: Mapping[str, Any],
    named: tuple[str, ...],
    tmp_path: Path,
) -> None:
    with pytest.raises(InvalidSetting) as caught:
        _load(text, environ, flags, folder=tmp_path)
    for part in named:
        assert part in str(caught.value)


def test_a_file_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"none\.toml: .*No such file"):
        load_settings(_RouterSettings, "router", file=tmp_path / "none.toml", environ={}, flags={})


def test_a_setting_that_must_be_set_says_how() -> None:
    with pytest.raises(InvalidSetting, match=r"router.model: must be set.*KVMESH_ROUTER_MODEL.*--model"):
        load_settings(_RouterSettings, "router", file=None, environ={}, flags={})


def test_the_rendered_file_holds_every_setting_and_loads_as_the_defaults(tmp_path: Path) -> None:
    text = render_settings({"router": _RouterSettings, "worker": _RouterSettings})
    parsed = tomllib.loads(text)
    assert list(parsed) == ["mesh", "bus", "router", "worker"]
    assert parsed["bus"] == {"colour": "red", "tags": []}
    assert parsed["router"] == {"queue_limit": 100, "wait_s": 1.5, "is_proud": False}
    assert "# requests that may wait\nqueue_limit = 100\n" in text
    assert "# what it serves; must be set\n# model =\n" in text
    assert "# where it lives\n# folder =\n" in text
    assert _load(text, folder=tmp_path) == _RouterSettings(model="m")


def test_a_command_has_every_setting_as_a_flag_with_its_text() -> None:
    seen: list[_RouterSettings] = []

    def route(settings: _RouterSettings) -> None:
        """Routes requests."""
        seen.append(settings)

    app = typer.Typer()
    app.command()(with_flags(_RouterSettings, "router")(route))
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
    for part in ("Routes requests", "--config", "--queue-limit", "requests that may wait (default: 100)"):
        assert part in shown
    assert "what it serves (must be set)" in shown
    assert "--no-is-proud" in shown
    told = ["--model", "m", "--queue-limit", "7", "--is-proud", "--bus-tags", "a,b", "--bus-tags", "c"]
    assert CliRunner().invoke(app, told).exit_code == 0
    assert seen == [
        _RouterSettings(model="m", queue_limit=7, is_proud=True, bus=_LampSettings(tags=["a", "b", "c"]))
    ]
