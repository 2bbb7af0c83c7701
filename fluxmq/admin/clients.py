"""Who is connected: GET /api/v1/clients, by client identifier, a page at a time; one of them: GET and DELETE clients/C.

    after    the last identifier of the page before; without, from the first
    count    of a page; 1000 at most, which is the default

    {"clients": [...], "connected": n, "next": id}      connected: all there are; next: what to give as `after`, or null
    {"client": {...}, "subscriptions": [...]}           the first thousand, in the order of their filters or queues
    {"disconnected": true}
"""
from __future__ import annotations

import heapq
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fluxmq.admin.http import Answer
from fluxmq.engine.ports_clients import ClientInfo, ClientsPort
from fluxmq.engine.ports_queues import QueueRefused
from fluxmq.model import limits

__all__ = ["disconnect_client", "list_clients", "show_client"]

_LOG = logging.getLogger("fluxmq.admin")
_TEXT_MAX = 255  # characters of what a client says about itself


async def list_clients(ports: Sequence[ClientsPort], query: Mapping[str, str]) -> Answer:
    """The answer. ports: those whose clients are listed. Raises QueueRefused for a count that is none."""
    asked = query.get("count", str(limits.ADMIN_CLIENTS_MAX))
    if not (asked.isascii() and asked.isdigit() and len(asked) <= 10 and 1 <= int(asked) <= limits.ADMIN_CLIENTS_MAX):
        raise QueueRefused("invalid", f"count is a number from 1 to {limits.ADMIN_CLIENTS_MAX}, not {asked!r}")
    count, after = int(asked), query.get("after", "")
    found = [(client_id, at) for at, port in enumerate(ports) for client_id in port.ids()]
    page = heapq.nsmallest(count + 1, (one for one in found if one[0] > after))
    infos = [ports[at].info(client_id) for client_id, at in page[:count]]
    body = {"clients": [_shown(info) for info in infos if info is not None], "connected": len(found),
            "next": page[count - 1][0] if len(page) > count else None}
    return Answer(200, "application/json", msgspec.json.encode(body) + b"\n", ())


async def show_client(ports: Sequence[ClientsPort], client_id: str) -> Answer:
    """One client, with what it is subscribed to. Raises QueueRefused when it is not connected."""
    for port in ports:
        if (info := port.info(client_id)) is not None:
            found = heapq.nsmallest(limits.ADMIN_CLIENTS_MAX, port.subscriptions(client_id),
                                    key=lambda one: one.get("filter", one.get("queue", "")))
            return Answer(200, "application/json",
                          msgspec.json.encode({"client": _shown(info), "subscriptions": found}) + b"\n", ())
    raise _unknown(client_id)


async def disconnect_client(ports: Sequence[ClientsPort], client_id: str) -> Answer:
    """Ends the connection of a client. Raises QueueRefused when it is not connected."""
    for port in ports:
        info = port.info(client_id)
        if info is not None and port.disconnect(client_id):
            _LOG.info("an administrator disconnected a client", extra={
                "client_id": client_id, "peer": info.peer, "user": info.user})
            return Answer(200, "application/json", b'{"disconnected": true}\n', ())
    raise _unknown(client_id)


def _unknown(client_id: str) -> QueueRefused:
    return QueueRefused("not_found", f"no client {client_id!r} is connected", "fluxmq client list shows who is")


def _shown(info: ClientInfo) -> dict[str, Any]:
    """A client for JSON; of what it says about itself, what it is."""
    shown = msgspec.structs.asdict(info)
    told = shown.pop("properties")
    shown |= {key: _text(told.get(key)) for key in ("product", "version")}
    return shown | {"name": _text(info.name)}


def _text(value: object) -> str:
    """As text that can be written anywhere."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return value[:_TEXT_MAX].encode("utf-8", "replace").decode() if isinstance(value, str) else ""
