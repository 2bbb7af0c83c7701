"""Packets as values of the product, and properties of AMQP messages as plain Python, written by the naive codecs of
tests/oracle: so what reads them is held against a codec that shares nothing with it, and what writes them, too.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oracle import amqp091
from oracle import mqtt as oracle

from fluxmq._core.mqtt.packets import Packet

__all__ = ["amqp_properties", "amqp_value", "named", "wire_of"]

PROTOCOL_NAMES = {3: "MQIsdp"}
ACKS = {"PubAck": oracle.Puback, "PubRec": oracle.Pubrec, "PubRel": oracle.Pubrel, "PubComp": oracle.Pubcomp}


def named(properties: list[tuple[int, Any]]) -> list[tuple[str, Any]]:
    """By the names of the oracle."""
    return [(oracle.PROPERTY_NAMES[identifier], value) for identifier, value in properties]


def connect(told: Any) -> oracle.Packet:
    will = None if told.will is None else oracle.Will(
        topic=told.will.topic, payload=told.will.payload, qos=told.will.qos, retain=told.will.retain,
        properties=named(told.will.properties))
    return oracle.Connect(client_id=told.client_id, clean_start=told.clean_start, keep_alive=told.keep_alive, will=will,
                          username=told.username, password=told.password, protocol_level=told.protocol_level,
                          protocol_name=PROTOCOL_NAMES.get(told.protocol_level, "MQTT"),
                          properties=named(told.properties))


def subscribe(told: Any) -> oracle.Packet:
    return oracle.Subscribe(packet_id=told.packet_id, properties=named(told.properties), filters=[
        (one.filter, oracle.options(one.qos, no_local=one.no_local, retain_as_published=one.retain_as_published,
                                    retain_handling=one.retain_handling)) for one in told.subscriptions])


MADE: dict[str, Callable[[Any], oracle.Packet]] = {
    "Connect": connect,
    "ConnAck": lambda told: oracle.Connack(session_present=told.session_present, reason=told.reason_code,
                                           properties=named(told.properties)),
    "Publish": lambda told: oracle.Publish(topic=told.topic, payload=told.payload, qos=told.qos, dup=told.dup,
                                           packet_id=told.packet_id if told.qos else None, retain=told.retain,
                                           properties=named(told.properties)),
    "Subscribe": subscribe,
    "SubAck": lambda told: oracle.Suback(packet_id=told.packet_id, reasons=told.reason_codes,
                                         properties=named(told.properties)),
    "Unsubscribe": lambda told: oracle.Unsubscribe(packet_id=told.packet_id, filters=told.filters,
                                                   properties=named(told.properties)),
    "UnsubAck": lambda told: oracle.Unsuback(packet_id=told.packet_id, reasons=told.reason_codes,
                                             properties=named(told.properties)),
    "PingReq": lambda told: oracle.Pingreq(),
    "PingResp": lambda told: oracle.Pingresp(),
    "Disconnect": lambda told: oracle.Disconnect(reason=told.reason_code, properties=named(told.properties)),
    "Auth": lambda told: oracle.Auth(reason=told.reason_code, properties=named(told.properties)),
}


def wire_of(packet: Packet, version: int) -> bytes:
    """The bytes of a packet in that version (3, 4, 5), in the shortest form that says everything."""
    kind, told = type(packet).__name__, packet
    if kind in ACKS:
        ack: Any = told
        return ACKS[kind](packet_id=ack.packet_id, reason=ack.reason_code,
                          properties=named(ack.properties)).encode(version)
    return MADE[kind](told).encode(version)


def amqp_value(value: Any) -> amqp091.Value:
    """As a tree of the oracle; whole numbers are long long."""
    if isinstance(value, bool):
        return "t", int(value)
    if isinstance(value, dict):
        return "F", [(name.encode(), amqp_value(inner)) for name, inner in value.items()]
    if isinstance(value, list):
        return "A", [amqp_value(inner) for inner in value]
    if isinstance(value, str):
        return "S", value.encode()
    return ("V", None) if value is None else ("l", value)


def amqp_properties(found: dict[str, Any]) -> bytes:
    """The property list of a content header: flags and values."""
    trees = {name: amqp_value(value)[1] if isinstance(value, str | dict) else value for name, value in found.items()}
    return amqp091.build_properties(trees)
