"""The prefill worker is killed before, during and after its compute: the answer comes, right and in time."""

import signal
import time
from collections.abc import Iterator

import pytest

from tests.mesh.deaths.crowd import Crowd
from tests.mesh.deaths.mortal_mesh import MortalMesh, run_mortal_mesh, seconds_since
from tests.tiny_model import write_tiny_llama

VICTIM = "prefill-0"
PUSHED = "kvmesh_kv_bytes_pushed_total"
NUM_TOKENS = 150
SENTENCE = "a small fox lived beside a quiet river; "
NUM_SENTENCES = 60
NOTICE_S = 12.0
"""What a grant waits for its taker, or a lost worker's silence, and air: then all is computed once more."""


class Phase:
    """How far a remote prefill is. Units: `pushed` bytes that the prefill worker had written before it."""

    def __init__(self, mesh: MortalMesh) -> None:
        self._mesh = mesh
        self._pushed = mesh.running.metric(VICTIM, PUSHED)

    def wait_before(self) -> None:
        """The job is offered to a worker that has been stopped: it has not begun, and never will."""
        self.wait_awaiting(1)

    def wait_during(self) -> None:
        """Blocks are granted: the first tokens are being computed."""
        self._wait("blocks are granted", "kvmesh_blocks_granted")

    def wait_pushing(self) -> None:
        """Some KV is written to its owner, and more to come."""
        running = self._mesh.running
        running.wait_until("some is written", lambda: running.metric(VICTIM, PUSHED) > self._pushed)
        assert self._mesh.decoders_sum("kvmesh_blocks_granted") > 0, "the push was over too soon"

    def wait_after(self) -> None:
        """All KV has landed, and the answer is being decoded."""
        self._wait("the answer runs", "kvmesh_sequences_running")
        assert self._mesh.decoders_sum("kvmesh_blocks_granted") == 0

    def wait_awaiting(self, num_sequences: int) -> None:
        """So many sequences await their KV."""
        gauge = "kvmesh_decode_queue_length"
        self._mesh.running.wait_until(
            "KV is awaited", lambda: self._mesh.decoders_sum(gauge) >= num_sequences
        )

    def _wait(self, what: str, gauge: str) -> None:
        self._mesh.running.wait_until(what, lambda: self._mesh.decoders_sum(gauge) > 0)


def long_prompt(topic: str) -> str:
    return f"{topic}: " + SENTENCE * NUM_SENTENCES


PHASES = {
    "before": Phase.wait_before,
    "during": Phase.wait_during,
    "pushing": Phase.wait_pushing,
    "after": Phase.wait_after,
}


def check_answers(mesh: MortalMesh, crowds: list[Crowd], pids: dict[str, int]) -> None:
    """Right, and in time; and only the prefill worker was started again."""
    answers = [one for crowd in crowds for one in crowd.readings]
    mesh.wait_back(pids, VICTIM)
    mesh.running.wait_at_rest()
    began_s = time.monotonic()
    expected = mesh.undisturbed([one.prompt for one in answers], NUM_TOKENS)
    limit_s = NOTICE_S + 2 * seconds_since(began_s)
    assert [one for one in answers if one.took_s > limit_s] == []
    assert [wrong for crowd in crowds for wrong in crowd.wrongs(expected)] == []
    assert mesh.running.metric(VICTIM, "kvmesh_prefill_jobs_served_total") > 0, "the new one serves"
    assert {one for one, pid in mesh.running.pids.items() if pids[one] != pid} == {VICTIM}


def test_one_death_hits_prefills_in_every_phase_and_every_answer_comes_in_time(mesh: MortalMesh) -> None:
    pids = mesh.running.pids
    with mesh.reading([long_prompt("its KV has landed")], NUM_TOKENS) as after:
        Phase(mesh).wait_after()
        phase = Phase(mesh)
        with mesh.reading([long_prompt("its KV is pushed")], NUM_TOKENS) as pushing:
            phase.wait_pushing()
            with mesh.reading([long_prompt("it waits behind the others")], NUM_TOKENS) as before:
                phase.wait_awaiting(2)
                mesh.kill(VICTIM)
    check_answers(mesh, [after, pushing, before], pids)


@pytest.fixture(scope="module")
def computing_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MortalMesh]:
    """One prefill and one decode worker that really compute, seconds for a prompt."""
    folder = tmp_path_factory.mktemp("computing")
    model = write_tiny_llama(folder / "wide", layers=8, hidden=512)
    environ = {
        "KVMESH_WORKER_STEP_TOKENS": "64",
        "KVMESH_WORKER_MAX_SEQUENCES": "8",
        "KVMESH_WORKER_PUSH_KIB": "1",
        "KVMESH_WORKER_NUM_BLOCKS": "512",
        "KVMESH_WORKER_PREFILL_CHOICE": "threshold",
    }
    with run_mortal_mesh(folder, model, environ=environ) as mesh:
        yield mesh


@pytest.mark.slow
@pytest.mark.parametrize("name", PHASES)
def test_the_answer_is_right_where_the_kv_is_real(computing_mesh: MortalMesh, name: str) -> None:
    mesh = computing_mesh
    mesh.running.wait_at_rest()
    pids, phase = mesh.running.pids, Phase(mesh)
    if name == "before":
        mesh.signal(signal.SIGSTOP, VICTIM)
    with mesh.reading([long_prompt(f"killed {name}")], NUM_TOKENS) as crowd:
        try:
            PHASES[name](phase)
        finally:
            mesh.kill(VICTIM)
    check_answers(mesh, [crowd], pids)
