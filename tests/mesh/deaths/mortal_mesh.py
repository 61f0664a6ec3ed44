"""A mesh of which anything may be killed: its servers are the test's, its other processes a launcher's."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import httpx
import psutil

from services.child import end_child, spawn_child
from services.directory import DirectorySettings, Entry, open_directory
from services.servers import Server, reserve_port, start_etcd, start_nats
from tests.mesh.deaths.crowd import Crowd, reading, under_load
from tests.mesh.running_mesh import RunningMesh, run_mesh

STEP_S = 0.02
TIMES = {
    "KVMESH_SIMULATED_STEP_S": str(STEP_S),
    "KVMESH_SIMULATED_FIRST_TOKEN": "20",
    "KVMESH_SIMULATED_NUM_TOKENS": "200",
}
"""A token each step, none of which ends a text."""


def prompts_of(topic: str, num_prompts: int) -> list[str]:
    """Prompts of different lengths and ends, so that no two answers are alike."""
    return [f"{topic}, " + "once upon a time " * (index % 5) + f"no. {index}" for index in range(num_prompts)]


class MortalMesh:
    """A mesh, its servers, and what its clients would read were it left alone."""

    def __init__(self, running: RunningMesh, model: Path, nats: Server, etcd: Server) -> None:
        self.running = running
        self.nats = nats
        self.etcd = etcd
        self._model = model
        self._texts: dict[tuple[str, int], str] = {}

    def reading(self, prompts: Sequence[str], num_tokens: int) -> AbstractContextManager[Crowd]:
        return reading(self._crowd(prompts, num_tokens, "disturbed"))

    def under_load(self, prompts: Sequence[str], num_tokens: int) -> AbstractContextManager[Crowd]:
        return under_load(self._crowd(prompts, num_tokens, "disturbed"))

    def _crowd(self, prompts: Sequence[str], num_tokens: int, salt: str) -> Crowd:
        return Crowd(self.running.url, self._model.name, prompts, num_tokens, salt)

    def undisturbed(self, prompts: Sequence[str], num_tokens: int) -> dict[str, str]:
        """The text of each prompt; read now, in peace, unless it was before. It shares no KV with others."""
        unknown = [prompt for prompt in prompts if (prompt, num_tokens) not in self._texts]
        if unknown:
            with reading(self._crowd(unknown, num_tokens, "undisturbed")) as crowd:
                pass
            assert all(one.is_whole for one in crowd.readings), crowd.readings
            self._texts |= {(one.prompt, num_tokens): one.text for one in crowd.readings}
        return {prompt: self._texts[prompt, num_tokens] for prompt in prompts}

    def ask(self) -> httpx.Response:
        """A short answer, or why there is none."""
        body = {"model": self._model.name, "prompt": "are you there?", "max_tokens": 2}
        return self.running.http.post("/v1/completions", json=body)

    @property
    def decoders(self) -> list[str]:
        return [name for name in self.running.pids if name.startswith("decode-")]

    @property
    def routers(self) -> list[str]:
        return [name for name in self.running.pids if name.startswith("router-")]

    def decoders_sum(self, metric: str) -> float:
        """A metric of the decode workers, summed over them."""
        return sum(self.running.metric(name, metric) for name in self.decoders)

    @contextmanager
    def without_nats(self) -> Iterator[None]:
        """nats-server is killed for the time of the body."""
        self.nats.kill()
        try:
            yield
        finally:
            self.nats.restart()

    def signal(self, signum: signal.Signals, *names: str) -> None:
        for pid in [self.running.pids[name] for name in names]:
            os.kill(pid, signum)

    def kill(self, *names: str) -> None:
        """On return they are gone, and so are their connections."""
        pids = [self.running.pids[name] for name in names]
        self.signal(signal.SIGKILL, *names)
        self.running.wait_until("they are gone", lambda: not any(map(psutil.pid_exists, pids)))

    def wait_back(self, before: dict[str, int], *names: str) -> None:
        """Each of `names` leads another life than in `before`, and is ready."""
        self.running.wait_until(
            f"{', '.join(names)} are back", lambda: all(self._is_back(before, name) for name in names), 60
        )

    def _is_back(self, before: dict[str, int], name: str) -> bool:
        child = self.running.child(name)
        return child.pid != before[name] and _is_ready(child.admin_url)

    def num_known_workers(self) -> set[float]:
        """How many decode workers each router may choose among; one number when they agree."""
        return {self.running.metric(name, "kvmesh_route_workers") for name in self.routers}

    def directory_keys(self) -> set[str]:
        """Every key of the mesh."""
        return {entry.key for entry in self._directory_entries()}

    def owned_revisions(self) -> dict[str, int]:
        """The keys that live by a lease, and when each was written last."""
        return {entry.key: entry.revision for entry in self._directory_entries() if entry.lease_id}

    def _directory_entries(self) -> list[Entry]:
        async def list_all() -> list[Entry]:
            async with open_directory(DirectorySettings(endpoints=[self.etcd.url])) as directory:
                return await directory.list("/kvmesh/")

        return asyncio.run(list_all())

    def revoke_leases(self) -> int:
        """Every lease that etcd has is ended; how many these were."""
        url = f"http://{self.etcd.url}/v3/lease"
        leases = httpx.post(f"{url}/leases", json={}, trust_env=False).json()["leases"]
        for lease in leases:
            httpx.post(f"{url}/revoke", json={"ID": lease["ID"]}, trust_env=False).raise_for_status()
        return len(leases)

    @contextmanager
    def newcomer(self) -> Iterator[str]:
        """One more decode worker, which no launcher knows and which waits for etcd; its admin port's URL."""
        port = reserve_port()
        child = self.spawn_worker("newcomer", port, TIMES)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            code = end_child(child, 10)
        assert code == 0, self.running.log("newcomer")

    def spawn_worker(self, name: str, port: int, environ: dict[str, str]) -> "subprocess.Popen[bytes]":
        """A simulated decode worker that no launcher knows, and that waits for etcd.

        Args: `port`: of its admin pages.
        """
        argv = [sys.executable, "-m", "services.cli", "worker", "--name", name, "--engine", "simulated"]
        argv += ["--model", str(self._model), "--bus-url", self.nats.url, "--admin-port", str(port)]
        argv += ["--directory-endpoints", self.etcd.url, "--mesh-drain-limit-s", "5"]
        argv += ["--directory-connect-timeout-s", "120", "--directory-wrong-server-after-s", "120"]
        log = self.running.state / "logs" / f"{name}.log"
        return spawn_child(argv, log=log, environ=os.environ | environ)


def _is_ready(admin_url: str) -> bool:
    try:
        return httpx.get(f"{admin_url}/readyz", trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def check_unavailable(response: httpx.Response) -> None:
    """A typed 503: OpenAI's envelope, and when to come again."""
    assert response.status_code == 503, response.text
    error = response.json()["error"]
    assert error["message"] and error["type"] and error["code"]
    assert int(response.headers["retry-after"]) >= 1


def seconds_since(began_s: float) -> float:
    return time.monotonic() - began_s


@contextmanager
def run_mortal_mesh(folder: Path, model: Path, *flags: str, environ: dict[str, str]) -> Iterator[MortalMesh]:
    """A mesh whose nats-server and etcd live outside its launcher, so that only a test starts them again."""
    nats = start_nats(folder / "nats")
    etcd = start_etcd(folder / "etcd")
    servers = ("--nats", nats.url, "--etcd", etcd.url)
    try:
        with run_mesh(folder / "state", str(model), *servers, *flags, environ=environ) as running:
            running.wait_until("all are ready", lambda: "ready after" in running.output(), 60)
            yield MortalMesh(running, model, nats, etcd)
    finally:
        etcd.stop()
        nats.stop()
