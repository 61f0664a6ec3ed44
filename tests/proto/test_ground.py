"""What the folders may import, where import-linter's contracts cannot say it."""

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


def _imports(file: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Import(names):
                yield from (name.name for name in names)
            case ast.ImportFrom(str(module), _, 0):
                yield module


def test_the_ground_imports_the_standard_library_and_msgspec_and_nothing_else() -> None:
    allowed = {"proto", "msgspec", *sys.stdlib_module_names}
    files = list((ROOT / "proto").rglob("*.py"))
    assert files
    strangers = {
        (file.name, name) for file in files for name in _imports(file) if name.split(".")[0] not in allowed
    }
    assert strangers == set()


def test_the_ground_does_no_input_or_output() -> None:
    doors = {
        "asyncio",
        "io",
        "os",
        "pathlib",
        "selectors",
        "shutil",
        "socket",
        "subprocess",
        "tempfile",
        "threading",
    }
    found = {(file.name, name) for file in (ROOT / "proto").rglob("*.py") for name in _imports(file)}
    assert {(file, name) for file, name in found if name.split(".")[0] in doors} == set()


def test_every_module_of_the_engine_is_either_torchs_or_under_the_contract_that_keeps_torch_out() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    bookkeeping = next(found for found in contracts if "bookkeeping" in found["name"])
    engine = [file for file in (ROOT / "workers" / "engine").glob("*.py") if file.stem != "__init__"]
    torchless = {f"workers.engine.{file.stem}" for file in engine if "torch" not in _imports(file)}
    assert torchless <= set(bookkeeping["source_modules"])
    assert {file.stem for file in engine if "torch" in _imports(file)} == {
        "logit_edits",
        "logit_reading",
        "logprob_records",
        "narrowing",
        "paged_decoder",
        "pool_tensor",
        "sampler",
        "torch_loading",
        "torch_runner",
    }
