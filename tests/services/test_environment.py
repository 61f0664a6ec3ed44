"""A foreign package under the name of one of ours is found at once."""

import subprocess
import sys
from pathlib import Path

import pytest

from services.environment import PACKAGES, check_packages


def test_our_own_packages_are_accepted() -> None:
    check_packages()


@pytest.mark.parametrize("package", [name for name in PACKAGES if name not in ("services", "proto")])
def test_a_foreign_package_is_named_with_its_place(package: str, tmp_path: Path) -> None:
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from services.process import run_process\n"
        "sys.exit(run_process(None, drain_limit_s=0))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith(
        f"kvmesh: the package {package!r}: comes from {tmp_path / package}, not from"
    )


def test_a_foreign_proto_that_shadows_ours_is_named(tmp_path: Path) -> None:
    (tmp_path / "proto").mkdir()
    (tmp_path / "proto" / "__init__.py").touch()
    script = (
        "import proto.errors, services.environment, sys; sys.path.insert(0, sys.argv[1])\n"
        "for name in list(sys.modules):\n"
        "    if name.partition('.')[0] == 'proto': del sys.modules[name]\n"
        "services.environment.check_packages()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert "InvalidSetting: the package 'proto': comes from" in ended.stderr
