"""A child: what of its parent's it shares, and what is its own."""

import os
from pathlib import Path

from services.child import end_child, spawn_child


def test_a_child_has_a_group_of_its_own_in_the_session_of_its_parent(tmp_path: Path) -> None:
    child = spawn_child(["sleep", "60"], log=tmp_path / "log")
    try:
        assert os.getpgid(child.pid) == child.pid  # Ctrl-C goes to that of its parent
        assert os.getsid(child.pid) == os.getsid(0)  # within which alone the kernel may heed niceness
    finally:
        end_child(child, 3.0)
