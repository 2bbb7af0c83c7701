"""The rows that a recording must have, from packets as values: plain dicts, no bytes looked at, no speed.

docs/recording.md says what each column holds; this is that, read once more. JSON columns are Python values here.
A packet is a value that a test made, with the product's names of kinds and fields; only its attributes are looked at.
"""
from __future__ import annotations

from base64 import b64encode
from typing import Any

from oracle.mqtt import PROPERTY_NAMES as NAMES
from oracle.xxh64 import signed, xxh64

LISTS = {"subscription_identifier", "user_property"}
ALIAS, ASSIGNED, SECRET = 0x23, 0x12, 0x16
FINAL = {"PUBACK", "PUBCOMP", "SUBACK", "UNSUBACK", "CONNACK", "PINGRESP"}


def mqtt_properties(properties: list[tuple[int, Any]]) -> dict[str, Any] | None:
    found: dict[str, Any] = {}
    for identifier, value in properties:
        name = NAMES[identifier]
        if isinstance(value, bytes):
            value = b64encode(value).decode()
        if isinstance(value, tuple):
            value = list(value)
        if identifier == SECRET:
            continue
        if name in LISTS:
            found.setdefault(name, []).append(value)
        else:
            found[name] = value
    return found or None


def property_of(packet: Any, identifier: int) -> Any:
    """The first of them; None: there is none."""
    return next((value for other, value in packet.properties if other == identifier), None)


def mqtt_detail(told: Any, full: bool) -> dict[str, Any] | None:
    kind = type(told).__name__
    if kind == "Connect":
        detail = {"client_id": told.client_id, "clean_start": told.clean_start, "keep_alive_s": told.keep_alive,
                  "user": told.username, "password": told.password is not None}
        if told.will is not None:
            will = {"topic": told.will.topic, "qos": told.will.qos, "retain": told.will.retain,
                    "size": len(told.will.payload)}
            if full:
                will["payload"] = b64encode(told.will.payload).decode()
            if properties := mqtt_properties(told.will.properties):
                will["properties"] = properties
            detail["will"] = will
        return detail
    if kind == "ConnAck":
        return {"session_present": told.session_present}
    if kind == "Subscribe":
        return {"subscriptions": [[one.filter, one.qos + 4 * one.no_local + 8 * one.retain_as_published
                                   + 16 * one.retain_handling] for one in told.subscriptions]}
    if kind == "Unsubscribe":
        return {"filters": told.filters}
    if kind in ("SubAck", "UnsubAck"):
        return {"codes": told.reason_codes}
    return None


class Oracle:
    """rows: what is expected so far."""

    def __init__(self, payload: str = "hash") -> None:
        self.payload = payload
        self.rows: list[dict[str, Any]] = []
        self.client: dict[int, str] = {}
        self.version: dict[int, int] = {}
        self.aliases: dict[tuple[int, str], dict[int, str]] = {}
        self.waiting: dict[tuple[Any, ...], list[dict[str, Any]]] = {}

    def row(self, connection: int, protocol: str | None, kind: str, time: int, **columns: Any) -> dict[str, Any]:
        row = {"seq": len(self.rows), "time": time, "connection": connection, "kind": kind, "protocol": protocol,
               "client_id": self.client.get(connection), "version": self.version.get(connection), **columns}
        self.rows.append(row)
        return row

    def message(self, payload: bytes) -> dict[str, Any]:
        columns: dict[str, Any] = {"size": len(payload)}
        if self.payload != "size":
            columns["digest"] = signed(xxh64(payload))
        if self.payload == "full":
            columns["payload"] = payload
        return columns

    def wait(self, row: dict[str, Any], *key: Any) -> None:
        self.waiting[(row["connection"], *key)] = [row]

    def answer(self, row: dict[str, Any], last: bool, *key: Any) -> None:
        waiting = self.waiting.get((row["connection"], *key))
        if waiting:
            row["answers"] = waiting[0]["seq"]
            if last:
                row["ack_latency"] = row["time"] - waiting.pop(0)["time"]

    def lost(self, time: int, entries: int, size: int) -> None:
        self.row(0, None, "lost", time, detail={"entries": entries, "bytes": size})
        self.waiting.clear()
        self.aliases.clear()

    def mqtt(self, connection: int, direction: str, time: int, packet: Any, size: int) -> None:
        kind = type(packet).__name__.upper()
        if kind == "CONNECT":
            self.version[connection] = packet.protocol_level
            self.client[connection] = packet.client_id or self.client.get(connection)
        if kind == "CONNACK" and (assigned := property_of(packet, ASSIGNED)):
            self.client[connection] = str(assigned)
        five = self.version.get(connection) == 5
        row = self.row(connection, "mqtt", kind, time, direction=direction, bytes=size,
                       detail=mqtt_detail(packet, self.payload == "full"),
                       properties=mqtt_properties(getattr(packet, "properties", [])))
        if kind == "PUBLISH":
            row |= {"topic": self.topic(connection, direction, packet), "qos": packet.qos, "retain": packet.retain,
                    "dup": packet.dup, "packet_id": packet.packet_id or None} | self.message(packet.payload)
            self.rows[-1] = row
        elif hasattr(packet, "packet_id"):
            row["packet_id"] = packet.packet_id
        if kind == "CONNACK" or (five and hasattr(packet, "reason_code")):
            row["reason"] = packet.reason_code
        self.relate(row, kind, "out" if direction == "in" else "in")

    def topic(self, connection: int, direction: str, packet: Any) -> str | None:
        known = self.aliases.setdefault((connection, direction), {})
        alias = property_of(packet, ALIAS)
        if alias and packet.topic:
            known[alias] = packet.topic
        return packet.topic or known.get(alias)

    def relate(self, row: dict[str, Any], kind: str, other: str) -> None:
        """What it answers, and what will answer it."""
        if kind in ("SUBSCRIBE", "UNSUBSCRIBE") or (kind == "PUBLISH" and row["qos"]):
            self.wait(row, row["direction"], row["packet_id"])
        elif kind == "CONNECT":
            self.wait(row, "connect")
        elif kind == "PINGREQ":
            self.waiting.setdefault((row["connection"], "ping"), []).append(row)
        elif kind == "CONNACK":
            self.answer(row, True, "connect")
        elif kind == "PINGRESP":
            self.answer(row, True, "ping")
        elif kind == "PUBREL":
            self.answer(row, False, row["direction"], row["packet_id"])
        elif "packet_id" in row and kind != "PUBLISH":
            refused = kind == "PUBREC" and (row.get("reason") or 0) >= 0x80
            self.answer(row, kind in FINAL or refused, other, row["packet_id"])


class AmqpOracle(Oracle):
    """Methods and messages of AMQP, likewise."""

    def __init__(self, payload: str = "hash") -> None:
        super().__init__(payload)
        self.confirms: dict[tuple[int, int], int] = {}
        self.tags: dict[tuple[int, int, str], dict[int, dict[str, Any]]] = {}

    def lost(self, time: int, entries: int, size: int) -> None:
        super().lost(time, entries, size)
        self.confirms.clear()
        self.tags.clear()

    def publish(self, connection: int, channel: int, time: int, size: int, exchange: str, key: str,
                properties: dict[str, Any] | None, payload: bytes) -> None:
        row = self.row(connection, "amqp091", "basic.publish", time, direction="in", channel=channel, bytes=size,
                       topic=key, exchange=exchange, properties=properties,
                       qos=(properties or {}).get("delivery_mode"), **self.message(payload))
        if (connection, channel) in self.confirms:
            self.confirms[connection, channel] += 1
            row["packet_id"] = self.confirms[connection, channel]
            self.tags.setdefault((connection, channel, "out"), {})[row["packet_id"]] = row

    def deliver(self, connection: int, channel: int, time: int, size: int, tag: int, redelivered: bool, consumer: str,
                exchange: str, key: str, properties: dict[str, Any] | None, payload: bytes) -> None:
        row = self.row(connection, "amqp091", "basic.deliver", time, direction="out", channel=channel, bytes=size,
                       topic=key, exchange=exchange, properties=properties, packet_id=tag, dup=redelivered,
                       qos=(properties or {}).get("delivery_mode"), detail={"consumer_tag": consumer},
                       **self.message(payload))
        self.tags.setdefault((connection, channel, "in"), {})[tag] = row

    def settle(self, connection: int, channel: int, time: int, direction: str, tag: int, multiple: bool) -> None:
        row = self.row(connection, "amqp091", "basic.ack", time, direction=direction, channel=channel, bytes=21,
                       packet_id=tag, detail={"multiple": True} if multiple else None)
        waiting = self.tags.setdefault((connection, channel, direction), {})
        if multiple and tag == 0 and waiting:
            tag = max(waiting)
        answered = waiting.get(tag)
        if answered is not None:
            row |= {"answers": answered["seq"], "ack_latency": time - answered["time"]}
            self.rows[-1] = row
        for other in [one for one in waiting if one == tag or (multiple and one < tag)]:
            del waiting[other]

    def method(self, connection: int, channel: int, time: int, direction: str, kind: str, size: int,
               detail: dict[str, Any] | None, asks: str | None = None, **columns: Any) -> None:
        row = self.row(connection, "amqp091", kind, time, direction=direction, channel=channel, bytes=size,
                       detail=detail, **columns)
        self.answer(row, True, channel, kind)
        if asks:
            self.waiting.setdefault((connection, channel, asks), []).append(row)
        if kind == "confirm.select":
            self.confirms[connection, channel] = 0
