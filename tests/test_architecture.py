"""ARCHITECTURE.md says of each file what the file says of itself."""

from tests.make_code_map import PAGE, with_code_map


def test_the_code_map_names_every_file_with_its_first_sentence() -> None:
    page = PAGE.read_text()
    assert page == with_code_map(page), "run python -m tests.make_code_map"
