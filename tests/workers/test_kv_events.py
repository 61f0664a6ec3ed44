"""What a worker says of its cache: numbered events, and a snapshot, both the truth."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from proto import keys, subjects
from proto.blockhash import block_hashes, block_salt
from proto.cards import ModelCard
from proto.codec import decode
from proto.control import Snapshot, TakeSnapshot
from proto.events import BlocksStored, KvEvents, SnapshotPage, unpack_hashes
from proto.names import new_id
from proto.requests import Refused
from proto.roles import Role
from proto.tokens import pack_tokens
from services.bus import Delivery
from services.directory import DirectorySettings, open_directory
from services.servers import Server
from tests.workers.conftest import BLOCK_SIZE
from tests.workers.harness import Client, Fleet, open_client, random_prompt
from workers.engine.simulated_model import SimulatedModel

NUM_BLOCKS = 40


class Index:
    """What a router would know: of one incarnation, from its first event on."""

    def __init__(self) -> None:
        self.hashes: set[bytes] = set()
        self.number = 0
        self.num_removed = 0

    def apply(self, delivery: Delivery) -> None:
        events = decode(delivery.payload, KvEvents)
        assert events.first == self.number + 1
        self.number = events.last
        for event in events.events:
            hashes = unpack_hashes(event.hashes)
            if isinstance(event, BlocksStored):
                self.hashes.update(hashes)
            else:
                self.num_removed += len(hashes)
                self.hashes.difference_update(hashes)


@pytest.fixture
def fleet(nats_server: Server, etcd_server: Server, tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(nats_server, etcd_server, f"test-{new_id()}", tmp_path)
    yield fleet
    fleet.close()


async def take_snapshot(client: Client) -> list[SnapshotPage]:
    pages = [(await client.ask("w", TakeSnapshot(), Snapshot)).page]
    while not pages[-1].is_last:
        asked = TakeSnapshot(pages[-1].page + 1, pages[0].number)
        pages.append((await client.ask("w", asked, Snapshot)).page)
    return pages


async def read_card(fleet: Fleet) -> ModelCard:
    async with open_directory(DirectorySettings(endpoints=[fleet.etcd.url])) as directory:
        entry = await directory.get(keys.model(fleet.ns, "tiny"))
        assert entry is not None
        return decode(entry.value, ModelCard)


def test_events_and_a_snapshot_say_what_the_cache_holds(fleet: Fleet, tiny: Path) -> None:
    async def run() -> None:
        async with open_client(fleet, "tiny") as client:
            index = Index()
            await client.bus.subscribe(subjects.kv(fleet.ns, "w"), index.apply)
            model = SimulatedModel(first_token=10, num_tokens=400)
            fleet.start("w", Role.DECODE, tiny, engine="simulated", simulated=model, num_blocks=NUM_BLOCKS)
            await fleet.wait_ready("w")
            for seed in range(6):
                last = random_prompt(12 * BLOCK_SIZE, seed)
                last += (await client.generate("w", last, max_tokens=2 * BLOCK_SIZE)).tokens
            await client.wait_report("w", lambda report: report.last_event == index.number > 0)
            (page,) = await take_snapshot(client)
            assert (page.number, set(unpack_hashes(page.hashes))) == (index.number, index.hashes)
            card = await read_card(fleet)
            salt = block_salt(card.kv_class.weights_digest)
            computed = pack_tokens(last[:-1])
            assert set(block_hashes(computed, BLOCK_SIZE, salt)) <= index.hashes
            assert index.num_removed > 0
            assert len(index.hashes) <= NUM_BLOCKS
            assert client.reports["w"].cached_blocks == len(index.hashes)
            stale = await client.control("w", TakeSnapshot(1, page.number))
            assert isinstance(stale, Refused)

    asyncio.run(run())
