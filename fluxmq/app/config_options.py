"""Options of commands that read a configuration as `fluxmq run` does."""
from __future__ import annotations

from pathlib import Path

import click

__all__ = ["FILE", "config_option", "set_option"]

FILE = click.Path(dir_okay=False, path_type=Path)
config_option = click.option("--config", "file", type=FILE, metavar="FILE", help="Configuration in YAML.")
set_option = click.option("--set", "sets", multiple=True, metavar="KEY=VALUE",
                          help="Set one key, such as log.level=debug. Repeatable; overrides file and environment.")
