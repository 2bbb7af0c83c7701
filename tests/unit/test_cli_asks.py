"""One rule for all commands: what takes something away for good asks, and has --yes; nothing else does either."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from fluxmq.app import cli
from fluxmq.app.admin_client import AdminClient

# Each with its arguments, and those of a broker with what its request would be. What they take away cannot be had again
# by another command.
ASKS: dict[str, tuple[list[str], str]] = {
    "cluster leave": ([], "POST"),
    "cluster recover": ([], ""),                        # of a node that does not run: tests/cluster/test_recover.py
    "cluster voters remove": (["n"], "DELETE"),
    "namespace delete": (["shop"], "DELETE"),
    "permission remove": (["anna"], "DELETE"),
    "queue delete": (["q"], "DELETE"),
    "queue dlq purge": (["q"], "POST"),
    "queue groups": (["q", "--delete", "g"], "DELETE"),
    "queue purge": (["q"], "POST"),
    "queue seek": (["q", "g", "-1"], "POST"),
    "user remove": (["anna"], "DELETE"),
}
ASKED = [(name, *how) for name, how in ASKS.items() if how[1]]
# By these words a command would take something away; one that does, and is called otherwise, has --yes to be found by.
WORDS = {"delete", "purge", "remove", "leave", "recover", "seek"}


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


def test_what_takes_something_away_has_the_option_and_nothing_else_has() -> None:
    found = dict(commands(cli.cli))
    assert len(found) > 40 and "queue dlq purge" in found
    options = {name: {option for parameter in command.params for option in parameter.opts}
               for name, command in found.items()}
    has_it = {name for name in found if "--yes" in options[name]}
    takes_away = {name for name in found if WORDS & ({*name.split()} | {word[2:] for word in options[name]})}
    assert has_it == set(ASKS) == takes_away


class _Broker:
    """In place of a broker: what it is asked, by method."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def ask(self, method: str, *segments: str, **_: Any) -> Any:
        self.asked.append(method)
        if segments == ("cluster",):
            return {"local": "n", "state": "serving", "nodes": [{"id": "n", "etcd": "voter", "sessions": 0}]}
        if segments[0] == "namespaces":
            return dict.fromkeys(("connections", "sessions", "queues", "messages", "retained"), 1)
        return {"messages": 1, "purged": 1, "unsettled": 0, "positions": [], "removed": "", "behind": "", "used": True}


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> _Broker:
    found = _Broker()
    monkeypatch.setattr(AdminClient, "ask", lambda _, *what, **how: found.ask(*what, **how))
    return found


def run(command: str, *arguments: str, given: str = "") -> Any:
    more = ["--no-wait"] if command == "cluster leave" else []
    return CliRunner().invoke(cli.cli, [*command.split(), *arguments, *more, "--socket", "s"], input=given)


@pytest.mark.parametrize(("command", "arguments", "method"), ASKED)
def test_nothing_is_done_before_it_is_confirmed(broker: _Broker, command: str, arguments: list[str],
                                                method: str) -> None:
    """Where nobody can be asked, the command says how; a no is a failure; --yes, before or behind the arguments, and
    a yes do it."""
    unasked = run(command, *arguments)
    assert unasked.exit_code == 2 and "confirm with --yes" in unasked.output
    refused = run(command, *arguments, given="n\n")
    assert refused.exit_code == 1 and str(refused.exception) == "nothing was done"
    assert set(broker.asked) <= {"GET"}
    for before, behind, given in (["--yes"], [], ""), ([], ["--yes"], ""), ([], [], "y\n"):
        broker.asked.clear()
        done = run(command, *before, *arguments, *behind, given=given)
        assert done.exit_code == 0, (done.output, done.exception)
        assert broker.asked[-1] == method
        assert ("[y/N]" in done.output) == bool(given)


def test_a_users_file_is_not_changed_before_it_is_confirmed(tmp_path: Path) -> None:
    from fluxmq.access import users

    file = tmp_path / "users"
    users.add_user(str(file), "anna", "secret")

    def remove(*more: str, given: str = "") -> int:
        words = ["user", "remove", "anna", "--file", str(file), *more]
        return CliRunner().invoke(cli.cli, words, input=given).exit_code

    assert (remove(), remove(given="n\n")) == (2, 1) and list(users.list_users(str(file))) == ["anna"]
    assert remove("--yes") == 0 and not list(users.list_users(str(file)))
