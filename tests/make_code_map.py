"""Write ARCHITECTURE.md's code map: each file, and the first sentence of its docstring.

Run: `python -m tests.make_code_map`.
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "ARCHITECTURE.md"
FOLDERS = ("proto", "services", "frontend", "router", "workers")
_MAP = re.compile(r"(?<=<!-- code map -->\n).*?(?=<!-- end of code map -->)", re.DOTALL)


def code_map() -> str:
    """The map as it has to stand in the page: a list a folder, a line a file."""
    parts = []
    for folder in FOLDERS:
        files = sorted(path for path in (ROOT / folder).rglob("*.py") if path.name != "__init__.py")
        lines = "\n".join(f"- `{path.relative_to(ROOT)}`: {first_sentence(path)}" for path in files)
        parts.append(f"\n**{folder}/**\n\n{lines}\n")
    return "".join(parts) + "\n"


def first_sentence(path: Path) -> str:
    """
    Raises:
        ValueError: the file has no docstring, or its first paragraph is no sentence.
    """
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    found = re.match(r".*?[.:](?= |$)", paragraph)
    if found is None:
        raise ValueError(f"{path} begins without a sentence: {paragraph!r}")
    return found[0].rstrip(".:")


def with_code_map(page: str) -> str:
    """`page` with today's map."""
    return _MAP.sub(lambda _: code_map(), page)


if __name__ == "__main__":
    PAGE.write_text(with_code_map(PAGE.read_text()))
