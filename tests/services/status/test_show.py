"""The command on a real NATS and etcd: the table, the JSON, the pools, and the mesh that is not there."""

import asyncio
import io
import json
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from proto import keys
from proto.errors import Disconnected, InvalidSetting
from services.directory import DirectorySettings, open_directory
from services.launcher.state import MeshFile, write_mesh
from services.servers import Server, reserve_port
from services.status.show import show_status
from services.status.status_settings import Address, StatusSettings, find_mesh
from tests.services.status.scripted_worker import scripted_worker


def _show(settings: StatusSettings, nats: Server, etcd: Server, ns: str) -> str:
    async def body() -> None:
        address = msgspec.structs.replace(settings, nats=nats.url, etcd=etcd.url, ns=ns)
        async with scripted_worker(nats, etcd, ns), asyncio.timeout(20):
            await show_status(address, Console(file=output, width=80), asyncio.Event())

    output = io.StringIO()
    asyncio.run(body())
    return output.getvalue()


def test_the_table_joins_card_and_report(nats_server: Server, etcd_server: Server, namespace: str) -> None:
    text = _show(StatusSettings(once=True), nats_server, etcd_server, namespace)
    assert [line.split() for line in text.splitlines()] == [
        ["org/Model-1.5"],
        ["worker", "role", "state", "epoch", "running", "waiting", "jobs", "blocks", "hits", "tok/s"],
        ["w-1", "decode", "ready", "3", "2", "1", "0", "4/64", "50%", "20"],
    ]


def test_the_planner_that_leads_is_named_below_the_table(
    nats_server: Server, etcd_server: Server, namespace: str
) -> None:
    async def put() -> None:
        async with open_directory(DirectorySettings(endpoints=[etcd_server.url])) as directory:
            for planner in ("p-first", "a-second"):
                await directory.put(keys.planner(namespace, planner), b"")

    asyncio.run(put())
    text = _show(StatusSettings(once=True), nats_server, etcd_server, namespace)
    assert text.splitlines()[-1] == "planner p-first leads; standing by: 1"


def test_json_has_every_field(nats_server: Server, etcd_server: Server, namespace: str) -> None:
    (row,) = json.loads(_show(StatusSettings(json=True), nats_server, etcd_server, namespace))
    assert (row["worker"], row["role"], row["num_running"], row["is_beating"]) == ("w-1", "decode", 2, True)


def test_pools_shows_whose_every_block_is(nats_server: Server, etcd_server: Server, namespace: str) -> None:
    text = _show(StatusSettings(pools=True), nats_server, etcd_server, namespace)
    assert [line.split() for line in text.splitlines()] == [
        ["worker", "free", "active", "cached", "granted", "pinned", "quarantined", "total"],
        ["w-1", "50", "7", "20", "5", "3", "2", "64"],
        [],
        ["worker", "what", "name", "holder", "blocks", "age"],
        ["w-1", "grant", "g-1", "w-2", "5", "1.5", "s"],
        ["w-1", "pin", "p-1", "w-4", "3", "0.5", "s"],
        ["w-1", "quarantine", "g-0", "w-3", "2", "60.0", "s"],
        ["w-1", "holds", "g-9", "itself"],
    ]


def test_pools_as_json(nats_server: Server, etcd_server: Server, namespace: str) -> None:
    holdings = json.loads(_show(StatusSettings(pools=True, json=True), nats_server, etcd_server, namespace))
    assert holdings["w-1"]["granted"][0]["num_blocks"] == 5


def test_a_live_table_ends_when_told_to(nats_server: Server, etcd_server: Server, namespace: str) -> None:
    async def body() -> None:
        settings = StatusSettings(nats=nats_server.url, etcd=etcd_server.url, ns=namespace, refresh_s=0.05)
        shutdown = asyncio.Event()
        async with scripted_worker(nats_server, etcd_server, namespace), asyncio.timeout(20):
            asyncio.get_running_loop().call_later(0.5, shutdown.set)
            await show_status(settings, Console(file=output, force_terminal=True, width=160), shutdown)

    output = io.StringIO()
    asyncio.run(body())
    assert output.getvalue().count("w-1") > 1


def test_a_mesh_out_of_reach_is_one_error(nats_server: Server) -> None:
    gone = f"127.0.0.1:{reserve_port()}"
    settings = StatusSettings(nats=nats_server.url, etcd=gone, connect_limit_s=0.3)
    with pytest.raises(Disconnected, match=gone):
        asyncio.run(show_status(settings, Console(file=io.StringIO()), asyncio.Event()))


def test_the_state_folder_says_where_the_mesh_is(tmp_path: Path) -> None:
    write_mesh(
        tmp_path,
        MeshFile(
            launcher_pid=1,
            namespace="blue",
            nats_url="nats://127.0.0.1:1",
            etcd_endpoint="127.0.0.1:2",
            url="http://127.0.0.1:3",
            processes=[],
        ),
    )
    assert find_mesh(StatusSettings(state=str(tmp_path))) == Address(
        "nats://127.0.0.1:1", "127.0.0.1:2", "blue"
    )


def test_half_an_address_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="go together"):
        find_mesh(StatusSettings(nats="nats://127.0.0.1:1"))
