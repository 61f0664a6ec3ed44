"""A mesh of processes started one by one, as on many machines: each says on its admin port how it is."""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from services.admin import AdminSettings
from services.bus import BusSettings
from services.directory import DirectorySettings
from services.entry import find_entry
from services.process import run_process
from services.servers import reserve_port
from tests.workers.forked import ForkedProcess

STOP_S = 30.0
LOOK_S = 0.05


def _run(kind: str, settings: Any, log: str) -> None:
    """The life of the process, as `kvmesh {kind}` leads it."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    entry = find_entry(kind)
    limit_s = settings.mesh.drain_limit_s
    sys.exit(run_process(lambda shutdown: entry.run(settings, shutdown), drain_limit_s=limit_s))


@dataclass
class LoneProcess:
    """One router, frontend or worker. What it said is in `log`."""

    name: str
    process: ForkedProcess
    admin_url: str
    log_path: Path

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def has_said(self, word: str) -> bool:
        return self.log_path.exists() and word in self.log

    @property
    def is_ready(self) -> bool:
        """
        Raises:
            AssertionError: it has ended.
        """
        assert self.process.is_running, self.log
        try:
            return httpx.get(f"{self.admin_url}/readyz", trust_env=False, timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    def metric(self, name: str, **labels: str) -> float:
        """The value of one sample, summed over the labels not named; 0 when it has none."""
        text = httpx.get(f"{self.admin_url}/metrics", trust_env=False, timeout=STOP_S).text
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


def start_alone(kind: str, name: str, folder: Path, nats: str, etcd: str, /, **settings: Any) -> LoneProcess:
    """A process that is told where NATS and etcd are, or will be; the caller closes its `process`.

    `settings` are those of its kind; whole tables replace what it would be told.
    """
    port = reserve_port()
    log_path = folder / f"{name}.log"
    told = {
        "bus": BusSettings(url=nats),
        "directory": DirectorySettings(endpoints=[etcd]),
        "admin": AdminSettings(port=port),
        **settings,
    }
    life = find_entry(kind).settings(**told)
    process = ForkedProcess(name, _run, kind, life, str(log_path))
    return LoneProcess(name, process, f"http://127.0.0.1:{port}", log_path)


def wait_until(what: str, is_so: Callable[[], bool], limit_s: float) -> None:
    """
    Raises:
        AssertionError: not so within `limit_s`.
    """
    deadline = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what}"
        time.sleep(LOOK_S)
