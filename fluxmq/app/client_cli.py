"""`fluxmq client …`: lists the clients of a running broker and disconnects them, over its admin socket
(admin/clients.py)."""
from __future__ import annotations

from typing import Any

import click

from fluxmq.app.queue_place import Place, asks, namespace_option
from fluxmq.app.queue_text import as_table, as_time, plain

__all__ = ["client"]

_PAGE = 1000
_COLUMNS = {"client_id": "CLIENT", "protocol": "PROTOCOL", "peer": "PEER", "user": "USER", "virtual_host": "NAMESPACE",
            "since_ms": "CONNECTED SINCE", "channels": "CHANNELS", "subscriptions": "SUBSCRIPTIONS", "name": "NAME",
            "product": "PRODUCT"}


@click.group()
def client() -> None:
    """See who is connected to a running broker, and disconnect a client."""


@client.command("list")
@click.option("-n", "--count", type=click.IntRange(0), default=_PAGE, show_default=True,
              help="List up to this many, by namespace and identifier; 0: all.")
@click.option("--namespace", metavar="NAME", help="Only those in this namespace.")
@asks
def client_list(place: Place, count: int, namespace: str | None) -> None:
    """List the clients that are connected, of MQTT and of AMQP."""
    found: list[dict[str, Any]] = []
    answer: dict[str, Any] = {"next": ""}
    while answer["next"] is not None and (count == 0 or len(found) < count):
        step = min(_PAGE, count - len(found)) if count else _PAGE
        answer = place.client.ask("GET", "clients", query={
            "namespace": namespace, "after": answer["next"] or None, "count": step})
        found += answer["clients"]
    more = answer["connected"] - len(found)

    def table() -> str:
        if not found:
            return "nobody is connected"
        return as_table(found, _COLUMNS) + (f"and {more} more; see them with --count 0" if answer["next"] else "")

    place.show({"clients": found, "connected": answer["connected"]}, table)


@client.command("show")
@click.argument("client_id")
@namespace_option
@asks
def client_show(place: Place, client_id: str, namespace: str) -> None:
    """Show one client that is connected, and what it is subscribed to."""
    answer = place.client.ask("GET", "clients", client_id, query={"namespace": namespace})
    about, found = answer["client"], answer["subscriptions"]

    def text() -> str:
        shown = "".join(f"{key:<16}{as_time(value) if key.endswith('_ms') else plain(value)}\n"
                        for key, value in about.items())
        if not found:
            return shown + "\nit is subscribed to nothing\n"
        more = about["subscriptions"] - len(found)
        return (shown + "\n" + as_table(found, {key: key.upper().replace("_", " ") for key in found[0]})
                + (f"and {more} more\n" if more > 0 else ""))

    place.show(answer, text)


@client.command("kick")
@click.argument("client_id")
@namespace_option
@asks
def client_kick(place: Place, client_id: str, namespace: str) -> None:
    """Disconnect a client.

    MQTT 5 clients are told 0x98, those of AMQP 320. A session stays as it would if the connection were lost, and the
    client may come back: to keep it out, take it from the users file, or ban where it comes from (`fluxmq ban add`).
    """
    answer = place.client.ask("DELETE", "clients", client_id, query={"namespace": namespace})
    address = plain(answer["peer"]).rpartition(":")[0].strip("[]")
    place.show(answer, lambda: f"{plain(client_id)} is disconnected\n"
               f"if it comes back: fluxmq ban add {address or 'ADDRESS'}")
