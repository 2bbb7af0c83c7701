"""Options of commands that read a configuration as `fluxmq run` does."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

__all__ = ["FILE", "config_option", "duration", "file_option", "set_option"]

_Command = TypeVar("_Command", bound=Callable[..., Any])
FILE = click.Path(dir_okay=False, path_type=Path)


def _only(context: click.Context, parameter: click.Parameter, values: tuple[Path, ...]) -> Path | None:
    """click would take the last one, and say nothing of the others."""
    if len(values) > 1:
        raise click.BadParameter(f"{' and '.join(map(str, values))} are given, and a broker reads one file: write all "
                                 "of it into one, or override single keys with --set or environment variables")
    return values[0] if values else None


def file_option(help_text: str) -> Callable[[_Command], _Command]:
    """--config FILE, once, for the parameter `file`."""
    return click.option("--config", "file", type=FILE, metavar="FILE", multiple=True, callback=_only, help=help_text)


config_option = file_option("Configuration in YAML.")
set_option = click.option("--set", "sets", multiple=True, metavar="KEY=VALUE",
                          help="Set one key, such as log.level=debug. Repeatable; overrides file and environment.")


def duration(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Reads an option that is a duration."""
    from fluxmq.model.units import parse_duration

    try:
        return None if value is None else parse_duration(float(value) if value.isdigit() else value)
    except ValueError as error:
        raise click.BadParameter(str(error) or "write a duration such as 90s, or seconds") from None
