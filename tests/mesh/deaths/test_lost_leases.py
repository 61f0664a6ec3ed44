"""Every lease is revoked under load while its process lives, which takes another; nobody can tell."""

import pytest

from tests.mesh.deaths.mortal_mesh import MortalMesh, prompts_of

NUM_CLIENTS = 8
NUM_TOKENS = 40
KEYS_BACK_S = 20.0


@pytest.mark.slow
def test_every_lease_is_lost_while_its_process_lives_and_is_taken_anew(mesh: MortalMesh) -> None:
    prompts = prompts_of("before its lease was lost", NUM_CLIENTS)
    expected = mesh.undisturbed(prompts, NUM_TOKENS)
    pids, before = mesh.running.pids, mesh.owned_revisions()
    num_moved = mesh.running.metric("frontend-0", "kvmesh_request_moves_total")

    def are_back() -> bool:
        now = mesh.owned_revisions()
        return now.keys() == before.keys() and all(now[key] > before[key] for key in before)

    with mesh.under_load(prompts, NUM_TOKENS) as crowd:
        mesh.running.wait_until("all are served", lambda: len(crowd.ended) >= NUM_CLIENTS)
        assert mesh.revoke_leases() >= len(pids)
        mesh.running.wait_until("every key was lost and is back", are_back, KEYS_BACK_S)
        num_served = len(crowd.ended)
        mesh.running.wait_until("more are served", lambda: len(crowd.ended) >= num_served + NUM_CLIENTS)
        assert mesh.num_known_workers() == {len(mesh.decoders)}
    assert crowd.wrongs(expected) == []
    assert mesh.running.metric("frontend-0", "kvmesh_request_moves_total") == num_moved
    assert mesh.running.pids == pids
