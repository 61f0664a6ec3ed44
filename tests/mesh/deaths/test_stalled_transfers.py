"""The prefill worker stops in the middle of its writes: what its clients get is never nothing."""

import signal
from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.mesh.deaths.mortal_mesh import MortalMesh
from tests.mesh.deaths.test_prefill_workers import SENTENCE, VICTIM, Phase

NUM_TOKENS = 10
NUM_SENTENCES = 40
PATIENT_S = 90.0


def ask_plain(mesh: MortalMesh, prompt: str) -> httpx.Response:
    """For an answer in one piece."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": NUM_TOKENS, "ignore_eos": True}
    return mesh.running.http.post("/v1/completions", json=body, timeout=PATIENT_S)


def test_a_stalled_transfer_ends_in_a_whole_answer_streamed_or_not(mesh: MortalMesh) -> None:
    """While it stalls still: the blocks that may be written yet are in quarantine until it has gone on."""
    phase = Phase(mesh)
    streamed, plain = (f"{kind}: " + SENTENCE * NUM_SENTENCES for kind in ("streamed", "in one piece"))
    with ThreadPoolExecutor(1) as threads, mesh.reading([streamed], NUM_TOKENS) as crowd:
        answer = threads.submit(ask_plain, mesh, plain)
        phase.wait_pushing()
        mesh.signal(signal.SIGSTOP, VICTIM)
        try:
            response = answer.result(PATIENT_S)
            mesh.running.wait_until("it is streamed", lambda: bool(crowd.ended), PATIENT_S)
            assert mesh.decoders_sum("kvmesh_blocks_quarantined") > 0
        finally:
            mesh.signal(signal.SIGCONT, VICTIM)
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["text"]
    assert response.json()["usage"]["completion_tokens"] == NUM_TOKENS
    (reading,) = crowd.readings
    assert reading.is_whole
    assert reading.text
