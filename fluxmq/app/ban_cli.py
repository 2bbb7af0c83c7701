"""`fluxmq ban …`: bans at a running broker, over its admin socket (admin/bans.py)."""
from __future__ import annotations

from typing import Any

import click

from fluxmq.app.config_options import duration
from fluxmq.app.queue_place import Place, asks
from fluxmq.app.queue_text import as_table, plain

__all__ = ["ban"]

_LIFTED = {"address": "ADDRESS", "user": "USER", "failures": "FAILED LOGINS"}
_COLUMNS = _LIFTED | {"until_ms": "BANNED UNTIL"}


@click.group()
def ban() -> None:
    """See who is banned, for failed logins (auth.ban_after) or by you; ban, and lift bans."""


def _rows(bans: list[dict[str, Any]], columns: dict[str, str]) -> str:
    return as_table([row | {"user": "(everybody)" if row["user"] is None else row["user"]} for row in bans], columns)


@ban.command("list")
@asks
def ban_list(place: Place) -> None:
    """List the current bans, the one that ends first on top."""
    answer = place.client.ask("GET", "bans")
    more = answer["standing"] - len(answer["bans"])
    place.show(answer, lambda: _rows(answer["bans"], _COLUMNS) + (f"and {more} more" if more > 0 else "")
               if answer["bans"] else "nobody is banned")


@ban.command("add")
@click.argument("address")
@click.option("--user", metavar="NAME", help="Only this user there.")
@click.option("--for", "length", callback=duration, default="1h", show_default=True, metavar="TIME",
              help="How long, such as 90s, 2h or 7d.")
@asks
def ban_add(place: Place, address: str, user: str | None, length: float) -> None:
    """Ban ADDRESS (of IPv6 its /64): nobody logs in from there, whatever the password.

    Who is connected stays: `fluxmq client kick` ends that. In a cluster it holds on all nodes.
    """
    answer = place.client.ask("POST", "bans", address, query={"user": user, "seconds": length})
    place.show(answer, lambda: "banned:\n" + _rows([answer["banned"]], _COLUMNS))


@ban.command("lift")
@click.argument("address")
@click.option("--user", metavar="NAME", help="Only the ban of this user there.")
@asks
def ban_lift(place: Place, address: str, user: str | None) -> None:
    """Lift the bans of ADDRESS, and forget the failed logins from there."""
    answer = place.client.ask("DELETE", "bans", address, query={"user": user})
    lifted = answer["lifted"]
    place.show(answer, lambda: f"lifted at {plain(lifted[0]['address'])}:\n" + _rows(lifted, _LIFTED))
