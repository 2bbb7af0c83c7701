"""AMQP 0-9-1 as data: frames, reply codes, classes, methods and their fields, basic properties.

The facts of the specification, with what RabbitMQ added and its clients count on: exchange.bind and unbind, basic.nack,
the class confirm, connection.blocked, unblocked and update-secret, basic.cancel from the server too, `auto-delete` and
`internal` of exchanges (reserved in the specification), no-route.

A field is written `name:type`; of a reserved one the name is `reserved`, it is written as zero and not read.

    octet short long longlong     unsigned, 1, 2, 4, 8 bytes
    bit                           neighbours share an octet, the first is the lowest
    shortstr                      text of at most 255 bytes, a length of one byte before it
    longstr                       bytes, a length of four bytes before them
    longtext                      a longstr that is text
    table                         a field table, with its length of four bytes
"""
from __future__ import annotations

from typing import NamedTuple

__all__ = ["CLASSES", "FRAMES", "PROPERTIES", "REPLIES", "AmqpClass", "Field", "Method", "Property", "Reply"]


class Field(NamedTuple):
    name: str           # as the specification writes it
    kind: str

    @property
    def reserved(self) -> bool:
        return self.name == "reserved"


class Method(NamedTuple):
    number: int                     # within its class
    name: str
    sender: str                     # "client", "server" or "both"
    answers: tuple[str, ...]        # what the peer must answer; a method with answers is synchronous
    content: bool                   # content follows
    fields: tuple[Field, ...]


class AmqpClass(NamedTuple):
    number: int
    name: str
    methods: tuple[Method, ...]


class Reply(NamedTuple):
    code: int
    name: str
    closes: str         # "connection", "channel", or "" when it is no error


class Property(NamedTuple):
    name: str
    kind: str
    bit: int            # of the property flags; the highest is 15


def method(number: int, name: str, sender: str, fields: str = "", answer: str = "", content: bool = False) -> Method:
    split = (field.split(":") for field in fields.split())
    return Method(number, name, sender, tuple(answer.split()), content, tuple(Field(*parts) for parts in split))


FRAMES = {"method": 1, "header": 2, "body": 3, "heartbeat": 8, "end": 0xCE}

REPLIES = tuple(Reply(*row) for row in (
    (200, "reply-success", ""),
    (311, "content-too-large", "channel"),
    (312, "no-route", "channel"),
    (313, "no-consumers", "channel"),
    (320, "connection-forced", "connection"),
    (402, "invalid-path", "connection"),
    (403, "access-refused", "channel"),
    (404, "not-found", "channel"),
    (405, "resource-locked", "channel"),
    (406, "precondition-failed", "channel"),
    (501, "frame-error", "connection"),
    (502, "syntax-error", "connection"),
    (503, "command-invalid", "connection"),
    (504, "channel-error", "connection"),
    (505, "unexpected-frame", "connection"),
    (506, "resource-error", "connection"),
    (530, "not-allowed", "connection"),
    (540, "not-implemented", "connection"),
    (541, "internal-error", "connection"),
))

CLOSING = "reply-code:short reply-text:shortstr class-id:short method-id:short"

CONNECTION = AmqpClass(10, "connection", (
    method(10, "start", "server", "version-major:octet version-minor:octet server-properties:table "
           "mechanisms:longtext locales:longtext", "start-ok"),
    method(11, "start-ok", "client", "client-properties:table mechanism:shortstr response:longstr locale:shortstr"),
    method(20, "secure", "server", "challenge:longstr", "secure-ok"),
    method(21, "secure-ok", "client", "response:longstr"),
    method(30, "tune", "server", "channel-max:short frame-max:long heartbeat:short", "tune-ok"),
    method(31, "tune-ok", "client", "channel-max:short frame-max:long heartbeat:short"),
    method(40, "open", "client", "virtual-host:shortstr reserved:shortstr reserved:bit", "open-ok"),
    method(41, "open-ok", "server", "reserved:shortstr"),
    method(50, "close", "both", CLOSING, "close-ok"),
    method(51, "close-ok", "both"),
    method(60, "blocked", "server", "reason:shortstr"),
    method(61, "unblocked", "server"),
    method(70, "update-secret", "client", "new-secret:longstr reason:shortstr", "update-secret-ok"),
    method(71, "update-secret-ok", "server"),
))

CHANNEL = AmqpClass(20, "channel", (
    method(10, "open", "client", "reserved:shortstr", "open-ok"),
    method(11, "open-ok", "server", "reserved:longstr"),
    method(20, "flow", "both", "active:bit", "flow-ok"),
    method(21, "flow-ok", "both", "active:bit"),
    method(40, "close", "both", CLOSING, "close-ok"),
    method(41, "close-ok", "both"),
))

EXCHANGE = AmqpClass(40, "exchange", (
    method(10, "declare", "client", "reserved:short exchange:shortstr type:shortstr passive:bit durable:bit "
           "auto-delete:bit internal:bit no-wait:bit arguments:table", "declare-ok"),
    method(11, "declare-ok", "server"),
    method(20, "delete", "client", "reserved:short exchange:shortstr if-unused:bit no-wait:bit", "delete-ok"),
    method(21, "delete-ok", "server"),
    method(30, "bind", "client", "reserved:short destination:shortstr source:shortstr routing-key:shortstr "
           "no-wait:bit arguments:table", "bind-ok"),
    method(31, "bind-ok", "server"),
    method(40, "unbind", "client", "reserved:short destination:shortstr source:shortstr routing-key:shortstr "
           "no-wait:bit arguments:table", "unbind-ok"),
    method(51, "unbind-ok", "server"),      # 51, not 41
))

QUEUE = AmqpClass(50, "queue", (
    method(10, "declare", "client", "reserved:short queue:shortstr passive:bit durable:bit exclusive:bit "
           "auto-delete:bit no-wait:bit arguments:table", "declare-ok"),
    method(11, "declare-ok", "server", "queue:shortstr message-count:long consumer-count:long"),
    method(20, "bind", "client", "reserved:short queue:shortstr exchange:shortstr routing-key:shortstr no-wait:bit "
           "arguments:table", "bind-ok"),
    method(21, "bind-ok", "server"),
    method(30, "purge", "client", "reserved:short queue:shortstr no-wait:bit", "purge-ok"),
    method(31, "purge-ok", "server", "message-count:long"),
    method(40, "delete", "client", "reserved:short queue:shortstr if-unused:bit if-empty:bit no-wait:bit",
           "delete-ok"),
    method(41, "delete-ok", "server", "message-count:long"),
    method(50, "unbind", "client", "reserved:short queue:shortstr exchange:shortstr routing-key:shortstr "
           "arguments:table", "unbind-ok"),
    method(51, "unbind-ok", "server"),
))

BASIC = AmqpClass(60, "basic", (
    method(10, "qos", "client", "prefetch-size:long prefetch-count:short global:bit", "qos-ok"),
    method(11, "qos-ok", "server"),
    method(20, "consume", "client", "reserved:short queue:shortstr consumer-tag:shortstr no-local:bit no-ack:bit "
           "exclusive:bit no-wait:bit arguments:table", "consume-ok"),
    method(21, "consume-ok", "server", "consumer-tag:shortstr"),
    method(30, "cancel", "both", "consumer-tag:shortstr no-wait:bit", "cancel-ok"),
    method(31, "cancel-ok", "both", "consumer-tag:shortstr"),
    method(40, "publish", "client", "reserved:short exchange:shortstr routing-key:shortstr mandatory:bit immediate:bit",
           content=True),
    method(50, "return", "server", "reply-code:short reply-text:shortstr exchange:shortstr routing-key:shortstr",
           content=True),
    method(60, "deliver", "server", "consumer-tag:shortstr delivery-tag:longlong redelivered:bit exchange:shortstr "
           "routing-key:shortstr", content=True),
    method(70, "get", "client", "reserved:short queue:shortstr no-ack:bit", "get-ok get-empty"),
    method(71, "get-ok", "server", "delivery-tag:longlong redelivered:bit exchange:shortstr routing-key:shortstr "
           "message-count:long", content=True),
    method(72, "get-empty", "server", "reserved:shortstr"),
    method(80, "ack", "both", "delivery-tag:longlong multiple:bit"),
    method(90, "reject", "client", "delivery-tag:longlong requeue:bit"),
    method(100, "recover-async", "client", "requeue:bit"),
    method(110, "recover", "client", "requeue:bit", "recover-ok"),
    method(111, "recover-ok", "server"),
    method(120, "nack", "both", "delivery-tag:longlong multiple:bit requeue:bit"),
))

CONFIRM = AmqpClass(85, "confirm", (
    method(10, "select", "client", "no-wait:bit", "select-ok"),
    method(11, "select-ok", "server"),
))

TX = AmqpClass(90, "tx", (
    method(10, "select", "client", answer="select-ok"),
    method(11, "select-ok", "server"),
    method(20, "commit", "client", answer="commit-ok"),
    method(21, "commit-ok", "server"),
    method(30, "rollback", "client", answer="rollback-ok"),
    method(31, "rollback-ok", "server"),
))

CLASSES = (CONNECTION, CHANNEL, EXCHANGE, QUEUE, BASIC, CONFIRM, TX)

PROPERTIES = tuple(Property(name, kind, 15 - place) for place, (name, kind) in enumerate((
    ("content-type", "shortstr"),
    ("content-encoding", "shortstr"),
    ("headers", "table"),
    ("delivery-mode", "octet"),
    ("priority", "octet"),
    ("correlation-id", "shortstr"),
    ("reply-to", "shortstr"),
    ("expiration", "shortstr"),
    ("message-id", "shortstr"),
    ("timestamp", "longlong"),
    ("type", "shortstr"),
    ("user-id", "shortstr"),
    ("app-id", "shortstr"),
    ("cluster-id", "shortstr"),
)))
