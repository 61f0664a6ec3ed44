"""Every setting with its text and default, as the TOML file that an operator starts from."""

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from services.settings import Setting, list_settings

_HEAD = """\
# Every setting of kvmesh, with its default. A field of [table] is also KVMESH_TABLE_FIELD in the environment,
# and a flag of the processes that have it. Flags win over the environment, which wins over this file.
"""


def render_settings(kinds: Mapping[str, type[msgspec.Struct]]) -> str:
    """The file for processes whose own tables and structs are `kinds`; each table once, shared ones first.

    Settings without a default, or whose default is to be unset, are commented out.
    """
    tables: dict[str, dict[str, Setting]] = {}
    settings = [setting for section, kind in kinds.items() for setting in list_settings(kind, section)]
    for setting in sorted(settings, key=lambda setting: setting.is_own):
        tables.setdefault(setting.table, {})[setting.field] = setting
    return _HEAD + "".join(f"\n[{table}]\n{_render_table(fields)}" for table, fields in tables.items())


def _render_table(fields: Mapping[str, Setting]) -> str:
    return "\n".join(_render(setting) for setting in fields.values())


def _render(setting: Setting) -> str:
    text = textwrap.fill(setting.text, 108, initial_indent="# ", subsequent_indent="# ")
    if setting.is_required:
        return f"{text}; must be set\n# {setting.field} =\n"
    value = setting.default_value
    if value is None:
        return f"{text}\n# {setting.field} =\n"
    return f"{text}\n{setting.field} = {_toml(value)}\n"


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(item) for item in value)}]"
    if isinstance(value, str | Path):
        return json.dumps(str(value), ensure_ascii=False)
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise TypeError(f"{value!r} cannot be a default: settings are scalars and lists of them")
