"""The error tree is as drawn, its codes are one each, and an error survives the wire."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto import errors
from proto.codec import decode, encode
from proto.errors import (
    CallerFault,
    DeadlineExceeded,
    Fault,
    InternalFault,
    KvmeshError,
    NoWorker,
    Overloaded,
    TransferFault,
    Unavailable,
    error_class,
    from_fault,
    to_fault,
)

GROUPS = (CallerFault, Unavailable, TransferFault)
_DRAWN = re.compile(r"^(?P<rails>[│ ]*)[├└]── (?P<name>\w+) {2,}(?P<gloss>\S.*)$")


def _below(root: type[KvmeshError]) -> list[type[KvmeshError]]:
    return [found for child in root.__subclasses__() for found in (child, *_below(child))]


ALL = [found for found in _below(KvmeshError) if found.__module__ == errors.__name__]
every_error = pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)


def _example(kind: type[KvmeshError]) -> KvmeshError:
    return kind(**{field: f"some {field}" for field in kind.fields})


def _drawn_tree() -> list[tuple[str, str]]:
    """(class, parent) for each line of the drawing, in order."""
    lines = (errors.__doc__ or "").split("```")[1].strip().splitlines()
    above = [lines[0]]
    drawn = []
    for line in lines[1:]:
        found = _DRAWN.match(line)
        assert found is not None, line
        above = above[: len(found["rails"]) // 4 + 1]
        drawn.append((found["name"], above[-1]))
        above.append(found["name"])
    return drawn


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    assert _drawn_tree() == [(kind.__name__, kind.__bases__[0].__name__) for kind in ALL]


def test_every_group_is_drawn_with_its_statuses_and_whether_it_is_retriable() -> None:
    drawn = errors.__doc__ or ""
    assert "CallerFault         the caller's: never retriable, 4xx" in drawn
    assert "Unavailable         ours for now: retriable, 429 or 503" in drawn
    assert "TransferFault       the KV plane's: retriable" in drawn


def test_codes_are_one_each() -> None:
    codes = [kind.code for kind in ALL]
    assert len(set(codes)) == len(codes)


@every_error
def test_a_class_is_found_by_its_code(kind: type[KvmeshError]) -> None:
    assert error_class(kind.code) is kind
    assert re.fullmatch(r"[a-z_]+", kind.code)


@every_error
def test_a_class_states_its_own_code_and_names_each_field_of_its_sentence(kind: type[KvmeshError]) -> None:
    assert "code" in vars(kind)
    assert kind in GROUPS or {"sentence", "fields"} <= set(vars(kind))
    assert set(re.findall(r"\{(\w+)", kind.sentence)) <= set(kind.fields)


@every_error
def test_an_error_survives_the_wire(kind: type[KvmeshError]) -> None:
    error = _example(kind)
    back = from_fault(decode(encode(to_fault(error)), Fault))
    assert type(back) is kind
    assert back.values == error.values
    assert str(back) == str(error)


@every_error
def test_an_error_takes_exactly_its_fields(kind: type[KvmeshError]) -> None:
    values: dict[str, str | int | float] = dict.fromkeys(kind.fields, 1)
    with pytest.raises(TypeError):
        kind(**values, another=1)
    for field in kind.fields:
        with pytest.raises(TypeError):
            kind(**{name: value for name, value in values.items() if name != field})


@every_error
def test_a_fault_on_the_wire_is_as_retriable_as_its_error(kind: type[KvmeshError]) -> None:
    assert to_fault(_example(kind)).retriable is kind.retriable


FACTS = {
    "CallerFault": (400, False),
    "InvalidRequest": (400, False),
    "PromptTooLong": (400, False),
    "UnknownModel": (404, False),
    "PayloadTooLarge": (413, False),
    "BodyTooSlow": (408, False),
    "Cancelled": (499, False),
    "InvalidSetting": (400, False),
    "Unavailable": (503, True),
    "NoWorker": (503, True),
    "NoResponder": (503, True),
    "Overloaded": (429, True),
    "GoElsewhere": (503, True),
    "WorkerNotReady": (503, True),
    "WorkerLost": (503, True),
    "Disconnected": (503, True),
    "Conflict": (409, True),
    "TransferFault": (503, True),
    "GrantRefused": (503, True),
    "PinLost": (503, True),
    "PeerGone": (503, True),
    "NothingPosted": (503, True),
    "LayoutMismatch": (503, False),
    "DeadlineExceeded": (504, True),
    "InternalFault": (500, False),
}


def test_status_and_whether_to_try_again_are_facts_of_the_class() -> None:
    assert {kind.__name__: (kind.status, kind.retriable) for kind in ALL} == FACTS


def test_callers_faults_are_4xx_and_never_retriable_and_all_others_but_bugs_say_when_to_come_back() -> None:
    for kind in _below(CallerFault):
        assert 400 <= kind.status < 500
        assert not kind.retriable
    for kind in _below(Unavailable):
        assert kind.retriable
    assert DeadlineExceeded.status == 504
    assert not InternalFault.retriable


def test_a_sentence_is_made_from_the_fields() -> None:
    assert str(NoWorker(model="org/m")) == "no worker is ready for the model 'org/m'"
    assert str(DeadlineExceeded(what="a grant", limit_s=2.5)) == "a grant did not end within 2.5 s"


def test_numbers_stay_numbers_on_the_wire() -> None:
    fault = decode(encode(to_fault(Overloaded(reason="full", retry_after_s=1.5))), Fault)
    assert from_fault(fault).values == {"reason": "full", "retry_after_s": 1.5}


def test_a_code_of_a_later_version_is_an_internal_fault_that_says_which() -> None:
    error = from_fault(Fault("too_warm", {"celsius": 40}))
    assert type(error) is InternalFault
    assert "too_warm" in str(error)
    assert "40" in str(error)
    assert not Fault("too_warm").retriable


@every_error
def test_a_known_code_keeps_its_class_when_another_version_has_other_fields(kind: type[KvmeshError]) -> None:
    newer = to_fault(_example(kind))
    assert from_fault(Fault(newer.code, {**newer.values, "added": 1})).values == newer.values
    older = from_fault(Fault(kind.code, {}))
    assert type(older) is kind
    assert older.values == dict.fromkeys(kind.fields, "unknown")


@given(
    code=st.sampled_from([kind.code for kind in ALL]) | st.text(max_size=10),
    values=st.dictionaries(
        st.text(max_size=8), st.text(max_size=8) | st.integers(0, 9) | st.floats(), max_size=3
    ),
)
def test_any_fault_from_the_wire_is_an_error_with_a_sentence(
    code: str, values: dict[str, str | int | float]
) -> None:
    error = from_fault(Fault(code, values))
    assert isinstance(error, KvmeshError)
    assert str(error)
