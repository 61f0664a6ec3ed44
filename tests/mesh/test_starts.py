"""Starts: in any order, beside servers that are not there yet, and against servers of another kind."""

import os
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from proto.roles import Role
from services.mesh_settings import MeshSettings
from services.process import EXIT_WRONG_SETTING
from services.servers import Server, plan_etcd, plan_nats, reserve_port, start_nats
from tests.mesh.apart import STOP_S, LoneProcess, start_alone, wait_until
from tests.tiny_model import write_tiny_llama

SEED_VARIABLE = "TEST_SEED"
APPLICATIONS = ("router", "frontend", "prefill", "decode")
SERVERS = ("nats", "etcd")
MAX_PAUSE_S = 0.7
READY_S = 90.0
WRONG_S = 60.0
MESH = MeshSettings(drain_limit_s=1)
SIMULATED = {"engine": "simulated", "num_blocks": 128, "remote_min_tokens": 16, "prefill_choice": "threshold"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


class Starts:
    """One mesh, whose processes are started one at a time and stopped together."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.port = reserve_port()
        self.processes: list[LoneProcess] = []
        self.nats = Server(plan_nats(folder / "nats"))
        self.etcd = Server(plan_etcd(folder / "etcd"))
        self._folder = folder
        self._model = model

    def start(self, name: str) -> None:
        if name in SERVERS:
            {"nats": self.nats, "etcd": self.etcd}[name].spawn()
            return
        worker = {"model": str(self._model), **SIMULATED}
        settings: dict[str, tuple[str, dict[str, Any]]] = {
            "router": ("router", {}),
            "frontend": ("frontend", {"port": self.port}),
            "prefill": ("worker", {"role": Role.PREFILL, **worker}),
            "decode": ("worker", {"role": Role.DECODE, **worker}),
        }
        kind, own = settings[name]
        where = (self._folder, self.nats.url, self.etcd.url)
        self.processes.append(start_alone(kind, name, *where, mesh=MESH, **own))

    def check_serves(self) -> None:
        """A ready mesh answers at once; the prompt is long enough for a prefill elsewhere."""
        body = {"model": "tiny", "prompt": list(range(20, 80)), "max_tokens": 3, "ignore_eos": True}
        url = f"http://127.0.0.1:{self.port}/v1/completions"
        answer = httpx.post(url, json=body, trust_env=False, timeout=READY_S)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == 3

    def stop(self) -> None:
        for process in self.processes:
            process.process.terminate()
        codes = {process.name: process.process.wait(STOP_S) for process in self.processes}
        assert set(codes.values()) == {0}, codes

    def close(self) -> None:
        for process in self.processes:
            process.process.close()
        self.nats.stop()
        self.etcd.stop()


def check_starts(folder: Path, model: Path, num_rounds: int) -> None:
    seed = int(os.environ.get(SEED_VARIABLE, random.SystemRandom().randrange(10**6)))
    print(f"{SEED_VARIABLE}={seed}")
    chosen = random.Random(seed)
    for number in range(num_rounds):
        (folder / str(number)).mkdir()
        mesh = Starts(folder / str(number), model)
        try:
            _start_all(mesh, chosen)
            mesh.check_serves()
            mesh.stop()
        finally:
            mesh.close()


def _start_all(mesh: Starts, chosen: random.Random) -> None:
    """In some order, until all are ready; nobody ends for want of what is not there yet."""
    order = chosen.sample([*SERVERS, *APPLICATIONS], k=len(SERVERS) + len(APPLICATIONS))
    print(order)
    for name in order:
        mesh.start(name)
        if mesh.processes:
            with pytest.raises(AssertionError, match="still runs"):
                mesh.processes[-1].process.wait(chosen.random() * MAX_PAUSE_S)
    wait_until("all are ready", lambda: all(process.is_ready for process in mesh.processes), READY_S)


@pytest.mark.slow
def test_processes_started_in_any_order_serve(tmp_path: Path, model: Path) -> None:
    check_starts(tmp_path, model, 3)


def test_a_worker_is_ready_once_a_router_would_choose_it(tmp_path: Path, model: Path) -> None:
    """So that a rolling replacement, which stops the old ones then, leaves no moment without a worker."""
    mesh = Starts(tmp_path, model)
    try:
        for name in (*SERVERS, "decode"):
            mesh.start(name)
        worker = mesh.processes[0]
        wait_until("it is registered", lambda: worker.has_said("ready as decode"), READY_S)
        assert not worker.is_ready
        mesh.start("router")
        wait_until("the router knows it", lambda: worker.is_ready, READY_S)
    finally:
        mesh.close()


@pytest.mark.slow
def test_processes_started_in_ten_orders_serve(tmp_path: Path, model: Path) -> None:
    check_starts(tmp_path, model, 10)


class _Page(BaseHTTPRequestHandler):
    """A page that is no etcd's, and no log."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Silent."""


@contextmanager
def http_server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = threading.Thread(target=server.serve_forever, name="an HTTP server")
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@contextmanager
def silent_port() -> Iterator[str]:
    """It takes connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_wrong_server_is_named_in_seconds(
    tmp_path: Path, model: Path, nats_server: Server, etcd_server: Server
) -> None:
    """All at once: they wait out what may be a server that starts, and then say what is wrong."""
    nats, etcd = nats_server.url, etcd_server.url
    with ExitStack() as stack:
        web, silent = stack.enter_context(http_server()), stack.enter_context(silent_port())
        plain = start_nats(tmp_path / "plain", jetstream=False)
        stack.callback(plain.stop)
        worker = {"model": str(model), **SIMULATED}
        no_nats, no_etcd = "takes connections but does not speak NATS", "is no etcd; it says"
        cases: dict[str, tuple[str, str, str, dict[str, Any], str]] = {
            "etcd is a web server": ("router", nats, web, {}, f"{web} {no_etcd} 'HTTP/1"),
            "etcd is a NATS": ("router", nats, nats[7:], {}, f"{nats[7:]} {no_etcd} 'INFO"),
            "etcd is silent": ("router", nats, silent, {}, f"{silent} takes connections and says nothing"),
            "NATS is a web server": ("router", f"nats://{web}", etcd, {}, f"{web} {no_nats}"),
            "NATS is an etcd": ("router", f"nats://{etcd}", etcd, {}, f"{etcd} {no_nats}"),
            "NATS is silent": ("router", f"nats://{silent}", etcd, {}, f"{silent} {no_nats}"),
            "a frontend without JetStream": ("frontend", plain.url, etcd, {"port": 0}, "has no JetStream"),
            "a worker without JetStream": ("worker", plain.url, etcd, worker, "has no JetStream"),
        }
        started: dict[str, LoneProcess] = {}
        for name, (kind, nats_url, etcd_endpoint, own, _) in cases.items():
            started[name] = start_alone(kind, name, tmp_path, nats_url, etcd_endpoint, mesh=MESH, **own)
            stack.callback(started[name].process.close)
        codes = {name: process.process.wait(WRONG_S) for name, process in started.items()}
        said = {name: process.log.strip().splitlines()[-1] for name, process in started.items()}
    assert codes == dict.fromkeys(cases, EXIT_WRONG_SETTING), said
    assert all(case[-1] in said[name] for name, case in cases.items()), said
