"""Every test of this folder runs while wall clocks jump by hours: no deadline reads one."""

from tests.mesh.deaths.mortal_mesh import MortalMesh

NUM_LOOKS = 8
HOUR_S = 3600


def test_the_wall_clock_of_this_mesh_jumps_by_hours(mesh: MortalMesh) -> None:
    """A chance of one in 10^8 that eight looks within two days lie within an hour."""
    created_s = [mesh.ask().json()["created"] for _ in range(NUM_LOOKS)]
    assert max(created_s) - min(created_s) > HOUR_S
