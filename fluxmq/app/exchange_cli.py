"""`fluxmq exchange …` and `fluxmq binding …`: what AMQP clients have declared, over the admin socket
(admin/exchanges.py)."""
from __future__ import annotations

import json
from typing import Any

import click

from fluxmq.app.queue_place import Place, asks
from fluxmq.app.queue_text import as_table, plain

__all__ = ["binding", "exchange"]

_PAGE = 1000
_EXCHANGES = {"name": "NAME", "type": "TYPE", "durable": "DURABLE", "auto_delete": "AUTO-DELETE",
              "internal": "INTERNAL", "bindings": "BINDINGS", "arguments": "ARGUMENTS"}
_BINDINGS = {"source": "EXCHANGE", "to": "TO", "destination": "NAME", "routing_key": "ROUTING KEY",
             "arguments": "ARGUMENTS"}


def _rows(found: list[dict[str, Any]], columns: dict[str, str]) -> str:
    if any(one["namespace"] != "/" for one in found):
        columns = {"namespace": "NAMESPACE"} | columns
    return as_table([one | {"arguments": ", ".join(f"{plain(key)}: {_value(value)}" for key, value in
                                                  one["arguments"].items())} for one in found], columns)


def _value(value: Any) -> str:
    return plain(value) if isinstance(value, str | bool | int | float) else json.dumps(value, ensure_ascii=False)


@click.group()
def exchange() -> None:
    """See the exchanges of AMQP clients."""


@exchange.command("list")
@click.option("--namespace", metavar="NAME", help="Only those in this namespace.")
@asks
def exchange_list(place: Place, namespace: str | None) -> None:
    """List the exchanges, the predefined ones too. They are declared by clients."""
    answer = place.client.ask("GET", "exchanges", query={"namespace": namespace})
    place.show(answer, lambda: _rows(answer["exchanges"], _EXCHANGES))


@click.group()
def binding() -> None:
    """See what is bound to exchanges."""


@binding.command("list")
@click.option("--exchange", metavar="NAME", help="Only bindings from or to this exchange.")
@click.option("--queue", metavar="NAME", help="Only bindings of this queue.")
@click.option("--namespace", metavar="NAME", help="Only those in this namespace.")
@click.option("-n", "--count", type=click.IntRange(0), default=_PAGE, show_default=True,
              help="List up to this many; 0: all.")
@asks
def binding_list(place: Place, exchange: str | None, queue: str | None, namespace: str | None, count: int) -> None:
    """List bindings of queues and exchanges to exchanges. Every queue is reached through the default exchange by its
    name, too, which is no binding that can be removed."""
    found: list[dict[str, Any]] = []
    following: int | None = 0
    while following is not None and (count == 0 or len(found) < count):
        answer = place.client.ask("GET", "bindings", query={
            "namespace": namespace, "exchange": exchange, "queue": queue, "from": following,
            "count": min(_PAGE, count - len(found)) if count else _PAGE})
        found += answer["bindings"]
        following = answer["next"]
    more = "there are more; see them with --count 0" if following is not None else ""
    place.show({"bindings": found, "next": following},
               lambda: _rows(found, _BINDINGS) + more if found else "nothing is bound")
