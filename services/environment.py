"""The check that the five packages a process imports are kvmesh's own.

`proto` is also the import name of a popular package; installed beside kvmesh it would shadow ours and fail
far from its cause.
"""

from importlib.util import find_spec
from pathlib import Path

from proto.errors import InvalidSetting

PACKAGES = ("proto", "services", "frontend", "router", "workers")


def check_packages() -> None:
    """Finds each package where this one lies, without importing it.

    Raises:
        InvalidSetting: one is missing, or comes from elsewhere.
    """
    home = Path(__file__).resolve().parent.parent
    for package in PACKAGES:
        places = _places(package)
        if home / package not in places[:1]:
            found = f"comes from {places[0]}" if places else "is missing"
            reason = f"{found}, not from {home}; kvmesh needs an environment of its own"
            raise InvalidSetting(setting=f"the package {package!r}", reason=reason)


def _places(package: str) -> list[Path]:
    spec = find_spec(package)
    if spec is None or spec.submodule_search_locations is None:
        return []
    return [Path(place).resolve() for place in spec.submodule_search_locations]
