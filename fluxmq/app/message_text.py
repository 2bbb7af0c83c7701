"""How `fluxmq sub` prints a message: its formats.

    write = compiled("%t %p", on_terminal=False)      # raises ValueError that says what is wrong
    write(message, number, now)                       # bytes, with what ends a message

A message is a Delivery or a QueueMessage of fluxmq.client, which this file does not import: the formats are checked
before anything is loaded. What goes to a terminal has its control characters escaped: a message must not be able to
move the cursor. What goes elsewhere is as it was published.
"""
from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

__all__ = ["FORMATS", "LETTERS", "Printer", "compiled"]

# The formats that have a name.
FORMATS = {
    "json": "one JSON object per line, with everything that is known of the message",
    "hex": "the payload in hexadecimal",
    "raw": "the payload and nothing else, not even the end of a line",
}
# The letters of a template. Those of mosquitto_sub are the same where there are any.
LETTERS = {
    "t": "topic", "p": "payload", "x": "payload in hexadecimal", "b": "payload in Base64", "l": "bytes of the payload",
    "q": "QoS", "r": "1: retained", "d": "1: sent again", "c": "number of the message, from 1",
    "I": "time of receipt, ISO 8601", "U": "the same, seconds since 1970",
    "C": "content type", "R": "response topic", "D": "correlation data", "E": "seconds until it expires",
    "P": "user properties, NAME:VALUE", "o": "offset in a queue", "i": "its name there, PARTITION:OFFSET",
    "k": "partition key", "g": "consumer group", "n": "which delivery it is, from 1", "%": "%",
}
ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
PROPERTIES = ("payload_format_indicator", "message_expiry_interval", "content_type", "response_topic",
              "correlation_data")
# What the broker says of a message of a queue, in user properties behind the publisher's own.
OF_QUEUES = {"queue": "queue", "group-id": "group", "message-id": "message_id", "offset": "offset",
             "delivery-count": "delivery_count", "partition-key": "partition_key", "x-source-topic": "source_topic"}
NUMBERS = ("offset", "delivery_count")
_PARTS = re.compile(r"%(?:\{([^}]*)\}|(.?))|\\(.?)", re.DOTALL)

Printer = Callable[[Any, int, float], bytes]


class _Seen(NamedTuple):
    """What a template asks: the message, its number, the time."""

    message: Any
    number: int
    time: float
    user: dict[str, str]


_Value = Callable[[_Seen], "bytes | str"]


def compiled(text: str, *, on_terminal: bool) -> Printer:
    """The function that prints a message. text: a name of FORMATS, or a template. Raises ValueError."""
    if text == "raw":
        return lambda message, number, time: message.payload
    if text == "hex":
        return lambda message, number, time: message.payload.hex().encode() + b"\n"
    if text == "json":
        return lambda message, number, time: _as_json(_as_object(message, time), on_terminal=on_terminal)
    values = _template(text)
    as_bytes = _escaped if on_terminal else _plain

    def write(message: Any, number: int, time: float) -> bytes:
        seen = _Seen(message, number, time, message.properties.user_dict)
        return b"".join(value if isinstance(value, bytes) else as_bytes(value(seen)) for value in values) + b"\n"

    return write


def _template(text: str) -> list[bytes | _Value]:
    found: list[bytes | _Value] = []
    at = 0
    for match in _PARTS.finditer(text):
        found.append(text[at:match.start()].encode("utf-8", "surrogateescape"))
        at = match.end()
        name, letter, escape = match.groups()
        if name is not None:
            found.append(_user_property(name))
        elif letter is not None:
            if letter not in _VALUES:
                raise ValueError(f"%{letter} means nothing; there are %{' %'.join(LETTERS)} and %{{NAME}}, a user "
                                 f"property. Named formats: {', '.join(FORMATS)}")
            found.append(_VALUES[letter])
        elif escape in ESCAPES:
            found.append(ESCAPES[escape])
        else:
            raise ValueError(f"\\{escape} means nothing; there are \\{' '.join(ESCAPES)}")
    if not found:
        raise ValueError(f"{text!r} would print the same for each message; use letters such as %t %p, or "
                         f"{', '.join(FORMATS)}")
    found.append(text[at:].encode("utf-8", "surrogateescape"))
    return [part for part in found if part != b""]


def _user_property(name: str) -> _Value:
    return lambda seen: seen.user.get(name, "")


def _text(value: Any) -> str:
    return "" if value is None else str(value)


_VALUES: dict[str, _Value] = {
    "t": lambda seen: seen.message.topic,
    "p": lambda seen: seen.message.payload,
    "x": lambda seen: seen.message.payload.hex(),
    "b": lambda seen: b64encode(seen.message.payload),
    "l": lambda seen: str(len(seen.message.payload)),
    "q": lambda seen: str(seen.message.qos),
    "r": lambda seen: str(int(seen.message.retain)),
    "d": lambda seen: str(int(seen.message.dup)),
    "c": lambda seen: str(seen.number),
    "I": lambda seen: _as_iso(seen.time),
    "U": lambda seen: f"{seen.time:.3f}",
    "C": lambda seen: _text(seen.message.properties.content_type),
    "R": lambda seen: _text(seen.message.properties.response_topic),
    "D": lambda seen: seen.message.properties.correlation_data or b"",
    "E": lambda seen: _text(seen.message.properties.message_expiry_interval),
    "P": lambda seen: " ".join(f"{name}:{value}" for name, value in seen.message.properties.user),
    "o": lambda seen: seen.user.get("offset", ""),
    "i": lambda seen: seen.user.get("message-id", ""),
    "k": lambda seen: seen.user.get("partition-key", ""),
    "g": lambda seen: seen.user.get("group-id", ""),
    "n": lambda seen: seen.user.get("delivery-count", ""),
    "%": lambda seen: "%",
}
assert _VALUES.keys() == LETTERS.keys()


def _plain(value: bytes | str) -> bytes:
    return value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")


def _escaped(value: bytes | str) -> bytes:
    """For a terminal: only what can be seen, and the ends of lines."""
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
    return "".join(sign if sign.isprintable() or sign in "\n\t" else sign.encode("unicode_escape").decode()
                   for sign in text).encode("utf-8", "backslashreplace")


def _as_iso(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _as_object(message: Any, time: float) -> dict[str, Any]:
    """As `fluxmq queue tail --json` names things. What is not UTF-8 is in Base64, with `encoding` beside it."""
    found: dict[str, Any] = {"topic": message.topic, **_payload("payload", "encoding", message.payload),
                             "qos": message.qos, "retain": message.retain, "dup": message.dup, "time": _as_iso(time)}
    properties = message.properties
    named: dict[str, Any] = {}
    for name in PROPERTIES:
        value = getattr(properties, name)
        if isinstance(value, bytes):
            named |= _payload(name, f"{name}_encoding", value)
        elif value is not None:
            named[name] = value
    if named:
        found["properties"] = named
    if properties.user:
        found["user_properties"] = [list(pair) for pair in properties.user]
    user = properties.user_dict
    if "message-id" in user and "queue" in user:
        for word, name in OF_QUEUES.items():
            if word in user:
                found[name] = int(user[word]) if name in NUMBERS and user[word].isdigit() else user[word]
    return found


def _as_json(found: dict[str, Any], *, on_terminal: bool) -> bytes:
    text = json.dumps(found, ensure_ascii=False)
    if on_terminal and not text.isprintable():  # json leaves those above 0x7E
        text = "".join(sign if sign.isprintable() else json.dumps(sign)[1:-1] for sign in text)
    return text.encode("utf-8", "surrogatepass") + b"\n"


def _payload(name: str, encoding: str, payload: bytes) -> dict[str, str]:
    try:
        return {name: payload.decode()}
    except UnicodeDecodeError:
        return {name: b64encode(payload).decode(), encoding: "base64"}
