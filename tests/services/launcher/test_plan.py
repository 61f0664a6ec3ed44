"""The plan: which children, in which order, with which flags."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from proto.errors import InvalidSetting
from services.entry import find_entry
from services.launcher.child import ChildSpec
from services.launcher.devices import Machine
from services.launcher.plan import Surroundings, num_children, plan_children, plan_places
from services.launcher.up_settings import UpSettings
from services.mesh_settings import MeshSettings
from services.settings import list_settings, load_settings

MACHINE = Machine(cores=(0, 1, 2, 3), gpus=())


def _plan(settings: UpSettings, config: Path | None = None) -> list[ChildSpec]:
    places = plan_places(settings, MACHINE)
    ports = tuple(range(9000, 9000 + num_children(settings, places)))
    around = Surroundings(Path("/state"), "nats://127.0.0.1:4222", "127.0.0.1:2379", ports, config)
    return plan_children(settings, places, around)


def _flags(spec: ChildSpec) -> dict[str, str]:
    """The flags after the name of the process, by name."""
    words = spec.argv[spec.argv.index(spec.kind) + 1 :]
    return dict(zip(words[::2], words[1::2], strict=True))


def _settings_of(spec: ChildSpec) -> Any:
    """What the child's own command reads from its command line."""
    entry = find_entry(spec.kind)
    names = {setting.flag: setting.parameter for setting in list_settings(entry.settings, entry.section)}
    flags = {names[flag]: value for flag, value in _flags(spec).items()}
    return load_settings(entry.settings, entry.section, file=None, environ={}, flags=flags)


def test_a_plain_mesh_is_a_router_two_workers_and_a_frontend_on_ports_of_their_own() -> None:
    specs = _plan(UpSettings())
    assert [spec.name for spec in specs] == ["router-0", "prefill-0", "decode-0", "frontend-0"]
    assert [spec.kind for spec in specs] == ["router", "worker", "worker", "frontend"]
    assert [spec.admin_port for spec in specs] == [9000, 9001, 9002, 9003]
    assert len({spec.log for spec in specs}) == 4


def test_workers_are_pinned_and_compute_with_as_many_threads_as_cores() -> None:
    specs = _plan(UpSettings(prefill="1", decode="cpu:3"))
    prefill, decode = specs[1:3]
    assert (prefill.cores, _flags(prefill)["--threads"]) == ((0, 1, 2), "3")
    assert (decode.cores, _flags(decode)["--threads"]) == ((3,), "1")
    assert specs[0].cores == specs[-1].cores == ()


def test_frontends_share_their_port_and_each_has_an_admin_port() -> None:
    specs = _plan(UpSettings(port=8100, frontends=2, routers=2, prefill="0"))
    assert [spec.name for spec in specs] == ["router-0", "router-1", "decode-0", "frontend-0", "frontend-1"]
    assert all(spec.argv[-3:] == ("--port", "8100", "--shares-port") for spec in specs[3:])
    assert len({spec.admin_port for spec in specs}) == 5
    assert "--shares-port" not in _plan(UpSettings())[-1].argv


def test_workers_are_told_of_parsers_that_were_named_and_else_go_by_their_own_settings() -> None:
    named = _plan(UpSettings(tool_parser="hermes", reasoning_parser="none"))[2]
    assert (_settings_of(named).tool_parser, _settings_of(named).reasoning_parser) == ("hermes", "none")
    assert not any("parser" in word for word in _plan(UpSettings())[2].argv)


def test_workers_of_a_role_have_the_ranks_that_it_is_told() -> None:
    specs = _plan(UpSettings(prefill_tp=2, decode_pp=3, decode="2"))
    ranks = [(_settings_of(spec).tp, _settings_of(spec).pp) for spec in specs if spec.kind == "worker"]
    assert ranks == [(2, 1), (1, 3), (1, 3)]
    assert not any(word in ("--tp", "--pp") for spec in _plan(UpSettings()) for word in spec.argv)


def test_workers_of_many_ranks_are_put_on_gpus_by_name_alone() -> None:
    server = Machine(cores=(0, 1), gpus=(0, 1, 2, 3))
    with pytest.raises(InvalidSetting, match=r"up\.decode: workers of 2 ranks: name .* as cuda:0,cuda:2"):
        plan_places(UpSettings(prefill="0", decode_tp=2), server)
    places = plan_places(UpSettings(prefill="0", decode="cuda:0,cuda:2", decode_tp=2), server)
    assert [place.device for place in places.decode] == ["cuda:0", "cuda:2"]


@pytest.mark.parametrize("engine", ["torch", "simulated"])
def test_every_child_understands_its_command_line(engine: Any) -> None:
    settings = UpSettings(
        mesh=MeshSettings(ns="blue", zone="z"), engine=engine, decode="2", model="smollm2-135m"
    )
    for spec in _plan(settings):
        heard = _settings_of(spec)
        assert heard.mesh == msgspec.structs.replace(settings.mesh, drain_limit_s=1.0)
        assert heard.bus.url == "nats://127.0.0.1:4222"
        assert heard.directory.endpoints == ["127.0.0.1:2379"]
        assert heard.admin.port == spec.admin_port
        if spec.kind == "worker":
            assert (heard.engine, heard.model) == (engine, "smollm2-135m")
            assert heard.role == spec.name.partition("-")[0]


def test_a_planner_is_started_when_it_is_asked_for() -> None:
    *others, planner = _plan(UpSettings(planner=True, mesh=MeshSettings(ns="blue")))
    assert [spec.name for spec in others] == [spec.name for spec in _plan(UpSettings())]
    assert (planner.name, planner.kind, planner.admin_port) == ("planner-0", "planner", 9004)
    assert _settings_of(planner).mesh.ns == "blue"


def test_a_settings_file_is_passed_on() -> None:
    for spec in _plan(UpSettings(), config=Path("/etc/kvmesh.toml")):
        assert _flags(spec)["--config"] == "/etc/kvmesh.toml"


def test_a_model_folder_is_passed_on_by_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert _flags(_plan(UpSettings(model="mine"))[1])["--model"] == str(tmp_path / "mine")


def test_a_mesh_where_nobody_decodes_is_refused() -> None:
    with pytest.raises(InvalidSetting, match=r"up\.decode"):
        plan_places(UpSettings(decode="0"), MACHINE)
