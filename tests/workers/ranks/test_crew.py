"""Followers do not outlive their leader, whatever ends it, and who waits for one that is gone hears of it."""

import asyncio
import os
import signal
import threading
from pathlib import Path

import msgspec
import pytest

from proto.cards import ProcessIdentity
from proto.errors import InternalFault, InvalidSetting, KvmeshError
from services.logs import LogSettings
from tests.services.waiting import wait_for
from tests.tiny_model import write_tiny
from tests.workers.engine.tiny_torch import TINY_TORCH
from tests.workers.forked import ForkedProcess
from tests.workers.ranks.crews import AROUND, LIMIT_S, SILENT_S, started
from workers.engine.torch_settings import TorchSettings
from workers.ranks.crew import Crew
from workers.ranks.grid import Grid
from workers.ranks.messages import Load, Loaded
from workers.ranks.rank_loading import load_ranked_runner, settings_of
from workers.roles.proof import is_gone


def _lead(note: Path) -> None:
    """A leader that only waits, with its followers' identities written to `note`."""
    crew = Crew(Grid(3, 1), SILENT_S)
    crew.start()
    identities = msgspec.json.encode(crew.processes())
    note.with_suffix(".part").write_bytes(identities)
    note.with_suffix(".part").rename(note)
    signal.pause()


def test_followers_end_with_their_leader_whatever_ends_it(tmp_path: Path) -> None:
    note = tmp_path / "followers"
    leader = ForkedProcess("leader", _lead, note)
    try:
        asyncio.run(wait_for(note.exists, LIMIT_S))
        followers = msgspec.json.decode(note.read_bytes(), type=list[ProcessIdentity])
        assert len(followers) == 2
        assert not any(map(is_gone, followers))
        os.kill(followers[0].pid, signal.SIGSTOP)
        leader.kill()
        asyncio.run(wait_for(lambda: all(map(is_gone, followers)), LIMIT_S))
    finally:
        leader.close()


def test_an_ended_crew_leaves_no_process_and_frees_who_waits_for_it() -> None:
    raised: list[KvmeshError] = []

    def wait_loaded(crew: Crew) -> None:
        try:
            crew.gather(Loaded)
        except KvmeshError as error:
            raised.append(error)

    with started(Grid(1, 2)) as crew:
        waiting = threading.Thread(target=wait_loaded, args=(crew,))
        waiting.start()
        (process,) = crew.processes()
    waiting.join(LIMIT_S)
    assert [str(error) for error in raised] == ["internal error: the ranks end, as they were told to"]
    assert is_gone(process)
    assert crew.fault is None


def test_a_follower_that_dies_before_it_has_loaded_is_told_of_by_who_waits_for_it() -> None:
    with started(Grid(1, 3)) as crew:
        _, second = crew.processes()
        os.kill(second.pid, signal.SIGKILL)
        with pytest.raises(InternalFault, match="rank 2 has ended with code -9"):
            crew.gather(Loaded)


def test_what_a_follower_cannot_do_reaches_its_leader_as_it_was_raised(tmp_path: Path) -> None:
    settings = msgspec.structs.replace(TINY_TORCH, device="abacus")
    with started(Grid(1, 2)) as crew:
        folder, rendezvous = str(write_tiny(tmp_path)), str(tmp_path / "never")
        load = Load(1, crew.grid, "tiny", folder, rendezvous, settings, 5, LIMIT_S, LogSettings())
        crew.links[0].send(load)
        with pytest.raises(InvalidSetting, match="'abacus' cannot be used"):
            crew.gather(Loaded)


def test_a_model_that_cannot_be_divided_is_refused_before_anybody_loads_it(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path, heads=9, kv_heads=3, hidden=36)
    with started(Grid(2, 1)) as crew, pytest.raises(InvalidSetting, match="9 query heads and 3 KV heads"):
        load_ranked_runner(folder, TINY_TORCH, crew, AROUND)


def test_a_rank_has_a_device_after_its_leaders_and_its_part_of_the_threads() -> None:
    def told(**fields: object) -> list[TorchSettings]:
        settings: TorchSettings = msgspec.structs.replace(TINY_TORCH, **fields)
        return [settings_of(settings, Grid(3, 1), rank) for rank in range(3)]

    assert [each.device for each in told(device="cpu")] == ["cpu"] * 3
    assert [each.device for each in told(device="cuda:2")] == ["cuda:2", "cuda:3", "cuda:4"]
    assert [each.device for each in told(device="cuda")] == ["cuda:0", "cuda:1", "cuda:2"]
    assert [each.num_threads for each in told(num_threads=7)] == [2] * 3
    assert [each.num_threads for each in told(num_threads=2)] == [1] * 3
