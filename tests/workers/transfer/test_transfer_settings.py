"""What an operator says about the KV plane reaches the library, or is refused with a word that helps."""

import ctypes
import shutil
import subprocess
import sys

import psutil
import pytest

from proto.errors import InternalFault, InvalidSetting
from tests.workers.forked import ForkedProcess
from tests.workers.transfer.pools import MemoryPool
from workers.transfer.nixl_transport import NixlTransport
from workers.transfer.transfer_settings import (
    TransferSettings,
    apply_to_environment,
    backend_parameters,
    ucx_environment,
)

FIRST_PORT = 42_000
LAST_PORT = 42_999
CLONE_NEWNET = 0x40000000
NO_RIGHTS = 77


def _sleep_on() -> None:
    """Nobody waits for a transfer here."""


def test_nothing_said_leaves_ucx_as_it_is() -> None:
    assert ucx_environment(TransferSettings()) == {}
    assert backend_parameters(TransferSettings()) == {}


def test_each_setting_has_the_name_that_ucx_knows() -> None:
    settings = TransferSettings(
        interfaces=["lo"],
        ports="42000-42099",
        transports=["tcp", "^cma"],
        ucx=["UCX_KEEPALIVE_INTERVAL=5s", "UCX_TCP_KEEPIDLE=3s"],
        nixl=["num_workers=2"],
    )
    assert ucx_environment(settings) == {
        "UCX_KEEPALIVE_INTERVAL": "5s",
        "UCX_TCP_KEEPIDLE": "3s",
        "UCX_NET_DEVICES": "lo",
        "UCX_TCP_PORT_RANGE": "42000-42099",
        "UCX_TLS": "tcp,^cma",
    }
    assert backend_parameters(settings) == {"num_workers": "2"}


@pytest.mark.parametrize(
    ("settings", "setting", "hint"),
    [
        (TransferSettings(interfaces=["lo", "eht0"]), "transfer.interfaces", "'eht0' is not here"),
        (TransferSettings(ports="42000"), "transfer.ports", "42000-42099"),
        (TransferSettings(ports="42099-42000"), "transfer.ports", "42000-42099"),
        (TransferSettings(ports="0-70000"), "transfer.ports", "42000-42099"),
        (TransferSettings(transports=["tpc"]), "transfer.transports", "'tpc' is none of"),
        (TransferSettings(ucx=["TLS=tcp"]), "transfer.ucx", "'TLS=tcp'"),
        (TransferSettings(ucx=["UCX_TLS"]), "transfer.ucx", "'UCX_TLS'"),
    ],
)
def test_what_ucx_would_not_understand_is_refused_and_said(
    settings: TransferSettings, setting: str, hint: str
) -> None:
    with pytest.raises(InvalidSetting) as refused:
        ucx_environment(settings)
    assert refused.value.values["setting"] == setting
    assert hint in str(refused.value)


def _name_links_that_are_down() -> None:
    """Exits with 0 when interfaces are refused of which none is up; on a host of its own, whose one link, to
    itself, is down at first. Exits with `NO_RIGHTS` where there can be no such host."""
    if shutil.which("ip") is None or ctypes.CDLL(None).unshare(CLONE_NEWNET):
        sys.exit(NO_RIGHTS)
    with pytest.raises(InvalidSetting, match="down: 'lo'"):
        ucx_environment(TransferSettings(interfaces=["lo"]))
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["ip", "link", "add", "other", "type", "veth"], check=True)
    assert ucx_environment(TransferSettings(interfaces=["other", "lo"]))["UCX_NET_DEVICES"] == "other,lo"


def test_interfaces_of_which_none_is_up_are_refused_and_said() -> None:
    process = ForkedProcess("apart", _name_links_that_are_down)
    code = process.wait(20.0)
    process.close()
    if code == NO_RIGHTS:
        pytest.skip("no network namespaces here")
    assert code == 0


def test_a_parameter_of_nixl_that_it_would_ignore_is_refused() -> None:
    with pytest.raises(InvalidSetting):
        backend_parameters(TransferSettings(nixl=["num_workers"]))
    with pytest.raises(InvalidSetting, match="num_workers"):
        NixlTransport("x", MemoryPool().layout, {"num_worker": "2"}).open(_sleep_on)


def _listen_where_told() -> None:
    """Exits with 0 when an agent under these settings listens in their range of ports alone."""
    before = _listening_ports()
    apply_to_environment(
        TransferSettings(interfaces=["lo"], ports=f"{FIRST_PORT}-{LAST_PORT}", transports=["tcp"])
    )
    transport = NixlTransport("told", MemoryPool().layout)
    transport.open(_sleep_on)
    ports = _listening_ports() - before
    transport.close()
    assert ports
    assert all(FIRST_PORT <= port <= LAST_PORT for port in ports), ports


def _listening_ports() -> set[int]:
    """Of this process alone: others come and go beside it."""
    own = psutil.Process().net_connections("tcp")
    return {each.laddr.port for each in own if each.status == psutil.CONN_LISTEN}


def test_an_agent_listens_in_the_range_of_ports_that_a_firewall_lets_through() -> None:
    process = ForkedProcess("listener", _listen_where_told)
    assert process.wait(20.0) == 0
    process.close()


def _open_over_nothing() -> None:
    """Exits with 0 when a transport that is not on this machine is an error of ours, at the opening."""
    apply_to_environment(TransferSettings(transports=["gdr_copy"]))
    try:
        NixlTransport("nowhere", MemoryPool().layout).open(_sleep_on)
    except InternalFault as error:
        assert "NIXL does not start" in str(error)
    else:
        raise AssertionError("it opened")


def test_transports_that_are_not_on_this_machine_end_the_start_with_a_reason() -> None:
    process = ForkedProcess("nowhere", _open_over_nothing)
    assert process.wait(20.0) == 0
    process.close()
