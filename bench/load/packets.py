"""The cold packets of the load generator, as bytes. The hot ones are in engine.pyx."""
from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fluxmq._core.mqtt.encode import encode_packet
from fluxmq._core.mqtt.packets import Connect, Subscribe, Subscription
from fluxmq.bench.load.options import HEAD_SIZE, LoadOptions

if TYPE_CHECKING:
    from fluxmq._core.mqtt.packets import Properties

__all__ = ["PublishTemplate", "connect", "disconnect", "publish_template", "subscribe"]

FRESH_DIGITS = 7
CONTENT_TYPE = "application/json"
USER_PROPERTIES = (("source", "bench"), ("unit", "celsius"))


def integer(value: int) -> bytes:
    """Variable Byte Integer (MQTT 5.0 section 1.5.5)."""
    out = bytearray()
    while True:
        value, digit = divmod(value, 128)
        out.append(digit | (0x80 if value else 0))
        if not value:
            return bytes(out)


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return len(raw).to_bytes(2, "big") + raw


def packet(first: int, body: bytes) -> bytes:
    return bytes([first]) + integer(len(body)) + body


def connect(client_id: str, *, level: int = 4, clean: bool = True, keep_alive: int = 0, session_expiry: int = 0,
            receive_maximum: int | None = None, username: str | None = None, password: str | None = None) -> bytes:
    """CONNECT. level: 4 (MQTT 3.1.1) or 5; the expiry (seconds) and the receive maximum are of 5 only."""
    properties: Properties = []
    if level == 5 and session_expiry:
        properties.append((0x11, session_expiry))
    if level == 5 and receive_maximum is not None:
        properties.append((0x21, receive_maximum))
    return encode_packet(Connect(
        client_id=client_id, protocol_level=level, clean_start=clean, keep_alive=keep_alive, username=username,
        password=None if password is None else password.encode(), properties=properties), level)


def subscribe(packet_id: int, topic_filter: str, qos: int, *, level: int = 4, start: str = "") -> bytes:
    """SUBSCRIBE to one filter. start: the user property `offset`, of version 5 only; "" for none."""
    properties: Properties = [(0x26, ("offset", start))] if start and level == 5 else []
    return encode_packet(Subscribe(packet_id, [Subscription(topic_filter, qos=qos)], properties=properties), level)


def disconnect() -> bytes:
    """DISCONNECT, Normal disconnection in both versions."""
    return b"\xe0\x00"


class PublishTemplate(NamedTuple):
    """A PUBLISH and the offsets of its variable parts; 0 for parts that it does not have."""

    packet: bytes
    id_at: int
    head_at: int
    fresh_at: int


def publish_template(options: LoadOptions, publisher: int) -> PublishTemplate:
    """The PUBLISH that a publisher sends repeatedly."""
    topic = string(options.topic(publisher))
    properties = b""
    if options.level == 5:
        if options.properties:
            properties = b"\x03" + string(CONTENT_TYPE)
            for name, value in USER_PROPERTIES:
                properties += b"\x26" + string(name) + string(value)
        properties = integer(len(properties)) + properties
    identifier = b"\x00\x00" if options.qos else b""
    body = topic + identifier + properties + bytes(i & 0xFF for i in range(min(options.size, 256)))
    body += bytes(options.size - min(options.size, 256))
    whole = packet(0x30 | options.qos << 1, body)
    start = len(whole) - len(body)
    return PublishTemplate(
        packet=whole,
        id_at=start + len(topic) if options.qos else 0,
        head_at=len(whole) - options.size if options.size >= HEAD_SIZE else 0,
        fresh_at=start + len(topic) - FRESH_DIGITS if options.topics == "fresh" else 0,
    )
