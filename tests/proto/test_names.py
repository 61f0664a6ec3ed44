"""Any model name fits into a subject and a key, and comes back."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.errors import InvalidRequest
from proto.names import check_id, escape, new_id, unescape

ESCAPED = re.compile(r"[A-Za-z0-9_=-]*")


@given(st.text())
def test_any_name_comes_back_from_its_escaped_form(name: str) -> None:
    assert unescape(escape(name)) == name


@given(st.text())
def test_an_escaped_name_has_no_character_that_subjects_or_keys_give_a_meaning(name: str) -> None:
    assert ESCAPED.fullmatch(escape(name))


@given(st.text(), st.text())
def test_two_names_never_share_an_escaped_form(one: str, other: str) -> None:
    assert (escape(one) == escape(other)) == (one == other)


@given(st.text(st.characters(max_codepoint=0x10FFFF)))
def test_half_a_surrogate_pair_is_escaped_like_any_other_odd_character(name: str) -> None:
    assert ESCAPED.fullmatch(escape(name))


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_what_was_never_escaped_is_read_without_a_fault(token: str) -> None:
    assert isinstance(unescape(token), str)


@pytest.mark.parametrize(
    ("name", "escaped"),
    [
        ("org/Model-1.5", "org=2fModel-1=2e5"),
        ("plain_Name-7", "plain_Name-7"),
        ("a=b", "a=3db"),
        ("*.>", "=2a=2e=3e"),
        ("zwölf 十", "zw=c3=b6lf=20=e5=8d=81"),
        ("", ""),
    ],
)
def test_escaped_forms_stay_what_they_are(name: str, escaped: str) -> None:
    assert escape(name) == escaped


def test_fresh_ids_differ_and_are_ids() -> None:
    ids = {new_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert [check_id(name, "id") for name in ids] == list(ids)


@pytest.mark.parametrize("name", ["a", "A-z_09", "x" * 64])
def test_an_id_is_given_back(name: str) -> None:
    assert check_id(name, "worker") == name


@pytest.mark.parametrize("name", ["", "x" * 65, "a.b", "a/b", "a b", "a*", ">", "ä", "a\n", "a=2f", "\u0661"])
def test_what_could_not_stand_in_a_subject_is_no_id(name: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_id(name, "worker")
    assert refused.value.values["field"] == "worker"
