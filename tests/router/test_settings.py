"""The router's settings can be read from every source, and each has its text."""

import pytest

from proto.errors import InvalidSetting
from router.entry import ENTRY
from router.settings import RouterSettings
from services.settings import list_settings, load_settings


def load(**flags: str) -> RouterSettings:
    return load_settings(RouterSettings, "router", file=None, environ={}, flags=flags)


def test_every_setting_has_a_text_and_a_default() -> None:
    settings = list_settings(ENTRY.settings, ENTRY.section)
    assert {setting.table for setting in settings} == {
        "mesh",
        "bus",
        "directory",
        "logs",
        "tracing",
        "admin",
        "router",
    }
    assert all(setting.text and not setting.is_required for setting in settings)
    assert load() == RouterSettings()


def test_rules_carry_what_was_set() -> None:
    settings = load(policy="power_of_two", slowdown_weight="2.5", event_grace_s="0.7", mesh_beat_s="0.5")
    assert settings.policy == "power_of_two"
    assert settings.weights.slowdown == 2.5
    assert settings.feed_rules.grace_s == 0.7
    assert settings.beats.interval_s == 0.5


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(InvalidSetting, match=r"router\.policy"):
        load(policy="best")


def test_a_model_can_have_a_policy_of_its_own() -> None:
    settings = load(policy="random", policies="org/A-1=kv,b=c=least_loaded")
    assert [settings.policy_of(model) for model in ("org/A-1", "b=c", "d")] == [
        "kv",
        "least_loaded",
        "random",
    ]


@pytest.mark.parametrize("entry", ["org/A-1", "=kv", "a=best"])
def test_a_policy_of_a_model_that_says_nothing_is_refused(entry: str) -> None:
    with pytest.raises(InvalidSetting, match="not model=policy"):
        load(policies=entry)
