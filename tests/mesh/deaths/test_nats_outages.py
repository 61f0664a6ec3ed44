"""NATS dies under streams: every text is whole and ends once; for long, and clients are told so."""

import time

import pytest

from tests.mesh.deaths.mortal_mesh import MortalMesh, check_unavailable, prompts_of, seconds_since

NUM_STREAMS = 32
STEP_TOKENS = 40
LAST_TOKENS = 120  # one stream may be two seconds ahead of another


def resends(mesh: MortalMesh) -> float:
    return mesh.running.metric("frontend-0", "kvmesh_stream_resends_total")


def restart_under_streams(mesh: MortalMesh, num_restarts: int) -> None:
    """All restarts but the last fall between tokens, the last one on the end of every stream."""
    num_tokens = num_restarts * STEP_TOKENS + LAST_TOKENS
    prompts = prompts_of("before the bus was restarted", NUM_STREAMS)
    expected = mesh.undisturbed(prompts, num_tokens)
    pids, decoded = mesh.running.pids, mesh.decoders_sum("kvmesh_decode_tokens_total")

    def wait_decoded(num_each: int) -> None:
        wanted = decoded + NUM_STREAMS * num_each
        mesh.running.wait_until(
            f"each has {num_each} tokens", lambda: mesh.decoders_sum("kvmesh_decode_tokens_total") >= wanted
        )

    with mesh.reading(prompts, num_tokens) as crowd:
        for number in range(1, num_restarts):
            wait_decoded(number * STEP_TOKENS)
            with mesh.without_nats():
                pass
        wait_decoded(num_tokens - LAST_TOKENS)
        with mesh.without_nats():
            asked = resends(mesh)
            wait_decoded(num_tokens)
            assert crowd.ended == [], "an end was told before the bus died"
    assert crowd.wrongs(expected) == []
    assert len(crowd.readings) == NUM_STREAMS
    assert resends(mesh) - asked >= NUM_STREAMS, "ends came without being asked for again"
    assert mesh.running.pids == pids


def test_every_text_is_whole_when_nats_is_restarted_and_every_end_is_lost(mesh: MortalMesh) -> None:
    restart_under_streams(mesh, num_restarts=3)


@pytest.mark.slow
def test_every_text_is_whole_when_nats_is_restarted_ten_times(mesh: MortalMesh) -> None:
    restart_under_streams(mesh, num_restarts=10)


def test_without_nats_new_requests_get_a_typed_503_at_once_and_running_ones_within_their_bound(
    mesh: MortalMesh,
) -> None:
    prompts = prompts_of("before the bus was gone", 4)
    pids = mesh.running.pids
    with mesh.reading(prompts, 1500) as crowd:
        mesh.running.wait_until("the streams run", lambda: crowd.least_pieces() >= 5)
        with mesh.without_nats():
            began_s = time.monotonic()
            response = mesh.ask()
            assert seconds_since(began_s) < 2
            check_unavailable(response)
            mesh.running.wait_until("every stream was told", lambda: len(crowd.ended) == len(prompts), 15)
    for one in crowd.readings:
        assert (one.status, one.finishes, len(one.faults), one.num_done) == (200, [], 1, 1)
        assert '"code"' in one.faults[0]
    mesh.running.wait_until("requests are served again", lambda: mesh.ask().status_code == 200, 5)
    assert mesh.running.pids == pids
