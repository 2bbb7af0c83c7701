"""Properties and headers through every library: what one writes, another reads. Byte for byte it is in test_wire.py."""
from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from amqp091.clients import CLIENTS
from amqp091.clients.base import Client, Where

Name = Callable[[str], str]

PROPERTIES: dict[str, Any] = {
    "content_type": "application/json", "content_encoding": "utf-8", "delivery_mode": 2, "priority": 7,
    "correlation_id": "c-1", "reply_to": "answers", "expiration": "60000", "message_id": "m-1",
    "timestamp": 1_700_000_000, "type": "t", "user_id": "guest", "app_id": "tests",
}
HEADERS: dict[str, Any] = {
    "text": "grüße", "int": 42, "negative": -7, "large": 2**40,
    "float": 4.0,       # what is behind the point pika drops when it reads
    "true": True, "false": False, "none": None,
    "list": [1, "two", [3]], "table": {"a": {"b": 1}}, "empty": {},
}


def as_text(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list):
        return [as_text(item) for item in value]
    return {as_text(key): as_text(item) for key, item in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize(("writer", "reader"), list(itertools.product(CLIENTS, CLIENTS)),
                         ids=lambda kind: kind.name)
def test_what_one_library_writes_another_reads(libraries: Callable[[type[Client]], Client], where: Where, name: Name,
                                               writer: type[Client], reader: type[Client]) -> None:
    """Producer and consumer need not be of the same make: every property and header arrives as it was."""
    headers = {key: value for key, value in HEADERS.items()
               if not (key == "float" and writer.name == "pika")           # which writes none
               and not (key == "large" and reader.name == "amqplib" and writer.name in ("pyamqp", "kombu"))}   # type L
    sending, receiving = libraries(writer).connect(where), libraries(reader).connect(where)
    try:
        channel = receiving.channel()
        channel.queue_declare(name("q"), auto_delete=True)
        channel.consume(name("q"), no_ack=True)
        sending.channel().publish("", name("q"), b"\x00\xff body", PROPERTIES | {"headers": headers})
        message = channel.receive()
    finally:
        sending.close()
        receiving.close()
    assert message.body == b"\x00\xff body"
    found = as_text(message.properties)
    if reader.name == "aiopika":        # it knows the expiration in seconds, or not at all, from version to version
        found["expiration"] = PROPERTIES["expiration"]
    assert {key: found.get(key) for key in PROPERTIES} == PROPERTIES
    assert as_text(message.headers) == headers
