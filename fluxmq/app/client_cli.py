"""`fluxmq client …`: who is connected to a running broker, over its admin socket (admin/clients.py)."""
from __future__ import annotations

from typing import Any

import click

from fluxmq.app.queue_place import Place, asks
from fluxmq.app.queue_text import as_table

__all__ = ["client"]

_PAGE = 1000
_COLUMNS = {"client_id": "CLIENT", "protocol": "PROTOCOL", "peer": "PEER", "user": "USER", "virtual_host": "VHOST",
            "since_ms": "CONNECTED SINCE", "channels": "CHANNELS", "subscriptions": "SUBSCRIPTIONS", "name": "NAME",
            "product": "PRODUCT"}


@click.group()
def client() -> None:
    """See who is connected to a running broker."""


@client.command("list")
@click.option("-n", "--count", type=click.IntRange(0), default=_PAGE, show_default=True,
              help="At most so many, in the order of their identifiers; 0: all.")
@asks
def client_list(place: Place, count: int) -> None:
    """List the clients that are connected, of MQTT and of AMQP."""
    found: list[dict[str, Any]] = []
    answer: dict[str, Any] = {"next": ""}
    while answer["next"] is not None and (count == 0 or len(found) < count):
        step = min(_PAGE, count - len(found)) if count else _PAGE
        answer = place.client.ask("GET", "clients", query={"after": answer["next"] or None, "count": step})
        found += answer["clients"]
    more = answer["connected"] - len(found)

    def table() -> str:
        if not found:
            return "nobody is connected"
        return as_table(found, _COLUMNS) + (f"and {more} more; see them with --count 0" if answer["next"] else "")

    place.show({"clients": found, "connected": answer["connected"]}, table)
