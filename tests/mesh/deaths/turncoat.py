"""A worker that is ordered about, and who has something die when it is at a wanted stage of a switch."""

import asyncio
import itertools
import random
import signal
import subprocess
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import httpx

from proto import keys
from proto.blockhash import block_hashes, block_salt
from proto.control import Pin, Pinned
from proto.errors import KvmeshError
from proto.events import pack_hashes
from proto.names import new_id
from proto.roles import FIRST_EPOCH, Role, RoleProgress, RoleStage, WorkerState
from proto.tokens import pack_tokens
from services.child import end_child
from services.directory import Directory, DirectorySettings, open_directory
from services.orders import read_card, read_order
from services.servers import Server, reserve_port
from tests.mesh.deaths.conftest import PREFILL
from tests.mesh.deaths.crowd import Reading
from tests.mesh.deaths.mortal_mesh import TIMES, MortalMesh
from tests.mesh.roles.switching import Operator, open_operator, other
from tests.workers.harness import until

NAME = "turncoat"
ENVIRON = TIMES | PREFILL | {"KVMESH_DIRECTORY_LEASE_TTL_S": "3"}
PATIENT_S = 60.0
NUM_DECODERS = 3
"""Those of the mesh, and the turncoat in that role."""
NUM_COLD = 3
COLD = [20] * 160
"""A prompt that is prefilled elsewhere, for a third of a second."""
MOST_LOOKS = 12
"""After the stage was seen, so that what dies does so at any point of it, or soon after."""
NUM_AT_ONCE = 6
"""More than one prefill worker does at a time, so that each has some."""
PIN_S = 1.0
REFUSED = 503
RECONNECT_S = 10.0


class Turncoat:
    """A decode worker beside those of the mesh. Its name outlives it."""

    def __init__(self, mesh: MortalMesh) -> None:
        self._mesh = mesh
        self._port = reserve_port()
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """From the main thread, with which it would end."""
        self._child = self._mesh.spawn_worker(NAME, self._port, ENVIRON)

    def kill(self) -> None:
        assert self._child is not None
        self._child.kill()
        self._child.wait()

    def end(self) -> None:
        """It leaves, and its orders are forgotten."""
        assert self._child is not None
        code = end_child(self._child, 15)
        asyncio.run(self._forget_orders())
        assert code == 0, self._mesh.running.log(NAME)

    async def _forget_orders(self) -> None:
        ns = self._mesh.running.file.namespace
        async with open_directory(DirectorySettings(endpoints=[self._mesh.etcd.url])) as directory:
            placed = await read_order(directory, ns, NAME)
            if placed is not None:
                await directory.remove(keys.order(ns, NAME), placed.revision)


@dataclass(frozen=True)
class Looks:
    """From where a mesh and its turncoat are looked at. `refused`: clients who were told to come again."""

    mesh: MortalMesh
    ns: str
    operator: Operator
    directory: Directory
    http: httpx.AsyncClient
    refused: list[str] = field(default_factory=list)

    async def ask_cold(self, **fields: object) -> str:
        """A request of which nothing is cached, and its answer; the salt of its KV."""
        salt = new_id()
        body = {"model": "tiny", "prompt": COLD, "cache_salt": salt, "max_tokens": 2, "ignore_eos": True}
        response = await self.http.post("/v1/completions", json=body | fields)
        while response.status_code == REFUSED:
            self.refused.append(response.text)
            await asyncio.sleep(int(response.headers["retry-after"]))
            response = await self.http.post("/v1/completions", json=body | fields)
        assert response.status_code == 200, response.text
        assert response.json()["choices"][0]["finish_reason"] == "length"
        return salt

    async def hold_up(self) -> None:
        """It decodes, and may be read for a while, which it does not leave that role before."""
        if (await self.operator.ask(NAME)).role is not Role.DECODE:
            await self.operator.become(NAME, Role.DECODE)
        await until("every router may choose it", self._is_known, PATIENT_S)
        salt = await self.ask_cold(worker_id=NAME)
        kv_class = (await read_card(self.directory, self.ns, NAME)).kv_class
        hashes = block_hashes(
            pack_tokens(COLD), kv_class.block_size, block_salt(kv_class.weights_digest, salt)
        )
        pinned = await self.operator.tell(NAME, Pin("test", pack_hashes(hashes), PIN_S), Pinned)
        assert pinned.blocks

    async def _is_known(self) -> bool:
        """It says itself that it is ready; routers hear of it when they hear of it."""
        return await asyncio.to_thread(self.mesh.num_known_workers) == {NUM_DECODERS}

    async def is_agreed(self) -> bool:
        """Whether what it says, its card, its report and its order are one, and no switch is under way."""
        try:
            progress = await self.operator.ask(NAME)
            card = await read_card(self.directory, self.ns, NAME)
            placed = await read_order(self.directory, self.ns, NAME)
        except KvmeshError:
            return False
        report = self.operator.reports.get(NAME)
        if report is None or report.incarnation != card.incarnation or progress.wanted is not None:
            return False
        order = placed.order if placed is not None else None
        ordered = (order.role, order.epoch) if order is not None else (Role.DECODE, FIRST_EPOCH)
        said = {(one.role, one.epoch, one.state) for one in (progress, card, report)}
        return said == {(*ordered, WorkerState.READY)}

    async def wait_stands(self) -> RoleProgress:
        """One of its roles stands, and it serves in it."""
        await until("one role stands", self.is_agreed, PATIENT_S)
        stood = await self.operator.ask(NAME)

        async def has_served() -> bool:
            await asyncio.gather(*(self.ask_cold() for _ in range(NUM_AT_ONCE)))
            progress = await self.operator.ask(NAME)
            assert (progress.role, progress.epoch) == (stood.role, stood.epoch)
            return progress.num_served > stood.num_served

        await until("it serves in it", has_served, PATIENT_S)
        return stood


async def open_looks(mesh: MortalMesh, stack: AsyncExitStack) -> Looks:
    directory = open_directory(DirectorySettings(endpoints=[mesh.etcd.url]))
    http = httpx.AsyncClient(base_url=mesh.running.url, timeout=PATIENT_S, trust_env=False)
    return Looks(
        mesh,
        mesh.running.file.namespace,
        await stack.enter_async_context(open_operator(mesh.running)),
        await stack.enter_async_context(directory),
        await stack.enter_async_context(http),
    )


class Saboteur:
    """Orders the turncoat about, and kills."""

    def __init__(self, mesh: MortalMesh, turncoat: Turncoat, chosen: random.Random) -> None:
        self._mesh = mesh
        self._turncoat = turncoat
        self._random = chosen
        self._outages: list[tuple[float, float]] = []

    async def strike(self, victim: str, stage: RoleStage) -> RoleProgress:
        """`victim` dies while a switch is at `stage`; what stands then, in the epoch before or the next."""
        async with AsyncExitStack() as stack, asyncio.timeout(2 * PATIENT_S):
            looks = await open_looks(self._mesh, stack)
            epoch = await self._reach(looks, victim, stage)
            stood = await looks.wait_stands()
            assert stood.epoch in (epoch, epoch + 1)
            assert victim == "nats" or looks.refused == []
            return stood

    def may_refuse(self, reading: Reading) -> bool:
        """Whether it may have been told to come again: the bus went while it was on its way, or was away."""
        told_s = reading.ended_s
        return told_s is not None and any(
            began_s <= told_s and reading.began_s <= ended_s + RECONNECT_S
            for began_s, ended_s in self._outages
        )

    async def _reach(self, looks: Looks, victim: str, stage: RoleStage) -> int:
        """The epoch before the switch that has met a death. Prompts are prefilled all the while."""
        async with asyncio.TaskGroup() as tasks:
            for number in itertools.count():
                if stage == "ending grants":
                    await looks.hold_up()
                before = await looks.operator.ask(NAME)
                for index in range(NUM_COLD):
                    tasks.create_task(looks.ask_cold(), name=f"cold {number}/{index}")
                if await self._is_seen(looks.operator, other(before.role), stage):
                    self._kill(victim)
                    return before.epoch
        raise AssertionError("without end")

    async def _is_seen(self, operator: Operator, role: Role, stage: RoleStage) -> bool:
        """Whether the switch to `role` was caught at `stage`; it is over if not."""
        progress = await operator.order(NAME, role)
        while progress.stage != stage:
            if progress.wanted is None:
                return False
            progress = await operator.ask(NAME)
        for _ in range(self._random.randrange(MOST_LOOKS)):
            await operator.ask(NAME)
        return True

    def _kill(self, victim: str) -> None:
        """What has no launcher is started again at once, here: it ends with the thread that starts it."""
        mesh = self._mesh
        match victim:
            case "worker":
                self._turncoat.kill()
                self._turncoat.start()
            case "taker":
                mesh.signal(signal.SIGKILL, self._random.choice(mesh.decoders))
            case "router":
                mesh.signal(signal.SIGKILL, self._random.choice(mesh.routers))
            case "etcd":
                restart(mesh.etcd)
            case "nats":
                began_s = time.monotonic()
                restart(mesh.nats)
                self._outages.append((began_s, time.monotonic()))


def restart(server: Server) -> None:
    server.kill()
    server.restart()
