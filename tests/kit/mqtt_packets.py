"""Valid MQTT packets from a source of randomness: a seeded random.Random, or the one that hypothesis draws and shrinks.

Every kind of packet, every property where it may stand, repeated where it may repeat, text from all over Unicode.
This only drives: the product's tables say what a packet may have, values are made, and nothing is read or judged here.
"""
from collections.abc import Callable
from random import Random
from typing import Any

from fluxmq._core.mqtt.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
)
from fluxmq._core.mqtt.props import property_table
from fluxmq._core.testing import codec as codec_testing
from fluxmq.model.mqtt import Property

__all__ = ["KINDS", "VERSIONS", "random_packet", "random_properties"]

VERSIONS = (3, 4, 5)
WILL = 16
TABLE = property_table()
ALPHABET = "abcXYZ019/ -_.$\u00e9\u0416\u4e2d\u20ac\ufeff\uffff\U0001f600\U0010ffff\x01\x7f\x80\ud7ff\ue000\u07ff\u0800"
FLAGS = {Property.PAYLOAD_FORMAT_INDICATOR, Property.REQUEST_PROBLEM_INFORMATION,
         Property.REQUEST_RESPONSE_INFORMATION, Property.MAXIMUM_QOS, Property.RETAIN_AVAILABLE,
         Property.WILDCARD_SUBSCRIPTION_AVAILABLE, Property.SUBSCRIPTION_IDENTIFIER_AVAILABLE,
         Property.SHARED_SUBSCRIPTION_AVAILABLE}
NOT_ZERO = {Property.SUBSCRIPTION_IDENTIFIER, Property.RECEIVE_MAXIMUM, Property.MAXIMUM_PACKET_SIZE,
            Property.TOPIC_ALIAS}
BITS = {"byte": 8, "two byte integer": 16, "four byte integer": 32, "variable byte integer": 28}


def text(rng: Random, least: int = 0, most: int = 12) -> str:
    return "".join(rng.choice(ALPHABET) for _ in range(rng.randint(least, most)))


def binary(rng: Random, most: int = 24) -> bytes:
    return bytes(rng.randint(0, 255) for _ in range(rng.randint(0, most)))


def payload(rng: Random) -> bytes:
    # The sizes around which the Remaining Length grows by a byte.
    return binary(rng) * rng.choice((0, 1, 1, 1, 5, 700))


def number(rng: Random, bits: int) -> int:
    return rng.choice((0, 1, 127, 128, 16383, 16384, (1 << bits) - 1, rng.randint(0, (1 << bits) - 1))) % (1 << bits)


def property_value(rng: Random, identifier: int, kind: str) -> Any:
    if identifier in FLAGS:
        return rng.randint(0, 1)
    if kind in BITS:
        return max(number(rng, BITS[kind]), 1 if identifier in NOT_ZERO else 0)
    if kind == "utf-8 string":
        return text(rng, least=1 if identifier == Property.RESPONSE_TOPIC else 0)
    if kind == "binary data":
        return binary(rng)
    return text(rng), text(rng)


def random_properties(rng: Random, where: int) -> list[tuple[int, Any]]:
    """Properties that may stand in `where` (a packet type, or 16 for a will), shuffled."""
    found = []
    for identifier, _, kind, packets, repeats in TABLE:
        if where not in packets:
            continue
        times = rng.choice((0, 0, 0, 1, 1)) * (rng.randint(1, 3) if where in repeats else 1)
        found += [(identifier, property_value(rng, identifier, kind)) for _ in range(times)]
    rng.shuffle(found)
    return found


def has(properties: list[tuple[int, Any]], identifier: int) -> bool:
    return any(entry[0] == identifier for entry in properties)


def with_method(rng: Random, properties: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
    """Authentication Data may not stand without its method."""
    if has(properties, Property.AUTHENTICATION_DATA) and not has(properties, Property.AUTHENTICATION_METHOD):
        properties.append((int(Property.AUTHENTICATION_METHOD), text(rng)))
    return properties


def connect(rng: Random, version: int) -> Packet:
    will = None
    if rng.randint(0, 1):
        will = Will(text(rng, 1), payload=payload(rng)[:65535], qos=rng.randint(0, 2), retain=bool(rng.randint(0, 1)),
                    properties=random_properties(rng, WILL) if version == 5 else [])
    username = text(rng) if rng.randint(0, 1) else None
    password = binary(rng) if rng.randint(0, 1) and (version == 5 or username is not None) else None
    client_id = text(rng)
    clean_start = bool(rng.randint(0, 1))
    if not client_id and (version == 3 or (version == 4 and not clean_start)):
        client_id = "c"
    return Connect(client_id=client_id, protocol_level=version, clean_start=clean_start, keep_alive=number(rng, 16),
                   will=will, username=username, password=password,
                   properties=with_method(rng, random_properties(rng, 1)) if version == 5 else [])


def connack(rng: Random, version: int) -> Packet:
    reason = rng.choice(codec_testing.reasons_of(2, version))
    return ConnAck(session_present=reason == 0 and bool(rng.randint(0, 1)), reason_code=reason,
                   properties=with_method(rng, random_properties(rng, 2)) if version == 5 else [])


def publish(rng: Random, version: int) -> Packet:
    qos = rng.randint(0, 2)
    properties = random_properties(rng, 3) if version == 5 else []
    least = 0 if has(properties, Property.TOPIC_ALIAS) else 1
    return Publish(text(rng, least), payload=payload(rng), qos=qos, retain=bool(rng.randint(0, 1)),
                   dup=qos > 0 and bool(rng.randint(0, 1)), packet_id=max(1, number(rng, 16)) if qos else 0,
                   properties=properties)


def acknowledgement(kind: int, made: Callable[..., Packet]) -> Callable[[Random, int], Packet]:
    def make(rng: Random, version: int) -> Packet:
        return made(max(1, number(rng, 16)), reason_code=rng.choice(codec_testing.reasons_of(kind, version)),
                    properties=random_properties(rng, kind) if version == 5 else [])
    return make


def subscribe(rng: Random, version: int) -> Packet:
    subscriptions = []
    for _ in range(rng.randint(1, 3)):
        name = rng.choice(("#", "+/a", "a/#", "$share/g/a/+", "not+valid", text(rng, 1)))
        if version < 5:
            subscriptions.append(Subscription(name, qos=rng.randint(0, 2)))
            continue
        subscriptions.append(Subscription(
            name, qos=rng.randint(0, 2), no_local=not name.startswith("$share/") and bool(rng.randint(0, 1)),
            retain_as_published=bool(rng.randint(0, 1)), retain_handling=rng.randint(0, 2)))
    return Subscribe(max(1, number(rng, 16)), subscriptions,
                     properties=random_properties(rng, 8) if version == 5 else [])


def suback(rng: Random, version: int) -> Packet:
    codes = [rng.choice(codec_testing.reasons_of(9, version)) for _ in range(rng.randint(1, 4))]
    return SubAck(max(1, number(rng, 16)), codes, properties=random_properties(rng, 9) if version == 5 else [])


def unsubscribe(rng: Random, version: int) -> Packet:
    return Unsubscribe(max(1, number(rng, 16)), [text(rng, 1) for _ in range(rng.randint(1, 3))],
                       properties=random_properties(rng, 10) if version == 5 else [])


def unsuback(rng: Random, version: int) -> Packet:
    if version < 5:
        return UnsubAck(max(1, number(rng, 16)))
    codes = [rng.choice(codec_testing.reasons_of(11, 5)) for _ in range(rng.randint(1, 4))]
    return UnsubAck(max(1, number(rng, 16)), reason_codes=codes, properties=random_properties(rng, 11))


def disconnect(rng: Random, version: int) -> Packet:
    if version < 5:
        return Disconnect()
    return Disconnect(reason_code=rng.choice(codec_testing.reasons_of(14, 5)), properties=random_properties(rng, 14))


def auth(rng: Random, version: int) -> Packet:
    properties = with_method(rng, random_properties(rng, 15))
    reason = rng.choice((0, 0x18, 0x19)) if has(properties, Property.AUTHENTICATION_METHOD) else 0
    return Auth(reason_code=reason, properties=properties)


KINDS: dict[int, Callable[[Random, int], Packet]] = {
    1: connect, 2: connack, 3: publish, 4: acknowledgement(4, PubAck), 5: acknowledgement(5, PubRec),
    6: acknowledgement(6, PubRel), 7: acknowledgement(7, PubComp), 8: subscribe, 9: suback, 10: unsubscribe,
    11: unsuback, 12: lambda rng, version: PingReq(), 13: lambda rng, version: PingResp(), 14: disconnect, 15: auth,
}


def random_packet(rng: Random, version: int, kind: int | None = None) -> Packet:
    """A packet that encode_packet takes in this version; of the kind with this packet type, or of any."""
    if kind is None:
        kind = rng.randint(1, 15 if version == 5 else 14)
    return KINDS[kind](rng, version)
