"""The operations of a player, one row for each operation of a client, and the differences between copies of a client.

A recorded row has the contents of a cold packet in `detail` and `properties` (docs/internals/recording.md, "Detail");
only this module of the replay reads them.
"""
from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from fluxmq._core.client.properties import Properties
from fluxmq._core.mqtt.props import property_table
from fluxmq.spark.player.amqp_operations import ANSWERED, METHODS

__all__ = [
    "ACK",
    "AMQP",
    "CLOSE",
    "COMMAND",
    "CONNECT",
    "DISCONNECT",
    "KINDS",
    "METHOD",
    "OPERATIONS",
    "PUBLISH",
    "SEND",
    "SETTLE",
    "SETUP",
    "SUBSCRIBE",
    "UNSUBSCRIBE",
    "ConnectRequest",
    "WillOptions",
    "copy_of_client",
    "copy_of_filter",
    "copy_of_topic",
    "publish_detail",
    "read_connect",
    "read_opening",
    "read_properties",
    "read_subscriptions",
    "read_unsubscriptions",
    "wire_properties",
]

SETUP, CONNECT, PUBLISH, SUBSCRIBE, UNSUBSCRIBE, DISCONNECT, CLOSE, ACK = range(8)
METHOD, SEND, SETTLE = range(8, 11)         # of AMQP 0-9-1: other methods, basic.publish, acknowledgements
COMMAND = 11                                # a PUBLISH that settles a message of a queue: queue_commands.py
AMQP = 91                                   # its version
# Recorded kind: ours. `accepted` only where it says what a session had when the recording began.
KINDS = {"accepted": SETUP, "CONNECT": CONNECT, "PUBLISH": PUBLISH, "SUBSCRIBE": SUBSCRIBE,
         "UNSUBSCRIBE": UNSUBSCRIBE, "DISCONNECT": DISCONNECT, "closed": CLOSE, "PUBACK": ACK, "PUBREC": ACK,
         "connection.open": CONNECT, "connection.close": DISCONNECT, "basic.publish": SEND,
         **dict.fromkeys(("basic.ack", "basic.nack", "basic.reject"), SETTLE),
         **dict.fromkeys((*METHODS, *ANSWERED), METHOD)}

# Sorted by (time, seq, copy). link: a recorded connection of one copy. rank: of an ACK, which delivery of QoS 1 and 2
# of its connection it is for, from 0; of a COMMAND, which delivery of its queue. payload: null unless recorded whole.
# method, channel, exchange, tag: of AMQP.
OPERATIONS = pa.schema([
    ("time", pa.int64()), ("seq", pa.int64()), ("copy", pa.int32()), ("kind", pa.int8()), ("link", pa.int64()),
    ("client_number", pa.int64()), ("client", pa.string()), ("version", pa.int8()), ("topic", pa.string()),
    ("qos", pa.int8()), ("retain", pa.bool_()), ("size", pa.int64()), ("payload", pa.binary()),
    ("properties", pa.string()), ("detail", pa.string()), ("reason", pa.int32()),
    ("rank", pa.int64()), ("method", pa.string()), ("channel", pa.int32()), ("exchange", pa.string()),
    ("tag", pa.int64()),
])

_PROPERTIES = {name: (identifier, kind) for identifier, name, kind, _, _ in property_table()}
# What belongs to one connection (aliases are resolved), or to a login that is not replayed.
_LEFT_OUT = {"topic_alias", "topic_alias_maximum", "authentication_method", "authentication_data"}


@dataclass(frozen=True, slots=True)
class WillOptions:
    topic: str
    qos: int
    retain: bool
    size: int
    payload: bytes | None
    delay_s: int
    properties: Properties


@dataclass(frozen=True, slots=True)
class ConnectRequest:
    """The options of a CONNECT, without client identifier and login."""

    version: int
    clean_start: bool
    keep_alive_s: int
    session_expiry_s: int
    will: WillOptions | None
    properties: Properties


def copy_of_client(client: str, copy: int) -> str:
    return f"{client}~{copy}" if copy else client


def copy_of_topic(topic: str, copy: int) -> str:
    """A copy publishes to topics of its own. Names that begin with $ belong to the broker, and all copies share each
    queue: their consumers share its groups, so the load is that of several recordings and nothing is delivered
    twice."""
    return f"~{copy}/{topic}" if copy and not topic.startswith("$") else topic


def copy_of_filter(name: str, copy: int) -> str:
    if name.startswith("$share/") and name.count("/") >= 2:
        share, group, rest = name.split("/", 2)
        return f"{share}/{group}/{copy_of_topic(rest, copy)}"
    return copy_of_topic(name, copy)


def _loaded(text: str | None) -> dict[str, Any]:
    found = json.loads(text) if text else {}
    return found if isinstance(found, dict) else {}


def read_properties(text: str | dict[str, Any] | None, copy: int = 0) -> Properties:
    """Properties of MQTT 5 from their JSON, ready to be sent again by a copy."""
    found = text if isinstance(text, dict) else _loaded(text)
    entries: list[tuple[int, Any]] = []
    for key, value in found.items():
        name = key.lower().replace(" ", "_").replace("-", "_")
        if name in ("user", "user_properties"):
            name = "user_property"
        if name not in _PROPERTIES or name in _LEFT_OUT or value is None:
            continue
        identifier, kind = _PROPERTIES[name]
        if name == "user_property":
            entries += [(identifier, (str(pair[0]), str(pair[1]))) for pair in value]
        elif kind == "binary data":
            entries.append((identifier, base64.b64decode(value)))
        elif name == "response_topic":
            entries.append((identifier, copy_of_topic(str(value), copy)))
        else:
            entries += [(identifier, one) for one in (value if isinstance(value, list) else [value])]
    return Properties(entries)


@lru_cache(maxsize=4096)
def wire_properties(text: str | None, copy: int) -> bytes:
    """As `read_properties`, as bytes of a PUBLISH."""
    found = read_properties(text, copy)
    return found.wire() if found else b""


@lru_cache(maxsize=4096)
def publish_detail(text: str | None) -> str | None:
    """A column for what the other columns of a PUBLISH do not contain: that the message expires."""
    expiry = read_properties(text).message_expiry_interval
    return None if expiry is None else json.dumps({"message_expiry_s": expiry})


def _number(found: dict[str, Any], *names: str) -> int:
    return next((int(found[name]) for name in names if found.get(name) is not None), 0)


def _take(properties: Properties, name: str) -> int:
    """Removes and returns a number that ConnectOptions has a field for."""
    identifier = _PROPERTIES[name][0]
    value = next((value for found, value in properties if found == identifier), 0)
    properties[:] = [entry for entry in properties if entry[0] != identifier]
    return int(value) if isinstance(value, int) else 0


def _read_will(found: dict[str, Any], copy: int) -> WillOptions:
    properties = read_properties(found.get("properties"), copy)
    delay = _take(properties, "will_delay_interval") or _number(found, "delay_s")
    payload = base64.b64decode(found["payload"]) if isinstance(found.get("payload"), str) else None
    return WillOptions(
        copy_of_topic(str(found.get("topic", "")), copy), _number(found, "qos"), bool(found.get("retain")),
        len(payload) if payload is not None else _number(found, "size"), payload, delay, properties)


def read_connect(detail: str | None, properties: str | None, version: int, copy: int) -> ConnectRequest:
    """Of a CONNECT row."""
    found = _loaded(detail)
    request = read_properties(properties, copy)
    expiry = _take(request, "session_expiry_interval") or _number(found, "session_expiry_s")
    will = found.get("will")
    return ConnectRequest(
        version, bool(found.get("clean_start", found.get("clean_session", True))),
        _number(found, "keep_alive_s", "keep_alive"), expiry,
        _read_will(will, copy) if isinstance(will, dict) else None, request if version >= 5 else Properties())


def read_opening(detail: str | None, properties: str | None, version: int,
                 copy: int) -> tuple[ConnectRequest, list[tuple[str, int]]]:
    """Of a CONNECT row, and of an ACCEPTED row at the start, which has the subscriptions that were there: how to
    connect, and these subscriptions."""
    return read_connect(detail, properties, version, copy), _subscriptions(_loaded(detail).get("subscriptions"), copy)


def _subscriptions(found: Any, copy: int) -> list[tuple[str, int]]:
    request = []
    for entry in found or ():
        if isinstance(entry, dict):
            name = str(entry.get("filter", entry.get("topic", "")))
            options = entry.get("options")
            request.append((copy_of_filter(name, copy), _number(entry, "qos") if options is None else int(options)))
        else:
            request.append((copy_of_filter(str(entry[0]), copy), int(entry[1])))
    return request


def read_subscriptions(detail: str | None, copy: int) -> list[tuple[str, int]]:
    """(filter, options byte) of a SUBSCRIBE row."""
    found = _loaded(detail)
    return _subscriptions(found.get("filters", found.get("subscriptions")), copy)


def read_unsubscriptions(detail: str | None, copy: int) -> list[str]:
    """Filters of an UNSUBSCRIBE row."""
    return [copy_of_filter(entry if isinstance(entry, str) else str(entry[0]), copy)
            for entry in _loaded(detail).get("filters") or ()]
