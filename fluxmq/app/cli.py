"""The `fluxmq` command. Modules are imported by the commands that need them, so that `fluxmq version` is quick.

A user's mistake is reported by one clear message on standard error and a status from exit_codes.py, never by a
traceback. A traceback shows a bug of the broker.
"""
import errno
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fluxmq import __version__
from fluxmq._core.errors import ConfigError, FluxError
from fluxmq.app import exit_codes
from fluxmq.app.config_options import FILE, config_option, set_option

if TYPE_CHECKING:
    from fluxmq.app.config import Provenance
    from fluxmq.model.config import Config

__all__ = ["cli", "main"]

# Commands and groups of commands: the module of each, where it has the same name. They are imported when they are used,
# or listed.
_GROUPS = {"ban": "ban_cli", "binding": "exchange_cli", "client": "client_cli", "cluster": "cluster_cli",
           "exchange": "exchange_cli", "log": "log_commands", "namespace": "namespace_cli",
           "permission": "permission_cli", "pub": "pub_cli", "queue": "queue_cli", "record": "record_cli",
           "sub": "sub_cli", "topology": "topology_cli", "tryout": "tryout_cli", "user": "user_cli", "viz": "viz_cli"}


# What standard output answers if it is, say, a file on a full disk.
_UNWRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class _Commands(click.Group):
    """The commands of this file, and _GROUPS."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.commands, *_GROUPS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _GROUPS and cmd_name not in self.commands:
            self.add_command(getattr(import_module(f"fluxmq.app.{_GROUPS[cmd_name]}"), cmd_name))
        return super().get_command(ctx, cmd_name)


def _versions() -> str:
    # importlib.metadata loads a parser of e-mail headers, which nothing else needs.
    import platform
    from importlib import metadata

    parts = [f"Python {platform.python_version()}"]
    for name in ("uvloop", "rocksdict"):
        try:
            parts.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            parts.append(f"no {name}")
    return f"fluxmq {__version__} ({', '.join(parts)})"


def _show_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        click.echo(_versions())
        context.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_show_version,
              help="Same as `fluxmq version`.")
def cli() -> None:
    """FluxMQ, a message broker."""


@cli.command()
@config_option
@set_option
@click.option("--port-offset", type=click.IntRange(0, 65535), default=0, metavar="N",
              help="Add N to the port of every listener, for a further broker on a machine.")
def run(file: Path | None, sets: tuple[str, ...], port_offset: int) -> int:
    """Run the broker until SIGTERM or SIGINT."""
    from fluxmq.app.broker_notes import Note
    from fluxmq.app.config import load

    def read() -> "tuple[Config, Provenance]":
        return load(file, os.environ, sets, port_offset)

    config, _ = read()
    note = Note(config.cluster.node_id if config.cluster.enabled else "", config.admin_socket_path())
    try:
        note.starts()
        # After the configuration has been checked: this imports the compiled core and the storage library.
        from fluxmq.app import server

        return int(server.run(config, read, note) or exit_codes.OK)
    finally:
        note.remove()


@cli.group()
def config() -> None:
    """Check, show and explain the configuration."""


@config.command("check")
@click.argument("file", type=FILE)
def config_check(file: Path) -> None:
    """Report every problem in FILE, and in the certificates, the users file and the access list that it names. Only the
    file is checked, without environment and flags."""
    from fluxmq.app.config import InvalidConfig, load
    from fluxmq.app.config_files import problems_of_files

    try:
        config, _ = load(file)
        problems = []
    except InvalidConfig as error:
        config, problems = error.config, list(error.problems)
    problems += problems_of_files(config, certificates=not problems)
    if problems:
        raise InvalidConfig(problems, config)
    click.echo(f"{file}: valid")


@config.command("show")
@config_option
@set_option
def config_show(file: Path | None, sets: tuple[str, ...]) -> None:
    """Print the configuration that `fluxmq run` would use, and where each value comes from."""
    from fluxmq.app.config import load
    from fluxmq.app.config_text import show

    click.echo(show(*load(file, os.environ, sets)), nl=False)


@config.command("keys")
@click.option("--markdown", is_flag=True, help="As the page of the guide.")
def config_keys(markdown: bool) -> None:
    """Print every key: what it does, what is allowed, its default."""
    from fluxmq.app.config_text import keys_as_markdown, keys_as_text

    click.echo(keys_as_markdown() if markdown else keys_as_text(), nl=False)


@config.command("explain")
@click.argument("key")
def config_explain(key: str) -> None:
    """Print what KEY is for, what is allowed and its default; of a section, that of all its keys."""
    from fluxmq.app.config_text import explain

    click.echo(explain(key), nl=False)


@cli.command()
def version() -> None:
    """Print the version of FluxMQ, and of Python and the libraries that it uses."""
    click.echo(_versions())


_PASSED_ON: Any = {"add_help_option": False, "context_settings": {
    "ignore_unknown_options": True, "allow_interspersed_args": False}}


@cli.command(**_PASSED_ON)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def bench(arguments: tuple[str, ...]) -> Any:
    """Load a broker and measure it; `fluxmq bench --help` says how."""
    return _pass_on("bench", "fluxmq.bench.load.cli", "the load generator", arguments)


@cli.command(**_PASSED_ON)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def replay(arguments: tuple[str, ...]) -> Any:
    """Profile and replay recordings, judge the results; `fluxmq replay --help` says how."""
    return _pass_on("replay", "fluxmq.spark.cli", "the replay", arguments)


def _pass_on(name: str, module: str, what: str, arguments: tuple[str, ...]) -> Any:
    """Runs the command `name` of a package beside the broker's."""
    try:
        command = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith(".".join(module.split(".")[:2])):
            raise
        raise click.ClickException(
            f"{what} is not installed: it comes with the package (`pip install .` in a checkout)") from error
    return command.main(args=list(arguments), prog_name=f"fluxmq {name}", standalone_mode=False)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point. arguments: without the program's name; None takes those of the process. Always raises SystemExit."""
    _open_what_is_closed()
    try:
        given = None if arguments is None else list(arguments)
        result = cli.main(args=given, prog_name="fluxmq", standalone_mode=False)
        sys.stdout.flush()
        status = result if isinstance(result, int) else exit_codes.OK
    except click.ClickException as error:
        error.show()
        status = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("fluxmq: interrupted", err=True)
        status = exit_codes.INTERRUPTED
    except ConfigError as error:
        click.echo(f"fluxmq: the configuration cannot be used: {error}", err=True)
        status = exit_codes.exit_code(error)
    except FluxError as error:
        click.echo(f"fluxmq: {error}", err=True)
        status = exit_codes.exit_code(error)
    except BrokenPipeError:     # the reader of our output has exited (`| head`)
        _give_up_output()
        status = exit_codes.OK
    except OSError as error:
        if error.filename is not None or error.errno not in _UNWRITTEN:
            raise
        _give_up_output()
        with suppress(OSError):
            click.echo(f"fluxmq: standard output: {error.strerror}", err=True)
        status = exit_codes.FAILURE
    except SystemExit:
        # click leaves a wrapper there when the reader has exited.
        if not type(sys.stdout).__name__.endswith("PacifyFlushWrapper"):
            raise
        status = exit_codes.OK
    sys.exit(status)


def _open_what_is_closed() -> None:
    """A program may be started without standard input or outputs (`>&-`). What is opened next must not take their
    numbers, and nothing has to ask whether they are there."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDONLY if mode == "r" else os.O_WRONLY)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, open(number, mode, closefd=False))   # noqa: SIM115 (it is open until the end)


def _give_up_output() -> None:
    """The interpreter must not try to flush it again at its end."""
    with suppress(OSError, ValueError):     # it has no descriptor, in a test
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
