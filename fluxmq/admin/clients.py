"""Who is connected: GET /api/v1/clients, by namespace ("/" first) and client identifier, a page at a time; one of them:
GET and DELETE clients/C.

    namespace    of the list: only of this one; of one client: the namespace that it is in, "/" where none is said
    after        `next` of the page before; without, from the first
    count        of a page; 1000 at most, which is the default

    {"clients": [...], "connected": n, "next": key}     connected: all there are (in the namespace); next: what to give
                                                        as `after`, or null
    {"client": {...}, "subscriptions": [...]}           the first thousand, in the order of their filters or queues
    {"disconnected": true}
"""
from __future__ import annotations

import heapq
import logging
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from fluxmq.admin.http import Answer
from fluxmq.engine.ports.clients import ClientInfo, ClientsPort
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.model import limits

__all__ = ["disconnect_client", "list_clients", "show_client"]

_LOG = logging.getLogger("fluxmq.admin")
_TEXT_MAX = 255  # characters shown of a client's property
_DEFAULT = "/"
_HINT = "fluxmq client list shows who is"
_Key = tuple[bool, str, str]  # (False: in the default namespace, which comes first; namespace, client identifier)


async def list_clients(ports: Sequence[ClientsPort], query: Mapping[str, str]) -> Answer:
    """The answer. ports: those whose clients are listed. Raises QueueRefused for a count that is none."""
    asked = query.get("count", str(limits.ADMIN_CLIENTS_MAX))
    if not (asked.isascii() and asked.isdigit() and len(asked) <= 10 and 1 <= int(asked) <= limits.ADMIN_CLIENTS_MAX):
        raise QueueRefused("invalid", f"count is a number from 1 to {limits.ADMIN_CLIENTS_MAX}, not {asked!r}")
    count, only = int(asked), query.get("namespace")
    after = _read_key(query["after"]) if query.get("after") else None
    entries = [((namespace != _DEFAULT, namespace, client_id), at) for at, port in enumerate(ports)
             for namespace, client_id in port.ids() if only is None or namespace == only]
    page = heapq.nsmallest(count + 1, (one for one in entries if after is None or one[0] > after))
    infos = [ports[at].info(key[1], key[2]) for key, at in page[:count]]
    body = {"clients": [_shown(info) for info in infos if info is not None], "connected": len(entries),
            "next": _write_key(page[count - 1][0]) if len(page) > count else None}
    return Answer(200, "application/json", msgspec.json.encode(body) + b"\n", ())


def _write_key(key: _Key) -> str:
    """Names and identifiers may have any character: the first '/' ends the namespace, whose own are escaped."""
    return f"{quote(key[1], safe='')}/{key[2]}"


def _read_key(text: str) -> _Key:
    namespace, slash, client_id = text.partition("/")
    if not slash:
        raise QueueRefused("invalid", f"after is `next` of the page before, not {text!r}")
    namespace = unquote(namespace)
    return namespace != _DEFAULT, namespace, client_id


async def show_client(ports: Sequence[ClientsPort], client_id: str, namespace: str = _DEFAULT) -> Answer:
    """One client, with what it is subscribed to. Raises QueueRefused when it is not connected."""
    for port in ports:
        if (info := port.info(namespace, client_id)) is not None:
            first_filters = heapq.nsmallest(limits.ADMIN_CLIENTS_MAX, port.subscriptions(namespace, client_id),
                                    key=lambda one: one.get("filter", one.get("queue", "")))
            return Answer(200, "application/json",
                          msgspec.json.encode({"client": _shown(info), "subscriptions": first_filters}) + b"\n", ())
    raise _unknown(ports, client_id, namespace)


async def disconnect_client(ports: Sequence[ClientsPort], client_id: str, namespace: str = _DEFAULT) -> Answer:
    """Ends the connection of a client. Raises QueueRefused when it is not connected."""
    for port in ports:
        info = port.info(namespace, client_id)
        if info is not None and port.disconnect(namespace, client_id):
            _LOG.info("an administrator disconnected a client", extra={
                "client_id": client_id, "namespace": namespace, "peer": info.peer, "user": info.user})
            return Answer(200, "application/json",
                          msgspec.json.encode({"disconnected": True, "peer": info.peer}) + b"\n", ())
    raise _unknown(ports, client_id, namespace)


def _unknown(ports: Sequence[ClientsPort], client_id: str, namespace: str) -> QueueRefused:
    where = "" if namespace == _DEFAULT else f" in namespace {namespace}"
    others = sorted({other for port in ports for other, name in port.ids() if name == client_id})
    return QueueRefused("not_found", f"no client {client_id!r} is connected{where}",
                        f"one is in namespace {', '.join(others)}: say which by --namespace" if others else _HINT)


def _shown(info: ClientInfo) -> dict[str, Any]:
    """A client for JSON, with its client properties as far as JSON can represent them."""
    shown = msgspec.structs.asdict(info)
    client_properties = shown.pop("properties")
    shown |= {key: _text(client_properties.get(key)) for key in ("product", "version")}
    return shown | {"name": _text(info.name)}


def _text(value: object) -> str:
    """As text that can be displayed anywhere."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return value[:_TEXT_MAX].encode("utf-8", "replace").decode() if isinstance(value, str) else ""
