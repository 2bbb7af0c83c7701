"""`fluxmq ban …`: bans for failed logins at a running broker, over its admin socket (admin/bans.py)."""
from __future__ import annotations

from typing import Any

import click

from fluxmq.app.queue_place import Place, asks
from fluxmq.app.queue_text import as_table, plain

__all__ = ["ban"]

_LIFTED = {"address": "ADDRESS", "user": "USER", "failures": "FAILED LOGINS"}
_COLUMNS = _LIFTED | {"until_ms": "BANNED UNTIL"}


@click.group()
def ban() -> None:
    """See who is banned for failed logins (auth.ban_after), and lift bans."""


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


@ban.command("lift")
@click.argument("address")
@click.option("--user", metavar="NAME", help="Only the ban of this user there.")
@asks
def ban_lift(place: Place, address: str, user: str | None) -> None:
    """Lift the bans of ADDRESS, and forget the failed logins from there."""
    answer = place.client.ask("DELETE", "bans", address, query={"user": user})
    lifted = answer["lifted"]
    place.show(answer, lambda: f"lifted at {plain(lifted[0]['address'])}:\n" + _rows(lifted, _LIFTED))
