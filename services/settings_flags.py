"""Commands whose flags are the settings of a process, so that `kvmesh router --help` lists them all."""

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from services.settings import Setting, list_settings, load_settings, plain_type

_Settings = TypeVar("_Settings", bound=msgspec.Struct)
_Result = TypeVar("_Result")


def with_flags(
    kind: type[_Settings], section: str
) -> Callable[[Callable[[_Settings], _Result]], Callable[..., _Result]]:
    """Turns a function of settings into a typer command with `--config` and a flag for every setting.

    The command raises `InvalidSetting` before the function is called.
    """

    def turn(run: Callable[[_Settings], _Result]) -> Callable[..., _Result]:
        def command(config: Path | None = None, **flags: Any) -> _Result:
            return run(load_settings(kind, section, file=config, environ=os.environ, flags=flags))

        parameters = [_config_parameter(), *map(_parameter, list_settings(kind, section))]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        command.__name__, command.__doc__ = run.__name__, run.__doc__
        return command

    return turn


def _config_parameter() -> inspect.Parameter:
    option = typer.Option("--config", help="a TOML file of settings", show_default=False)
    return inspect.Parameter(
        "config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[Path | None, option]
    )


def _parameter(setting: Setting) -> inspect.Parameter:
    declared = f"{setting.flag}/--no-{setting.flag[2:]}" if plain_type(setting.type) is bool else setting.flag
    option = typer.Option(
        declared, help=_help(setting), show_default=False, rich_help_panel=f"settings of {setting.table}"
    )
    return inspect.Parameter(
        setting.parameter,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[_flag_type(setting), option],
    )


def _flag_type(setting: Setting) -> Any:
    """What the command line parses; what is none of these stays text until it is converted."""
    if setting.is_list:
        return list[str] | None
    plain = plain_type(setting.type)
    return plain | None if plain in (bool, int, float, Path) else str | None


def _help(setting: Setting) -> str:
    if setting.is_required:
        return f"{setting.text} (must be set)"
    value = setting.default_value
    shown = ", ".join(map(str, value)) if setting.is_list else value
    return f"{setting.text} (default: {'unset' if value in (None, [], ()) else shown})"
