"""Converts the recorded operations of an AMQP 0-9-1 client to methods to send, also for copies of the client.

Server-generated names (`amq.gen-…`) are reserved, so the replay uses `gen-…` instead, everywhere in the recording: so
other clients and other players find the queue without further information.
"""
from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from fluxmq._core.amqp091 import methods as m
from fluxmq._core.amqp091.properties import encode_properties

__all__ = [
    "ANSWERED",
    "METHODS",
    "copy_of_exchange",
    "copy_of_key",
    "copy_of_queue",
    "own_names",
    "read_method",
    "read_vhost",
    "wire_content",
]

# Of direction in, besides messages and acknowledgements. The login is not included, because the replay makes its own.
METHODS = ("channel.open", "channel.flow", "channel.close", "exchange.declare", "exchange.delete", "exchange.bind",
           "exchange.unbind", "queue.declare", "queue.bind", "queue.unbind", "queue.purge", "queue.delete",
           "basic.qos", "basic.consume", "basic.cancel", "basic.get", "basic.recover", "basic.recover-async",
           "confirm.select", "tx.select", "tx.commit", "tx.rollback")
# Of direction out: answers with names that the server chose.
ANSWERED = {"queue.declare-ok": "queue", "basic.consume-ok": "consumer_tag"}

RESERVED = "amq."
REPLY_TO = "amq.rabbitmq.reply-to"
KEYED = ("amq.direct", "amq.topic")     # shared by all copies, which differ in their keys
SELECTED = ("CC", "BCC")
TYPES = {kind.name: kind for kind in m.METHODS.values()}


def _beside(name: str, copy: int) -> str:
    return f"~{copy}.{name}" if copy and name else name


def copy_of_queue(name: str, copy: int) -> str:
    if name.startswith(REPLY_TO):
        return name
    return _beside(name.removeprefix(RESERVED), copy)


def copy_of_exchange(name: str, copy: int) -> str:
    return name if name.startswith(RESERVED) else _beside(name, copy)


def copy_of_key(exchange: str, key: str, copy: int) -> str:
    """exchange: as recorded."""
    if not exchange:
        return copy_of_queue(key, copy)
    return f"~{copy}.{key}" if copy and exchange in KEYED else key


def _arguments(found: dict[str, Any], copy: int) -> dict[str, Any]:
    """Arguments that name queues and exchanges."""
    made = dict(found)
    dead = found.get("x-dead-letter-exchange")
    for name in ("x-dead-letter-exchange", "alternate-exchange"):
        if isinstance(found.get(name), str):
            made[name] = copy_of_exchange(found[name], copy)
    key = found.get("x-dead-letter-routing-key")
    if isinstance(key, str) and isinstance(dead, str):
        made["x-dead-letter-routing-key"] = copy_of_key(dead, key, copy)
    return made


@lru_cache(maxsize=4096)
def own_names(method: str, detail: str | None) -> bool:
    """Whether the server chose the name, so that only its answer has it."""
    found = json.loads(detail) if detail else {}
    wanted = {"queue.declare": "queue", "basic.consume": "consumer_tag"}.get(method)
    return wanted is not None and not found.get(wanted) and not found.get("no_wait")


def read_method(method: str, detail: str | None, copy: int, **named: str) -> Any:
    """The method for a copy to send, with the flag to wait for its answer, whatever was recorded. named: fields that
    only the server's answer has."""
    found = (json.loads(detail) if detail else {}) | named
    kind = TYPES[method]
    exchange = str(found.get("exchange") or found.get("source") or "")
    fields: dict[str, Any] = {}
    for name in kind.fields:
        value = found.get(name.rstrip("_"))
        if value is None or name == "no_wait":
            continue
        if name == "queue":
            value = copy_of_queue(value, copy)
        elif name in ("exchange", "source", "destination"):
            value = copy_of_exchange(value, copy)
        elif name == "routing_key":
            value = copy_of_key(exchange, value, copy)
        elif name == "arguments":
            value = _arguments(value, copy)
        fields[name] = value
    return kind(**fields)


def read_vhost(detail: str | None) -> str:
    """Of connection.open, or of ACCEPTED."""
    found = json.loads(detail) if detail else {}
    return str(found.get("virtual_host", found.get("vhost", "/")))


@lru_cache(maxsize=4096)
def wire_content(text: str | None, exchange: str, copy: int, user: str) -> bytes:
    """The properties of a message as on the wire. user: the replay's login; the server would refuse another name."""
    found: dict[str, Any] = json.loads(text) if text else {}
    if "reply_to" in found:
        found["reply_to"] = copy_of_queue(found["reply_to"], copy)
    if "user_id" in found:
        found["user_id"] = user
    headers = found.get("headers")
    if isinstance(headers, dict):
        found["headers"] = headers | {
            name: [copy_of_key(exchange, key, copy) for key in headers[name]]
            for name in SELECTED if isinstance(headers.get(name), list)}
    return encode_properties(found)
