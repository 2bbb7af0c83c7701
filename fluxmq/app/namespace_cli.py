"""`fluxmq namespace …`: namespaces of a running broker, over its admin socket (admin/namespaces.py)."""
from __future__ import annotations

from typing import Any

import click

from fluxmq.app.queue_place import Place, asks, confirm, yes_option
from fluxmq.app.queue_text import as_table, plain

__all__ = ["namespace"]

_COLUMNS = {"name": "NAME", "state": "STATE", "from": "FROM", "connections": "CONNECTIONS", "sessions": "SESSIONS",
            "queues": "QUEUES", "messages": "MESSAGES", "retained": "RETAINED", "retained_bytes": "RETAINED BYTES"}
_PARTS = {"connections": "connection", "sessions": "session", "queues": "queue", "messages": "message",
          "retained": "retained message"}


@click.group()
def namespace() -> None:
    """Manage namespaces of a running broker: tenants of MQTT, virtual hosts of AMQP."""


def _row(about: dict[str, Any]) -> dict[str, Any]:
    return about | {"state": "open" if about["open"] else "closed", "from": (
        "configuration" if about["configured"] else "operator" if about["kept"] else "disk")}


def _parts(about: dict[str, Any]) -> str:
    """Describes its contents; "" if it is empty."""
    return ", ".join(f"{about[key]} {word}{'' if about[key] == 1 else 's'}" for key, word in _PARTS.items()
                     if about[key])


@namespace.command("list")
@asks
def namespace_list(place: Place) -> None:
    """List the namespaces, and what is in each.

    STATE: clients can connect to one that is open. FROM: what makes it open: the configuration, or an operator; one
    that is on the disk only is closed until it is created.
    """
    answer = place.client.ask("GET", "namespaces")
    place.show(answer, lambda: as_table([_row(one) for one in answer["namespaces"]], _COLUMNS))


@namespace.command("create")
@click.argument("name")
@asks
def namespace_create(place: Place, name: str) -> None:
    """Create the namespace NAME. It is there until it is deleted. One that exists is left as it is."""
    answer = place.client.ask("POST", "namespaces", name)
    texts = {"created": "is created", "opened": "was on the disk, and is open again", "unchanged": "already exists"}
    place.show(answer, lambda: f"{plain(name)} {texts.get(answer['result'], answer['result'])}")


@namespace.command("show")
@click.argument("name")
@asks
def namespace_show(place: Place, name: str) -> None:
    """Show the namespace NAME."""
    answer = place.client.ask("GET", "namespaces", name)

    def text() -> str:
        row = _row(answer)
        lines = [f"{title.lower():<28}{plain(row[key])}" for key, title in _COLUMNS.items()]
        lines.append(f"{'bytes kept':<28}{answer['bytes']}")
        for key, limit in answer["limits"].items():
            refused = answer["refused"][key]
            times = f", reached {refused} times since the start" if refused else ""
            lines.append(f"{'limit ' + key.replace('_', ' '):<28}{limit or 'none'}{times}")
        return "\n".join(lines) + "\n"

    place.show(answer, text)


@namespace.command("delete")
@click.argument("name")
@yes_option
@asks
def namespace_delete(place: Place, name: str, yes: bool) -> None:
    """Delete the namespace NAME with all that is in it: sessions, queues, exchanges, retained messages.

    Its clients are disconnected, and their wills are not published.
    """
    if not yes:
        inside = _parts(place.client.ask("GET", "namespaces", name))
        confirm(False, f"Delete {plain(name)} with all that is in it{f' ({inside})' if inside else ''}?")
    answer = place.client.ask("DELETE", "namespaces", name)
    place.show(answer, lambda: f"{plain(name)} is deleted, and with it {_parts(answer) or 'nothing: it was empty'}")
