"""One envelope for messages of all formats: what the engine reads of them and writes into them."""
from __future__ import annotations

import pytest
from oracle.amqp_mqtt import encode_amqp

from fluxmq._core.amqp091.topics import address_of
from fluxmq._core.envelope.envelope import FORMAT_AMQP091, FORMAT_MQTT, Envelope
from fluxmq.engine.queues.properties import encode_users

HEADERS = [("a", "1"), ("partition-key", "k"), ("a", "2")]
TYPED = b"\x01\x01\x03\x00\x01t\x09\x00\x02\x01\xff"  # payload format, content type, correlation data


def of_mqtt(properties: bytes = TYPED + encode_users([*HEADERS, ("priority", "7")])) -> Envelope:
    return Envelope(FORMAT_MQTT, b"t/1", properties)


def of_amqp() -> Envelope:
    properties = encode_amqp({"content_type": b"t", "priority": 7,
                              "headers": [(b"partition-key", "S", b"k"), (b"n", "I", 3)]})
    return Envelope(FORMAT_AMQP091, address_of(b"amq.topic", b"t.1"), properties)


@pytest.mark.parametrize("envelope", [of_mqtt(), of_amqp()])
def test_all_formats_are_read_alike(envelope: Envelope) -> None:
    assert envelope.topic_name() == b"t/1"
    assert (envelope.priority(), envelope.partition_key()) == (7, b"k")
    assert envelope.named()["content-type"] == "t"
    assert envelope.get(b"partition-key") == b"k"
    assert envelope.get(b"absent") is None and envelope.get(b"absent", b"") == b""


def test_what_each_calls_its_own() -> None:
    assert of_mqtt().named() == {"payload-format-indicator": 1, "content-type": "t", "correlation-data": "01ff"}
    assert of_amqp().named() == {"exchange": "amq.topic", "routing-key": "t.1", "content-type": "t", "priority": 7}
    assert dict(of_amqp().headers()) == {b"partition-key": b"k", b"n": b"3"}
    assert [of_mqtt().moved_to(b"x"), of_amqp().moved_to(b"x")] == [b"x", of_amqp().topic]


def test_the_last_header_of_a_name_counts() -> None:
    assert of_mqtt().get(b"a") == b"2"


@pytest.mark.parametrize("envelope", [of_mqtt(), of_amqp()])
def test_headers_are_added_and_taken_away(envelope: Envelope) -> None:
    written = Envelope(envelope.format, envelope.topic, envelope.with_headers([(b"x-death-reason", b"expired")]))
    assert written.headers() == [*envelope.headers(), (b"x-death-reason", b"expired")]
    assert written.with_headers([], b"x-death-") == envelope.properties


@pytest.mark.parametrize("end", [b"\x03", b"\x03\x00\x09a", b"\x26\x00\x01a\x00", b"\x55\x00\x00"])
def test_what_cannot_be_read_ends_the_list_and_stays(end: bytes) -> None:
    properties = encode_users([("a", "b")]) + end
    assert of_mqtt(properties).headers() == [(b"a", b"b")]
    assert of_mqtt(properties).with_headers([]) == properties
