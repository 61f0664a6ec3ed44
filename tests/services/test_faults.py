"""What clients are told of an error: OpenAI's envelope, and no more of their own words than help them."""

import json

import pytest

from frontend.kserve import forms
from proto.errors import InvalidRequest, KvmeshError, UnknownModel
from services.faults import MAX_SAID_CHARS, error_json

LONG = '"' * 2_000_000


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest(field=LONG, reason="there is no such field"),
        InvalidRequest(field="a", reason=f"Invalid enum value {LONG}: no"),
        UnknownModel(model=LONG),
    ],
    ids=["field", "value", "model"],
)
def test_an_error_that_quotes_megabytes_says_where_it_begins_and_ends(error: KvmeshError) -> None:
    said = json.loads(error_json(error))["error"]
    assert len(said["message"]) <= MAX_SAID_CHARS
    assert said["message"].startswith(str(error)[:20])
    assert said["message"].endswith(str(error)[-20:])
    assert len(said["param"]) <= MAX_SAID_CHARS
    assert json.loads(forms.error_json(error))["error"] == said["message"]


def test_a_short_error_is_told_as_it_is() -> None:
    said = json.loads(error_json(InvalidRequest(field="n", reason="at least 1")))["error"]
    assert said == {
        "message": "n: at least 1",
        "type": "invalid_request_error",
        "param": "n",
        "code": "invalid_request",
    }
