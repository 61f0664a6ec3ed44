"""A lender over a real engine of a simulated runner, whose steps are taken by hand, and three holders."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from proto import keys
from proto.cards import AgentCard, RankAgent
from proto.codec import encode
from proto.control import AskGrant
from proto.jobs import PrefillJob
from proto.layout import LayerRange
from proto.tokens import pack_tokens
from services.directory import Directory, DirectorySettings, open_directory
from services.servers import Server
from tests.services.waiting import wait_for
from tests.workers.transfer.pools import MemoryPool
from workers.engine.engine import Engine
from workers.engine.engine_settings import EngineSettings
from workers.engine.runner import SampleParams
from workers.engine.sequence import SequenceKind, SequenceSpec
from workers.engine.simulated_model import WITHOUT_TIME
from workers.engine.simulated_runner import SimulatedRunner
from workers.engine.step import SequenceProgress, StepOutput
from workers.roles.lender import Lender
from workers.roles.owned_job import OwnedJob
from workers.roles.proof import own_identity
from workers.transfer.agents import Agents
from workers.transfer.opened_rank import open_rank
from workers.transfer.own_memory import OwnMemory, OwnRank
from workers.transfer.peers import Peers
from workers.transfer.staging import StagingSize
from workers.transfer.transfer_thread import TransferThread

HOLDERS = ("ann", "ben", "cid")
NUM_BLOCKS = 24
BLOCK_SIZE = 4
LENT_SHARE = 0.5
SALT = b"salt"


class Listener:
    """Hears the engine: all that it says, and how each sequence has ended."""

    def __init__(self) -> None:
        self.heard: list[SequenceProgress] = []
        self.ended: dict[str, str] = {}

    def on_step(self, output: StepOutput) -> None:
        self.heard += output.events
        for event in output.events:
            if event.finish is not None:
                self.ended[event.sequence] = event.finish

    def on_layers(
        self, sequence: str, start: int, end: int, blocks: list[int], rank: int, layers: LayerRange
    ) -> None:
        raise AssertionError("there is no PREFILL here")


class Lending:
    """One owner: its engine, its lender, and the jobs it has offered. Its clock shows `slept_s` more."""

    def __init__(self, peers: Peers, memory: OwnMemory) -> None:
        self.slept_s = 0.0
        self.listener = Listener()
        settings = EngineSettings(
            num_blocks=NUM_BLOCKS,
            context_tokens=64,
            block_size=BLOCK_SIZE,
            vocab_size=32_768,
            step_tokens=16,
            max_sequences=8,
        )
        self.engine = Engine(SimulatedRunner(WITHOUT_TIME, NUM_BLOCKS, BLOCK_SIZE), settings, self.listener)
        self.lender = Lender(self.engine, peers, memory, LENT_SHARE, self._now_s)
        self.num_staging_blocks = memory.num_staging_blocks

    def _now_s(self) -> float:
        return time.monotonic() + self.slept_s

    def offer(self, name: str, num_tokens: int = 13, first_token: int = 0) -> OwnedJob:
        """A sequence that awaits its KV, and the job for it."""
        tokens = list(range(first_token, first_token + num_tokens))
        start = self.add(name, tokens, await_kv=True)
        job = PrefillJob(name, name, "model", "owner", "one", pack_tokens(tokens[:-1]), 10.0)
        owned = OwnedJob(job, name, start, num_tokens - 1, "best")
        self.lender.open_job(owned)
        return owned

    def fill_cache(self, num_tokens: int) -> None:
        """Serve a sequence of the same first tokens as every `offer`."""
        self.add("before", list(range(num_tokens)))
        self.step_to_rest()

    def add(self, name: str, tokens: list[int], *, max_tokens: int = 2, await_kv: bool = False) -> int:
        return self.engine.add(self._spec(name, tokens, max_tokens), await_kv=await_kv)

    def step_to_rest(self) -> None:
        while self.engine.step_once():
            pass

    @property
    def num_set_aside(self) -> int:
        return self.engine.load().set_aside_blocks

    def check(self) -> None:
        """Every block set aside is lent, and the share holds."""
        assert self.num_set_aside == self.lender.num_lent_blocks
        assert self.lender.num_lent_blocks <= LENT_SHARE * NUM_BLOCKS

    def assert_at_rest(self) -> None:
        load, holdings = self.engine.load(), self.lender.holdings([])
        assert load.free_blocks == load.total_blocks == holdings.free_blocks
        assert load.num_awaiting == load.num_waiting == load.num_running == 0
        assert not (holdings.granted or holdings.quarantined or holdings.pinned)
        assert self.lender.lent.num_free == self.num_staging_blocks

    async def wait_landed(self) -> None:
        """Until what is landing has."""
        await wait_for(lambda: not any(grant.is_landing for grant in self.lender.grants.all()))

    def _spec(self, name: str, tokens: list[int], max_tokens: int) -> SequenceSpec:
        return SequenceSpec(
            sequence=name,
            kind=SequenceKind.GENERATE,
            tokens=tokens,
            num_prompt=len(tokens),
            sample=SampleParams(),
            max_tokens=max_tokens,
            stop_tokens=frozenset(),
            salt=SALT,
        )


def ask_of(owned: OwnedJob, holder: str = "ann") -> AskGrant:
    return AskGrant(owned.job.job, holder, f"life of {holder}")


@asynccontextmanager
async def open_peers(
    etcd: Server, ns: str, staging: StagingSize | None = None
) -> AsyncIterator[tuple[Peers, OwnMemory]]:
    """Peers that know the holders from a directory, over a real agent; behind `staging`, if any."""
    pool = MemoryPool(NUM_BLOCKS)
    with open_rank(f"owner.{ns}", pool.layout, {}, staging) as opened:
        transfers = TransferThread(
            opened.transport, lambda landing: None, lambda transfer, took_s: None, 20.0
        )
        async with transfers.running() as rank, open_directory(DirectorySettings([etcd.url])) as directory:
            memory = OwnMemory([OwnRank(rank, own_identity(), transfers, opened.hidden)])
            yield await _meet(directory, ns, memory), memory


async def _meet(directory: Directory, ns: str, memory: OwnMemory) -> Peers:
    agents = Agents()
    peers = Peers(memory, "owner", agents)
    for holder in HOLDERS:
        await directory.own(keys.agent(ns, holder), encode(_card(holder, memory.ranks[0].agent)))
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(agents.follow(directory, ns))
        await wait_for(lambda: all(peers.card(each, f"life of {each}") for each in HOLDERS))
        following.cancel()
    return peers


def _card(holder: str, rank: RankAgent) -> AgentCard:
    return AgentCard(holder, f"life of {holder}", own_identity(), [rank])
