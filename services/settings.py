"""Settings: one frozen struct per process, read from defaults, a file, the environment and flags, rising.

A field that is itself a struct is a table of its own, named as the field and shared by every process that
has XX `directory.endpoints` in the file, `KVMESH_DIRECTORY_ENDPOINTS` in the environment,
`--directory-endpoints` as a flag (the process's own ones without their table: `--queue-limit`). In the
environment and in flags a list is separated by commas.

Unknown names are refused wherever they stand; a table of another process is not looked into.
"""

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from proto.errors import InvalidSetting

TABLES = frozenset(
    (
        "mesh",
        "bus",
        "directory",
        "logs",
        "tracing",
        "admin",
        "frontend",
        "router",
        "worker",
        "jobs",
        "objects",
        "simulate",
        "simulated",
        "engine",
        "transfer",
        "planner",
        "up",
        "status",
        "route",
    )
)
PREFIX = "KVMESH_"
ENVIRONMENT_ONLY = frozenset(("KVMESH_CACHE",))

_Settings = TypeVar("_Settings", bound=msgspec.Struct)


class Setting(msgspec.Struct, frozen=True):
    """One setting of a process: its names, its type (as annotated), its text, its default."""

    table: str
    field: str
    is_own: bool
    type: Any
    text: str
    default: Any = msgspec.NODEFAULT
    default_factory: Any = msgspec.NODEFAULT

    @property
    def name(self) -> str:
        return f"{self.table}.{self.field}"

    @property
    def variable(self) -> str:
        return f"{PREFIX}{self.table}_{self.field}".upper()

    @property
    def parameter(self) -> str:
        """As the parameter of a command: the flag's name with underscores."""
        return self.field if self.is_own else f"{self.table}_{self.field}"

    @property
    def flag(self) -> str:
        return "--" + self.parameter.replace("_", "-")

    @property
    def is_required(self) -> bool:
        return self.default is msgspec.NODEFAULT and self.default_factory is msgspec.NODEFAULT

    @property
    def default_value(self) -> Any:
        """The default. Only where `is_required` is false."""
        return self.default if self.default is not msgspec.NODEFAULT else self.default_factory()

    @property
    def is_list(self) -> bool:
        return get_origin(plain_type(self.type)) in (list, tuple)


class _Given(msgspec.Struct, frozen=True):
    """A value as it was found, and where."""

    value: Any
    source: str
    is_text: bool


def plain_type(annotated: Any) -> Any:
    """`list[str]` of `Annotated[list[str], …]`."""
    return get_args(annotated)[0] if get_origin(annotated) is Annotated else annotated


def list_settings(kind: type[msgspec.Struct], section: str) -> list[Setting]:
    """Every setting of a process whose own table is `section`; the shared tables first, its own last."""
    shared: list[Setting] = []
    hints = get_type_hints(kind, include_extras=True)
    for field in msgspec.structs.fields(kind):
        hint = hints[field.name]
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            shared.extend(_settings_of(hint, field.name, is_own=False))
    return [*shared, *_settings_of(kind, section, is_own=True)]


def _settings_of(kind: type[msgspec.Struct], table: str, *, is_own: bool) -> Iterator[Setting]:
    hints = get_type_hints(kind, include_extras=True)
    for field in msgspec.structs.fields(kind):
        hint = hints[field.name]
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            continue
        text = _description(hint)
        if not text:
            raise TypeError(f"{kind.__name__}.{field.name} has no description")
        yield Setting(table, field.name, is_own, hint, text, field.default, field.default_factory)


def _description(hint: Any) -> str:
    metas = [part for part in get_args(hint)[1:] if isinstance(part, msgspec.Meta)]
    return next((meta.description for meta in metas if meta.description), "")


def load_settings(
    kind: type[_Settings],
    section: str,
    *,
    file: Path | None,
    environ: Mapping[str, str],
    flags: Mapping[str, Any],
) -> _Settings:
    """The settings of one process. `flags` are by parameter name (`bus_urls`); None there means: not given.

    Raises:
        InvalidSetting: an unknown name, a wrong value, or a missing one; it names the source.
    """
    settings = list_settings(kind, section)
    given = _from_file(file, settings) | _from_environment(environ, settings) | _from_flags(flags, settings)
    values: dict[str, dict[str, Any]] = {}
    for setting in settings:
        if setting.name in given:
            values.setdefault(setting.table, {})[setting.field] = _convert(setting, given[setting.name])
        elif setting.is_required:
            reason = f"must be set: in a file, as {setting.variable}, or with {setting.flag}"
            raise InvalidSetting(setting=setting.name, reason=reason)
    return _build(kind, section, values)


def _build(kind: type[_Settings], section: str, values: Mapping[str, dict[str, Any]]) -> _Settings:
    """Structs check nothing when they are made, so each value was converted by its own type before."""
    tables = {}
    for name, hint in get_type_hints(kind).items():
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            tables[name] = _make(hint, name, values.get(name, {}))
    return _make(kind, section, values.get(section, {}) | tables)


def _make(kind: type[_Settings], table: str, values: Mapping[str, Any]) -> _Settings:
    try:
        return kind(**values)
    except ValueError as error:  # what the struct's own check of several fields says
        raise InvalidSetting(setting=table, reason=str(error)) from error


def _convert(setting: Setting, given: _Given) -> Any:
    value = given.value
    if given.is_text and setting.is_list:
        text = value if isinstance(value, str) else ",".join(value)
        value = [part.strip() for part in text.split(",") if part.strip()]
    try:
        return msgspec.convert(value, setting.type, strict=not given.is_text, dec_hook=_as_path)
    except msgspec.ValidationError as error:
        names = _names_of(plain_type(setting.type))
        expected = f"one of {', '.join(names)}" if names else str(error)
        reason = f"{given.value!r} in {given.source}: {expected}"
        raise InvalidSetting(setting=setting.name, reason=reason) from error


def _names_of(plain: Any) -> list[str]:
    """What may be said where only some names may be."""
    if isinstance(plain, type) and issubclass(plain, Enum):
        return [str(one.value) for one in plain]
    return list(get_args(plain)) if get_origin(plain) is Literal else []


def _as_path(kind: type[Any], value: Any) -> Path:
    """For the one type that msgspec does not know and settings have."""
    if kind is Path and isinstance(value, str | Path):
        return Path(value)
    raise ValueError(f"expected {kind.__name__}")


def _from_file(file: Path | None, settings: list[Setting]) -> dict[str, _Given]:
    if file is None:
        return {}
    found = {}
    for table, content in _parse(file).items():
        own = {setting.field: setting for setting in settings if setting.table == table}
        if not own and table in TABLES:
            continue
        if not own or not isinstance(content, dict):
            raise _unknown(table, TABLES, f"{file}")
        for field, value in content.items():
            if field not in own:
                raise _unknown(f"{table}.{field}", [setting.name for setting in own.values()], f"{file}")
            found[own[field].name] = _Given(value, str(file), is_text=False)
    return found


def _parse(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidSetting(setting=str(file), reason=str(error)) from error


def _from_environment(environ: Mapping[str, str], settings: list[Setting]) -> dict[str, _Given]:
    by_variable = {setting.variable: setting for setting in settings}
    tables = {setting.table for setting in settings}
    found = {}
    for variable, value in environ.items():
        if not variable.startswith(PREFIX) or variable in ENVIRONMENT_ONLY:
            continue
        if variable in by_variable:
            found[by_variable[variable].name] = _Given(value, variable, is_text=True)
        elif _table_of(variable) in tables or _table_of(variable) not in TABLES:
            raise _unknown(variable, by_variable, "the environment")
    return found


def _table_of(variable: str) -> str:
    return variable.removeprefix(PREFIX).partition("_")[0].lower()


def _from_flags(flags: Mapping[str, Any], settings: list[Setting]) -> dict[str, _Given]:
    by_parameter = {setting.parameter: setting for setting in settings}
    found = {}
    for parameter, value in flags.items():
        if parameter not in by_parameter:
            raise _unknown(parameter, by_parameter, "flags")
        if value is not None and value != []:  # typer's word for a list that was not given
            setting = by_parameter[parameter]
            found[setting.name] = _Given(value, setting.flag, is_text=True)
    return found


def _unknown(name: str, known: Any, source: str) -> InvalidSetting:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.0)
    return InvalidSetting(setting=name, reason=f"no such setting (in {source}); did you mean {near[0]}?")
