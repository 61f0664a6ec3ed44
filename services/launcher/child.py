"""A child of the launcher, one life after another: spawned, and found ready or ended."""

import asyncio
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import msgspec

from proto.errors import DeadlineExceeded, InternalFault, InvalidSetting, KvmeshError
from services.child import spawn_child, wait_child_ended
from services.launcher.child_log import log_tail
from services.launcher.probe import is_ready
from services.launcher.state import RunningProcess
from services.servers import Server

EXIT_WRONG_SETTING = 2
_PROBE_EVERY_S = 0.1
_HOST = "127.0.0.1"


class Child(Protocol):
    """What the supervisor needs of a child. `spawn` belongs on the main thread (see `services.child`)."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def log(self) -> Path: ...

    @property
    def admin_url(self) -> str: ...

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The life it leads now, or led last."""
        ...

    def spawn(self) -> None: ...

    async def wait_ready(self, limit_s: float) -> None:
        """
        Raises:
            InvalidSetting, InternalFault: it ended first.
            DeadlineExceeded: it was not ready after `limit_s`.
        """
        ...


def as_running(child: Child) -> RunningProcess:
    """What others are told of a child that was spawned."""
    return RunningProcess(
        name=child.name,
        kind=child.kind,
        pid=child.process.pid,
        log=str(child.log),
        admin_url=child.admin_url,
    )


class ChildSpec(msgspec.Struct, frozen=True):
    """How an application is started. No `cores`: wherever the system likes."""

    name: str
    kind: str
    argv: tuple[str, ...]
    log: Path
    admin_port: int
    cores: tuple[int, ...] = ()


class ApplicationChild:
    """A frontend, router or worker: ready when its admin port says so."""

    def __init__(self, spec: ChildSpec, environ: Mapping[str, str]) -> None:
        self.spec = spec
        self._environ = environ
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def kind(self) -> str:
        return self.spec.kind

    @property
    def log(self) -> Path:
        return self.spec.log

    @property
    def admin_url(self) -> str:
        return f"http://{_HOST}:{self.spec.admin_port}"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"{self.name} was not spawned")
        return self._process

    def spawn(self) -> None:
        with _cores_of_this_thread(self.spec.cores):
            self._process = spawn_child(self.spec.argv, log=self.spec.log, environ=self._environ)

    async def wait_ready(self, limit_s: float) -> None:
        process = self.process
        try:
            async with asyncio.timeout(limit_s):
                while not await is_ready(_HOST, self.spec.admin_port):
                    if await _has_ended_within(process, _PROBE_EVERY_S):
                        raise _early_end(self.name, process.returncode, self.log)
        except TimeoutError as error:
            raise DeadlineExceeded(
                what=f"the start of {self.name} (log: {self.log})", limit_s=limit_s
            ) from error


class ServerChild:
    """A nats-server or an etcd: ready when its log says so."""

    admin_url = ""

    def __init__(self, server: Server) -> None:
        self._server = server

    @property
    def name(self) -> str:
        return self._server.plan.name

    @property
    def kind(self) -> str:
        return "server"

    @property
    def log(self) -> Path:
        return self._server.plan.log_path

    @property
    def process(self) -> subprocess.Popen[bytes]:
        return self._server.process

    def spawn(self) -> None:
        self._server.spawn()

    async def wait_ready(self, limit_s: float) -> None:
        await asyncio.to_thread(self._server.wait_ready, limit_s)


@contextmanager
def _cores_of_this_thread(cores: Sequence[int]) -> Iterator[None]:
    """What is forked in the body may use `cores` only, from its first instruction; none means all of ours."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores or own)
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


async def _has_ended_within(process: "subprocess.Popen[bytes]", limit_s: float) -> bool:
    try:
        await asyncio.wait_for(wait_child_ended(process), limit_s)
    except TimeoutError:
        return False
    return True


def _early_end(name: str, code: int, log: Path) -> KvmeshError:
    lines = log_tail(log, num_lines=1)
    said = f"and said: {lines[0]}" if lines else "and said nothing"
    if code == EXIT_WRONG_SETTING:
        return InvalidSetting(setting=name, reason=f"it refused to start, {said} (log: {log})")
    return InternalFault(reason=f"{name} {how_it_ended(code)} before it was ready, {said} (log: {log})")


def how_it_ended(code: int) -> str:
    return f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
