"""Two hosts on one machine: network namespaces, each with a link to us, and one to the other for KV alone.

```
        we: NATS, etcd, the client
     10.213.7.1         10.213.7.5
         │                   │
     10.213.7.2         10.213.7.6
       left ─── kv ─── kv ─── right
     10.213.7.9         10.213.7.10
```

Their processes and memory are one machine's all the same: workers on them are to be told to use TCP.
"""

import ctypes
import fcntl
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

LEFT, RIGHT = "kvmesh-left", "kvmesh-right"
ADDRESSES = {LEFT: "10.213.7.2", RIGHT: "10.213.7.6"}
"""Of each host, for us."""
KV_LINK = "kv"
OUR_ADDRESS = "10.213.7.1"
_OUR_LINK = "kvmesh"
_CLONE_NEWNS, _CLONE_NEWNET = 0x20000, 0x40000000
_UP_S = 10.0
_TURN_S = 100.0
_LOCK = Path(tempfile.gettempdir()) / "kvmesh-hosts.lock"
_MS_REC, _MS_SLAVE = 0x4000, 0x80000


class NoRights(Exception):
    """This process may not make network namespaces; the text says what was refused."""


class Hosts:
    """The two, and the link between them."""

    def cut(self) -> None:
        _run(f"ip -n {LEFT} link set {KV_LINK} down")

    def mend(self) -> None:
        _run(f"ip -n {LEFT} link set {KV_LINK} up")
        _wait_up(LEFT, KV_LINK)

    def drop_connections(self) -> None:
        """What is connected over TCP from one to the other dies at the left one; what comes next is well.

        Raises:
            NoRights: this kernel does not do that.
        """
        established = "state established src 10.213.7.9"
        drop = f"ip netns exec {LEFT} ss --kill --no-header {established}"
        look = f"ip netns exec {LEFT} ss --no-header {established}"
        try:
            _run(drop)
            left = _run(look)
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            raise NoRights(str(error)) from error
        if left:
            raise NoRights(f"connections outlived `{drop}`")

    def throttle(self, kbit: int) -> None:
        """What leaves the left one for the right one goes at this pace."""
        _run(f"tc -n {LEFT} qdisc replace dev {KV_LINK} root tbf rate {kbit}kbit burst 64kb latency 200ms")

    def unthrottle(self) -> None:
        _run(f"tc -n {LEFT} qdisc del dev {KV_LINK} root")

    def restore(self) -> None:
        """As it was, whatever was done to it."""
        self.mend()
        with suppress(subprocess.CalledProcessError):
            self.unthrottle()


@contextmanager
def open_hosts() -> Iterator[Hosts]:
    """
    Raises:
        NoRights: namespaces cannot be made here.
        TimeoutError: another run has had them for too long.
    """
    with _turn():
        _remove()
        try:
            _make_namespaces()
            _make_links()
            yield Hosts()
        finally:
            _remove()


@contextmanager
def _turn() -> Iterator[None]:
    """Names and addresses are the machine's: two runs of the tests at once have them one after the other."""
    end_s = time.monotonic() + _TURN_S
    with _LOCK.open("w") as lock:
        while not _has_locked(lock):
            if time.monotonic() > end_s:
                raise TimeoutError(f"another run has the hosts, see {_LOCK}")
            time.sleep(0.1)
        yield


def _has_locked(lock: IO[str]) -> bool:
    """From then on until the file is closed, be it by the end of the process."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _make_namespaces() -> None:
    try:
        for host in (LEFT, RIGHT):
            _run(f"ip netns add {host}")
    except FileNotFoundError as error:
        raise NoRights("there is no program `ip`") from error
    except subprocess.CalledProcessError as error:
        raise NoRights(error.stderr.strip()) from error


def _make_links() -> None:
    for host, number in ((LEFT, 1), (RIGHT, 5)):
        ours = f"{_OUR_LINK}{number}"
        _run(f"ip -n {host} link set lo up")
        _run(f"ip link add {ours} type veth peer name us netns {host}")
        _run(f"ip addr add 10.213.7.{number}/30 dev {ours}")
        _run(f"ip link set {ours} up")
        _run(f"ip -n {host} addr add 10.213.7.{number + 1}/30 dev us")
        _run(f"ip -n {host} link set us up")
        _run(f"ip -n {host} route add default via 10.213.7.{number}")
    _run(f"ip -n {LEFT} link add {KV_LINK} type veth peer name {KV_LINK} netns {RIGHT}")
    for host, number in ((LEFT, 9), (RIGHT, 10)):
        _run(f"ip -n {host} addr add 10.213.7.{number}/30 dev {KV_LINK}")
        _run(f"ip -n {host} link set {KV_LINK} up")
    for host in (LEFT, RIGHT):
        _wait_up(host, "us")
        _wait_up(host, KV_LINK)


def _wait_up(host: str, link: str) -> None:
    """The kernel may take a second to find that the other end is there; until then UCX does not see the link.

    Raises:
        TimeoutError: it is not up.
    """
    end_s = time.monotonic() + _UP_S
    while "state UP" not in _run(f"ip -n {host} -o link show {link}"):
        if time.monotonic() > end_s:
            raise TimeoutError(f"{link} of {host} does not come up")
        time.sleep(0.02)


def _remove() -> None:
    """Links go with their namespaces; but those live while a process of a test that was killed does."""
    commands = [f"ip link del {_OUR_LINK}{number}" for number in (1, 5)]
    commands += [f"ip netns del {host}" for host in (LEFT, RIGHT)]
    for command in commands:
        with suppress(FileNotFoundError, subprocess.CalledProcessError):
            _run(command)


def _run(command: str) -> str:
    return subprocess.run(command.split(), check=True, capture_output=True, text=True).stdout


def enter_host(host: str) -> None:
    """Move the calling process, which has one thread, onto the host; its /sys shows that host's links."""
    libc = ctypes.CDLL(None, use_errno=True)
    namespace = os.open(f"/run/netns/{host}", os.O_RDONLY)
    results = (
        libc.setns(namespace, _CLONE_NEWNET),
        libc.unshare(_CLONE_NEWNS),
        libc.mount(b"none", b"/", None, _MS_REC | _MS_SLAVE, None),
        libc.mount(b"kvmesh", b"/sys", b"sysfs", 0, None),
    )
    os.close(namespace)
    if any(results):
        raise OSError(ctypes.get_errno(), f"{host} cannot be entered: {results}")
