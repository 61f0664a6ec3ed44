"""A decode worker is killed under its streams: the other one goes on with them, and no client can tell."""

from tests.mesh.deaths.mortal_mesh import MortalMesh, prompts_of

NUM_STREAMS = 8
NUM_TOKENS = 150


def test_streams_go_on_at_the_other_decode_worker_token_for_token(mesh: MortalMesh) -> None:
    prompts = prompts_of("before its worker died", NUM_STREAMS)
    expected = mesh.undisturbed(prompts, NUM_TOKENS)
    pids = mesh.running.pids
    moved = mesh.running.metric("frontend-0", "kvmesh_request_moves_total")
    with mesh.reading(prompts, NUM_TOKENS) as crowd:
        mesh.running.wait_until("the streams run", lambda: crowd.least_pieces() >= 20)
        victim = max(mesh.decoders, key=lambda name: mesh.running.metric(name, "kvmesh_sequences_running"))
        num_hit = mesh.running.metric(victim, "kvmesh_sequences_running")
        mesh.kill(victim)
    assert crowd.wrongs(expected) == []
    assert num_hit >= NUM_STREAMS / 2
    assert mesh.running.metric("frontend-0", "kvmesh_request_moves_total") - moved == num_hit
    mesh.wait_back(pids, victim)
    mesh.running.wait_until(
        "both may be chosen again", lambda: mesh.num_known_workers() == {len(mesh.decoders)}
    )
    assert {name for name, pid in mesh.running.pids.items() if pids[name] != pid} == {victim}
