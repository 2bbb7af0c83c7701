"""Shared by the commands of `fluxmq queue`: location of the broker, common options, pages of messages, confirmations.

The socket is given by --socket, by the configuration that `fluxmq run` would use (--config FILE, the environment), or
by --node; without any of them it is that of the only broker that runs on this machine (running.py).
"""
from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import click

from fluxmq.app.config_options import file_option
from fluxmq.app.queue_text import as_message, plain
from fluxmq.app.running import broker_sockets, node_option

__all__ = ["PAGE", "Place", "asks", "asks_queues", "confirm", "move", "namespace_option", "open_place", "pages",
           "partition_option", "place_options", "print_message", "read_position", "tell_missing", "yes_option"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
PAGE = 500  # messages asked for, or published, at once


class Place:
    """The location of the broker and the format of output; one per command."""

    def __init__(self, path: Path, as_json: bool) -> None:
        # Imported here, because importing HTTP takes longer than running `fluxmq version`.
        from fluxmq.app.admin_client import AdminClient

        self.client = AdminClient(path, on_slow=lambda: click.echo(
            f"no answer yet from the broker at {path}; waiting (Ctrl-C ends this)", err=True))
        self.as_json = as_json

    def shown(self, queue: str) -> str:
        """A queue's name as in the broker's answers."""
        namespace = self.client.namespace
        return queue if namespace in (None, "/") else f"{namespace}/{queue}"

    def show(self, answer: Any, text: Callable[[], str]) -> None:
        """Prints the answer, as JSON or as text."""
        click.echo(json.dumps(answer, indent=2, ensure_ascii=False) if self.as_json else text().rstrip("\n"))


def open_place(socket: Path | None, file: Path | None, nodes: tuple[str, ...], as_json: bool) -> Place:
    """From the values of place_options; the caller closes its client."""
    return Place(broker_sockets([socket] if socket else [], file, nodes, "--socket")[0], as_json)


def asks(function: Callable[Concatenate[Place, _P], _T]) -> Callable[..., _T]:
    """Adds the common options to a command, and passes a Place as first argument."""
    def command(*arguments: Any, socket: Path | None, file: Path | None, nodes: tuple[str, ...], as_json: bool,
                **options: Any) -> _T:
        place = open_place(socket, file, nodes, as_json)
        try:
            return function(place, *arguments, **options)
        finally:
            place.client.close()

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    return place_options(command)


def place_options(command: Callable[..., _T]) -> Callable[..., _T]:
    """Adds the options that say where the broker is, and how to print: socket, file, nodes, as_json."""
    for option in (
            click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table."),
            file_option("The broker's configuration file, which says where its socket is."),
            node_option(several=False),
            click.option("--socket", type=click.Path(path_type=Path), metavar="PATH",
                         help="The broker's admin socket. Default: that of the only broker that runs on this "
                              "machine.")):
        command = option(command)
    return command


def asks_queues(function: Callable[Concatenate[Place, _P], _T]) -> Callable[..., _T]:
    """As asks, for commands about queues, with an option for the namespace."""
    def command(place: Place, /, *arguments: Any, namespace: str | None, **options: Any) -> _T:
        place.client.namespace = namespace
        return function(place, *arguments, **options)

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    return asks(click.option("--namespace", metavar="NAME", help=(
        "Only in this namespace. Without it, NAMESPACE/NAME is a queue outside /."))(command))


def confirm(yes: bool, question: str) -> None:
    """What takes something away for good asks, and has yes_option; nothing else does either. Raises AdminError if the
    answer is no, UsageError if nobody can be asked."""
    try:
        agreed = yes or click.confirm(question, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise click.UsageError("standard input is not a terminal: confirm with --yes") from None
    if not agreed:
        from fluxmq.app.admin_client import AdminError

        raise AdminError("nothing was done")


namespace_option = click.option("--namespace", default="/", metavar="NAME", show_default=True,
                                help="The namespace that it is in; for AMQP its virtual host.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")
partition_option = click.option("--partition", type=click.IntRange(0, 65535), help="Only this partition.")


def move(place: Place, name: str, node: str, partition: int | None) -> Any:
    """Returns the broker's answer when the queue is there. Raises AdminError, also if nobody knows whether it is."""
    from fluxmq.app.admin_client import AdminError

    answer = {"moving": False}
    try:
        while (answer := place.client.ask("POST", "queues", name, "move",
                                          body={"node": node, "partition": partition}))["moving"]:
            pass
    except AdminError as error:
        if error.status or not (error.sent or answer["moving"]):
            raise
        raise AdminError(f"{plain(name)} was to move to node {plain(node)}, and may be there or where it was: {error}",
                         f"fluxmq queue describe {plain(name)}, at another node, says where it is; repeat the command "
                         "there if it has not moved") from error
    return answer


def read_position(text: str) -> str:
    """Converts `timestamp:`, which is easier to type in some shells, to the broker's `timestamp=`."""
    return f"timestamp={text[10:]}" if text.startswith("timestamp:") else text


def pages(place: Place, segments: tuple[str, ...], start: str, count: int,
           partition: int | None = None) -> Iterator[dict[str, Any]]:
    """Yields messages in pages, at most `count`, until there are no more."""
    query: dict[str, Any] = {"from": start, "partition": partition}
    while count > 0:
        answer = place.client.ask("GET", *segments, query={**query, "count": min(count, PAGE)})
        yield from answer["messages"]
        count -= len(answer["messages"])
        if not answer["messages"]:
            return
        query["from"] = answer["next"]


def tell_missing(answer: dict[str, Any]) -> None:
    """Says which nodes of the cluster have not answered, whose numbers are left out."""
    for one in answer.get("missing", ()):
        click.echo(f"numbers of node {plain(one['node'])} are left out: {plain(one['why'])}", err=True)


def print_message(place: Place, message: dict[str, Any], properties: bool) -> None:
    """With --json prints one object per line, so that a program can read an endless tail."""
    click.echo(json.dumps(message, ensure_ascii=False) if place.as_json else as_message(message, properties=properties))
