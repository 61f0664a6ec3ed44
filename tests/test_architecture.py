"""ARCHITECTURE.md says of each file what the file says of itself, and each folder in which order to read."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.make_code_map import FOLDERS, PAGE, ROOT, with_code_map


def test_the_code_map_names_every_file_with_its_first_sentence() -> None:
    page = PAGE.read_text()
    assert page == with_code_map(page), "run python -m tests.make_code_map"


def test_the_reading_order_of_a_folder_names_all_that_is_in_it() -> None:
    unnamed = {str(init.relative_to(ROOT)): sorted(_parts(init.parent) - _named(init)) for init in _inits()}
    assert {init: parts for init, parts in unnamed.items() if parts} == {}


def _inits() -> Iterator[Path]:
    for folder in FOLDERS:
        yield from (ROOT / folder).rglob("__init__.py")


def _named(init: Path) -> set[str]:
    return set(re.findall(r"`(\w+)`", ast.get_docstring(ast.parse(init.read_text())) or ""))


def _parts(folder: Path) -> set[str]:
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    return files | {path.parent.name for path in folder.glob("*/__init__.py")}
