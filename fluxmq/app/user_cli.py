"""`fluxmq user …`: users of a file (access/users.py), or of a cluster, over the admin socket of any of its nodes
(admin/accounts.py). Passwords are hashed here: the broker gets what it stores."""
from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import click

from fluxmq.app.config_options import FILE
from fluxmq.app.queue_place import Place, asks, confirm, open_place, place_options, yes_option
from fluxmq.app.queue_text import as_table, plain

__all__ = ["user"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
IMPORT_AT_ONCE = 500  # users in one request
_COLUMNS = {"name": "NAME", "namespace": "NAMESPACE"}


@contextmanager
def _file_errors(file: Path) -> Iterator[None]:
    """Reports a file that cannot be read or written as the user's mistake."""
    try:
        yield
    except OSError as error:
        raise click.ClickException(f"{error.filename or file}: {error.strerror or error}") from error


def _somewhere(function: Callable[Concatenate[Path | Place, _P], _T]) -> Callable[..., _T]:
    """Passes the users file, or where the broker of a cluster is, as first argument."""
    def command(*arguments: Any, users_file: Path | None, socket: Path | None, file: Path | None,
                nodes: tuple[str, ...], as_json: bool, **options: Any) -> _T:
        if users_file is not None:
            with _file_errors(users_file):
                return function(users_file, *arguments, **options)
        place = open_place(socket, file, nodes, as_json)
        try:
            return function(place, *arguments, **options)
        finally:
            place.client.close()

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    return click.option("--file", "users_file", type=FILE, metavar="FILE", help=(
        "A users file, auth.users_file of the configuration. Without it: the users of a cluster, through one of its "
        "nodes."))(place_options(command))


@click.group()
def user() -> None:
    """Manage users: of a file with --file, else of a cluster (auth.cluster_users)."""


def _show(place: Place, answer: dict[str, Any], text: str) -> None:
    place.show(answer, lambda: text)
    if answer["behind"]:
        click.echo(f"not every node may know it yet: {plain(answer['behind'])}", err=True)
    if not answer["used"]:
        click.echo("this node does not use the users of its cluster: set auth.cluster_users instead of users_file",
                   err=True)


@user.command("add")
@click.argument("name")
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input, one line.")
@click.option("--namespace", metavar="NAMESPACE", help=(
    "The only namespace that the user may enter, and where its MQTT clients are; \"\": any. Without this option it "
    "stays as it is."))
@_somewhere
def user_add(where: Path | Place, name: str, password_stdin: bool, namespace: str | None) -> None:
    """Add the user NAME, or change its password. FILE is made when it is missing."""
    from fluxmq.access import users

    if password_stdin:
        password = sys.stdin.readline().rstrip("\r\n")
        if not password:
            raise click.UsageError("there is no password on standard input")
    else:
        try:
            password = click.prompt("Password", hide_input=True, confirmation_prompt=True)
        except click.Abort:
            if sys.stdin.isatty():
                raise
            raise click.UsageError("standard input is not a terminal: pass the password as its only line, with "
                                   "--password-stdin") from None
    if isinstance(where, Path):
        users.add_user(str(where), name, password, namespace=namespace)
        click.echo(f"{name} may log in; send SIGHUP to a running broker to apply this")
        return
    made = users.User.make(name, password, namespace=namespace or "")
    answer = where.client.ask("POST", "users", body={"users": [_line(made) | {"namespace": namespace}]})
    _show(where, answer, f"{name} may log in" if answer["created"] else f"{name} is changed")


def _line(made: Any) -> dict[str, Any]:
    return {"name": made.name, "password": made.password_hash, "scram": str(made.scram), "namespace": made.namespace}


@user.command("import")
@click.argument("users_file", type=FILE, metavar="FILE")
@asks
def user_import(place: Place, users_file: Path) -> None:
    """Give the cluster all users of FILE, a users file, with their passwords. Those that it has are changed; others
    stay."""
    from fluxmq.access import users

    with _file_errors(users_file):
        found = users.read_users(users_file)
    total = {"created": 0, "changed": 0, "behind": "", "used": True}
    for at in range(0, len(found), IMPORT_AT_ONCE):
        some = [_line(one) for one in found[at:at + IMPORT_AT_ONCE]]
        answer = place.client.ask("POST", "users", body={"users": some})
        total = answer | {word: total[word] + answer[word] for word in ("created", "changed")}
    _show(place, total, f"{total['created']} users are added, {total['changed']} changed")


@user.command("remove")
@click.argument("name")
@yes_option
@_somewhere
def user_remove(where: Path | Place, name: str, yes: bool) -> None:
    """Remove the user NAME; from a cluster with its permissions."""
    from fluxmq.access import users

    confirm(yes, f"Remove the user {plain(name)}?")
    if isinstance(where, Place):
        _show(where, where.client.ask("DELETE", "users", name), f"{plain(name)} is removed")
        return
    if not users.remove_user(str(where), name):
        raise click.ClickException(f"{where} has no user {name}")
    click.echo(f"{name} is removed; send SIGHUP to a running broker to apply this")


@user.command("list")
@_somewhere
def user_list(where: Path | Place) -> None:
    """Print the names of the users, one per line; of a cluster with the namespaces that they are bound to."""
    from fluxmq.access import users

    if isinstance(where, Path):
        for name in users.list_users(str(where)):
            click.echo(name)
        return
    answer = where.client.ask("GET", "users")
    where.show(answer, lambda: as_table(answer["users"], _COLUMNS) if answer["users"] else "the cluster has no users")


