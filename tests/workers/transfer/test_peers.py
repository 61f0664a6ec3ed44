"""Who can be met: this very life of a worker, if its KV can move here at all."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from proto import keys
from proto.cards import AgentCard
from proto.codec import encode
from proto.errors import LayoutMismatch, PeerGone
from proto.names import new_id
from services.directory import Directory, DirectorySettings, open_directory
from services.servers import Server
from services.tasks import open_tasks
from tests.workers.harness import until
from tests.workers.transfer.conftest import Exchange
from tests.workers.transfer.scene import PeerProcess, Scene, open_scene
from workers.transfer import nixl_line
from workers.transfer.agents import Agents
from workers.transfer.peers import Peers


@asynccontextmanager
async def following(etcd: Server, ns: str, scene: Scene) -> AsyncIterator[tuple[Peers, Directory]]:
    agents = Agents()
    peers = Peers(scene.memory, "we", agents)
    agents.on_new(peers.judge)
    agents.on_forgotten(peers.forget)
    async with (
        open_directory(DirectorySettings(endpoints=[etcd.url])) as directory,
        open_tasks() as tasks,
    ):
        life = tasks.create_task(agents.follow(directory, ns), name="agents")
        yield peers, directory
        life.cancel()


async def show(directory: Directory, peers: Peers, ns: str, card: AgentCard) -> None:
    """Puts the card into the directory, and waits until it is known."""
    await directory.put(keys.agent(ns, card.worker), encode(card))

    async def is_known() -> bool:
        return peers.card(card.worker, card.incarnation) is not None

    await until("the card is known", is_known)


def run_peers(
    exchange: Exchange,
    etcd: Server,
    ns: str,
    body: Callable[[Peers, Callable[[AgentCard], Awaitable[None]], Scene, PeerProcess], Awaitable[None]],
) -> None:
    async def run(scene: Scene, child: PeerProcess) -> None:
        async with following(etcd, ns, scene) as (peers, directory):
            await body(peers, lambda card: show(directory, peers, ns, card), scene, child)

    exchange.run(run)


def test_a_worker_that_is_started_again_is_another_peer(
    exchange: Exchange, etcd_server: Server, namespace: str
) -> None:
    async def body(
        peers: Peers, show: Callable[[AgentCard], Awaitable[None]], scene: Scene, _: PeerProcess
    ) -> None:
        first = scene.start_stranger("again")
        await show(first.peer.card)
        assert (await peers.meet("again", first.peer.card.incarnation)).card == first.peer.card
        first.process.kill()
        second = scene.start_stranger("again")
        await show(second.peer.card)
        with pytest.raises(PeerGone):
            await peers.meet("again", first.peer.card.incarnation)
        assert (await peers.meet("again", second.peer.card.incarnation)).card == second.peer.card
        scene.pool.fill(1, 30)
        assert await scene.move("WRITE", second, [(1, 2)]) is None
        assert second.layers(2) == [30, 31, 32, 33]

    run_peers(exchange, etcd_server, namespace, body)


@pytest.mark.parametrize("min_shared_bytes", [1, nixl_line.MIN_SHARED_BYTES])
def test_a_peer_whose_connection_has_died_is_met_anew(
    etcd_server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch, min_shared_bytes: int
) -> None:
    """Both processes live on. Until they part, every further transfer fails like the first, be it moved by
    one agent or by two."""
    monkeypatch.setenv("UCX_TLS", "tcp")
    monkeypatch.setattr(nixl_line, "MIN_SHARED_BYTES", min_shared_bytes)

    async def run() -> None:
        async with open_scene() as scene, following(etcd_server, namespace, scene) as (peers, directory):
            child = scene.start_stranger("cut off", ucx_tls="tcp")
            card = child.peer.card
            await show(directory, peers, namespace, card)
            first = await peers.meet(card.worker, card.incarnation)
            assert await scene.move("WRITE", child, [(0, 0), (5, 5)]) is None
            child.cut_connections()
            for _ in range(2):
                assert isinstance(await scene.move("WRITE", child, [(0, 0), (5, 5)]), PeerGone)
                assert await peers.meet(card.worker, card.incarnation) is first
            peers.part(first)
            second = await peers.meet(card.worker, card.incarnation)
            peers.part(first)  # who else used the dead connection says so late
            assert await peers.meet(card.worker, card.incarnation) is second
            scene.pool.fill(1, 30)
            assert await scene.move("WRITE", child, [(1, 2), (5, 5)]) is None
            assert await scene.move("READ", child, [(2, 3), (5, 5)]) is None
            assert child.layers(2) == scene.pool.layers(3) == [30, 31, 32, 33]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("field", "value"), [("dtype", "bfloat16"), ("item_bytes", 2), ("block_size", 24), ("head_dim", 16)]
)
def test_kv_that_cannot_move_here_is_refused_when_its_worker_is_first_heard_of(
    exchange: Exchange,
    etcd_server: Server,
    namespace: str,
    caplog: pytest.LogCaptureFixture,
    field: str,
    value: object,
) -> None:
    async def body(
        peers: Peers, show: Callable[[AgentCard], Awaitable[None]], _: Scene, child: PeerProcess
    ) -> None:
        rank = child.peer.rank
        other = msgspec.structs.replace(rank, pool=msgspec.structs.replace(rank.pool, **{field: value}))
        card = msgspec.structs.replace(child.peer.card, worker="other", incarnation=new_id(), ranks=[other])
        with caplog.at_level(logging.WARNING):
            await show(card)
            await show(card)
        assert not peers.can_move("other", card.incarnation)
        (said,) = [record for record in caplog.records if "no KV moves" in record.message]
        assert field in str(said.__dict__["reason"])
        with pytest.raises(LayoutMismatch):
            await peers.meet("other", card.incarnation)
        cured = msgspec.structs.replace(card, incarnation=new_id(), ranks=[rank])
        await show(cured)
        assert peers.can_move("other", cured.incarnation)

    run_peers(exchange, etcd_server, namespace, body)
