"""Real servers for every test: one nats-server and one etcd for all, private ones where a test hurts them."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from proto.names import new_id
from services.servers import Server, start_etcd, start_nats

# before torch is imported: its threads spin for one another, and on a busy machine that takes minutes
os.environ.setdefault("OMP_NUM_THREADS", "1")

# UCX takes the fastest link, even between processes of one host: what is connected over one that another test
# makes (see tests/workers/hosts.py) hangs when that is gone
os.environ.setdefault("UCX_NET_DEVICES", "lo")
# A server promises each of the many namespaces all that it may keep, up to three quarters of the free disk.
os.environ.setdefault("KVMESH_OBJECTS_MAX_BYTES", str(2**26))

# a pause of the machine is no finding
settings.register_profile("kvmesh", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kvmesh")


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A nats-server with JetStream that all tests share and none may stop; keep to your `namespace`."""
    server = start_nats(tmp_path_factory.mktemp("nats"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An etcd that all tests share and none may stop; keep to your `namespace`."""
    server = start_etcd(tmp_path_factory.mktemp("etcd"))
    yield server
    server.stop()


@pytest.fixture
def namespace() -> str:
    """A namespace that no other test has, so that one server serves them all."""
    return f"test-{new_id()}"


@pytest.fixture
def make_nats(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """`make_nats(jetstream=True)`: a nats-server of this test's own, to kill, suspend or restart."""
    with ExitStack() as stack:

        def make(*, jetstream: bool = True) -> Server:
            server = start_nats(tmp_path / f"nats-{new_id()}", jetstream=jetstream)
            stack.callback(server.stop)
            return server

        yield make


@pytest.fixture
def make_etcd(tmp_path: Path) -> Iterator[Callable[[], Server]]:
    """`make_etcd()`: an etcd of this test's own, to kill, suspend or restart."""
    with ExitStack() as stack:

        def make() -> Server:
            server = start_etcd(tmp_path / f"etcd-{new_id()}")
            stack.callback(server.stop)
            return server

        yield make
