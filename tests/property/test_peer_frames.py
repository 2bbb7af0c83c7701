"""Frames between nodes: what the compiled codec writes a naive one reads, and the other way round; and of bytes that
are no frame both say so, wherever they are cut or spoilt."""
from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given
from kit.amqp091_values import random_properties
from kit.exact import exact
from oracle import amqp091, peer
from oracle.mqtt import encode_properties

from fluxmq._core.errors import ProtocolError
from fluxmq._core.testing.codec import scan
from fluxmq._core.testing.frames_probe import decode, encode

NUMBERS = st.integers(0, (1 << 32) - 1)
LONG = st.one_of(st.integers(0, 3), st.integers(0, (1 << 64) - 1))
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8).map(str.encode)
NAME = TEXT.filter(bool)
TOPIC = NAME.map(lambda name: name.replace(b"+", b"p").replace(b"#", b"h"))
FILTER = st.one_of(TOPIC, st.sampled_from([b"#", b"+", b"a/+/b", b"+/#", b"/", b"a/#"]))
WIRE = st.dictionaries(st.sampled_from(["content_type", "response_topic"]), TOPIC.map(bytes.decode), max_size=2).map(
    lambda properties: encode_properties(properties)[1:])
AMQP_WIRE = st.randoms(use_true_random=False).map(random_properties).map(amqp091.build_properties)
ADDRESS = st.builds(lambda exchange, key: bytes((len(exchange),)) + exchange + key,
                    *[st.one_of(st.binary(max_size=6), st.just(b"n" * 255))] * 2)
PAYLOAD = st.one_of(st.binary(max_size=20), st.builds(lambda n: bytes(n), st.sampled_from([100, 127, 128, 20_000])))
FLAGS = st.builds(lambda qos, retain: qos | retain << 2, st.integers(0, 2), st.integers(0, 1))
LEFT = st.one_of(st.just(-1), st.integers(0, (1 << 52) - 1))
MESSAGE = st.tuples(st.just(2), NUMBERS, FLAGS, LEFT, TOPIC, WIRE, PAYLOAD)
ORIGIN = st.tuples(LONG.filter(bool), LONG, st.integers(0, 65535))
CHANGE = st.tuples(st.integers(1, (1 << 62) - 1), LONG)     # version of a retained message
SHORT = st.integers(0, 65535)
# A position, and its channel above.
POSITION = st.one_of(LONG, st.builds(lambda at, channel: at | channel << 48, st.integers(0, 3), SHORT))
SIGNED = st.integers(-(1 << 63), (1 << 63) - 1)
# (format, topic, properties) of a message in a queue. One in MQTT's format may have no topic.
CONTENT = st.one_of(st.tuples(st.just(0), st.one_of(TOPIC, st.just(b"")), WIRE),
                    st.tuples(st.just(1), ADDRESS, AMQP_WIRE))
PUBLISH = st.builds(lambda queue, qos, quiet, forced, content, position, left_ms, payload: (
    9, queue, qos | quiet << 2, content[0] | forced << 1, position, left_ms, *content[1:], payload),
    LONG, st.integers(0, 2), st.integers(0, 1), st.integers(0, 1), CONTENT, POSITION, LEFT, PAYLOAD)
REPEATED = st.builds(lambda message, repeated, origin: (
    *message[:3], message[3] | repeated << 2, *message[4:], origin), PUBLISH, st.integers(0, 1), ORIGIN)
SETTLE = st.builds(lambda member, verb, counts, deliveries, log, first, count, ms, reason: (
    10, member, verb | counts << 4, deliveries, log, min(first, (1 << 64) - 1 - count), count, ms, reason),
    NUMBERS, st.integers(0, 3), st.integers(0, 1), SHORT, NUMBERS, LONG,
    st.one_of(st.integers(1, 3), st.integers(1, 1 << 20)), LEFT, TEXT)
DELIVERY = st.builds(lambda member, deliveries, log, left_ms, offset, content, qos, payload, more: (
    16, member, deliveries, log, left_ms,
    peer.log_message(offset, content[0], qos, *content[1:], payload, *more), offset, *content),
    NUMBERS, SHORT, NUMBERS, st.integers(0, (1 << 52) - 1), LONG, CONTENT, st.integers(0, 2), PAYLOAD,
    st.tuples(SIGNED, SIGNED, st.integers(0, 255)))
OF_QUEUES = st.one_of(
    PUBLISH, REPEATED, SETTLE, DELIVERY,
    st.tuples(st.just(11), NUMBERS, NUMBERS), st.tuples(st.sampled_from([12, 14]), NUMBERS, LONG, SHORT, PAYLOAD),
    st.tuples(st.just(13), NUMBERS, st.integers(0, 1)), st.tuples(st.just(15), POSITION, st.integers(0, 1)),
    st.tuples(st.just(19), POSITION), st.tuples(st.just(17), NUMBERS, NUMBERS, LONG),
    st.tuples(st.just(18), NUMBERS, PAYLOAD),
    st.tuples(st.just(20), POSITION, st.integers(1, 65535), TEXT, st.integers(0, 1)))
RECORDS = st.lists(st.one_of(
    OF_QUEUES, OF_QUEUES, MESSAGE, MESSAGE, st.builds(lambda message, origin: (*message, origin), MESSAGE, ORIGIN),
    st.tuples(st.just(8), LONG.filter(bool), st.integers(0, 65535), LONG),
    st.builds(lambda message, origin, version: (*message[:2], message[2] | 4, *message[3:], origin, version), MESSAGE,
              st.one_of(st.none(), ORIGIN), CHANGE),
    st.builds(lambda message, state, origin, version: (
        21, message[1], message[2] | 4 | state << 7, *message[3:], origin, version, len(message[6])), MESSAGE,
              st.integers(0, 1), st.one_of(st.none(), ORIGIN), CHANGE),
    st.builds(lambda message, origin, version, size: (
        21, message[1], message[2] | 4 | 64, *message[3:6], b"", origin, version, size), MESSAGE,
              st.one_of(st.none(), ORIGIN), CHANGE, NUMBERS),
    st.tuples(st.just(1), NUMBERS, NAME), st.tuples(st.just(5)),
    st.builds(lambda message, group, filter_: (3, *message[1:], group, filter_), MESSAGE, NAME, FILTER),
    st.builds(lambda message, group, filter_, origin: (3, *message[1:], group, filter_, origin), MESSAGE, NAME, FILTER,
              ORIGIN),
    st.builds(lambda message, life: (7, *message[1:], life), MESSAGE, LONG.filter(bool)),
    st.builds(lambda message, life, origin: (7, *message[1:], life, origin), MESSAGE, LONG.filter(bool), ORIGIN),
    st.tuples(st.just(4), NUMBERS, NUMBERS, TEXT, FILTER, st.integers(0, 1)),
    st.tuples(st.just(6), PAYLOAD)), max_size=6)
HEADERS = st.fixed_dictionaries({
    "version": st.just(1), "flags": st.integers(0, 3), "age_s": st.integers(0, 65535), "records": NUMBERS,
    "epoch": LONG, "to_epoch": LONG, "sequence": st.integers(1, (1 << 64) - 1), "acknowledged": LONG})


def expected(data: bytes) -> tuple[dict[str, int], list[peer.Record]] | None:
    """What must be read; None: it must be refused."""
    try:
        header, records = peer.read(data)
    except peer.Malformed:
        return None
    for properties in filter(None, peer.mqtt_properties(records)):
        found = scan(properties)
        if isinstance(found, int) or found["forward"] != properties:
            return None
    return header, records


def found(data: bytes) -> tuple[dict[str, int], list[peer.Record]] | None:
    try:
        return decode(exact(data))
    except ProtocolError as error:
        assert 0x80 <= error.reason <= 0xFF and error.text
        return None


@given(HEADERS, RECORDS)
def test_both_write_and_read_the_same(header: dict[str, int], records: list[peer.Record]) -> None:
    data = peer.build(header, records)
    assert encode(header, records) == data
    assert found(data) == expected(data) == (header, records)


@given(HEADERS, RECORDS)
def test_a_frame_that_is_cut_is_refused(header: dict[str, int], records: list[peer.Record]) -> None:
    """At every byte that is not the end of a record; there the number of records is wrong, which PeerInbox compares."""
    data = peer.build(header, [record for record in records if len(peer.build_record(record)) < 400])
    ends = peer.record_ends(data)
    for at in range(len(data)):
        assert found(data[:at]) == expected(data[:at])
        assert (found(data[:at]) is not None) == (at in ends)


@given(HEADERS, RECORDS, st.data())
def test_what_is_spoilt_is_read_as_the_naive_reading_does(header: dict[str, int], records: list[peer.Record],
                                                           chance: st.DataObject) -> None:
    data = bytearray(peer.build(header, records))
    for _ in range(chance.draw(st.integers(1, 3))):
        # Nearer to the front there is more to spoil.
        at = chance.draw(st.integers(0, min(len(data) - 1, chance.draw(st.sampled_from([12, 60, 400])))))
        data[at] = chance.draw(st.one_of(st.integers(0, 255), st.just(data[at] ^ 1), st.just(data[at] + 1 & 0xFF)))
    assert found(bytes(data)) == expected(bytes(data))


@given(st.binary(max_size=80))
def test_garbage(data: bytes) -> None:
    assert found(data) == expected(data)


@given(HEADERS, st.binary(max_size=60))
def test_garbage_behind_a_header(header: dict[str, int], data: bytes) -> None:
    frame = peer.build(header, [], data)
    assert found(frame) == expected(frame)


def test_equal_topics_and_properties_are_not_checked_twice_but_others_are() -> None:
    """The second check is left out only for the same bytes."""
    good, bad = (2, 1, 0, -1, b"t", b"\x01\x01", b""), (2, 1, 0, -1, b"t", b"\x01\x02", b"")
    header = dict.fromkeys(peer.HEADER, 1)
    assert len(decode(encode(header, [good, good, good]))[1]) == 3
    for wrong in (bad, (*good[:4], b"#", *good[5:]), (*good[:4], b"", *good[5:])):
        with pytest.raises(ProtocolError):
            decode(encode(header, [good, good, wrong]))


SETTLED = (10, 1, 2, 1, 0, 5, 1, 0, b"")


def delivery(format_: int, topic: bytes, properties: bytes, qos: int = 1) -> peer.Record:
    message = peer.log_message(5, format_, qos, topic, properties, b"payload")
    return 16, 1, 1, 0, 0, message, 5, format_, topic, properties


@pytest.mark.parametrize(("record", "valid"), [
    (SETTLED, True), ((*SETTLED[:6], 0, 0, b""), False), ((*SETTLED[:6], 1 << 20, 0, b""), True),
    ((*SETTLED[:6], (1 << 20) + 1, 0, b""), False), ((*SETTLED[:5], (1 << 64) - 2, 1, 0, b""), True),
    ((*SETTLED[:5], (1 << 64) - 2, 2, 0, b""), False),
    ((*SETTLED[:7], -1, b""), True), ((*SETTLED[:7], -2, b""), False),
    ((*SETTLED[:7], (1 << 52) - 1, b""), True), ((*SETTLED[:7], 1 << 52, b""), False),
    ((*SETTLED[:8], b"\xff"), False), ((*SETTLED[:8], b"\0"), False),
    *(((10, 1, flags, *SETTLED[3:]), flags & 15 <= 3 and flags < 32) for flags in (0, 3, 4, 15, 16, 19, 20, 32, 128)),
    ((13, 1, 1), True), ((15, 1 << 48, 1), True), ((15, 1, 2), False), ((14, 1, 1, 65535, b""), True),
    *(((20, 0, 1, b"", flags), flags < 2) for flags in (0, 1, 2)), ((20, 0, 0, b"", 0), False),
    ((20, 0, 1, b"\xff", 0), False),
    (delivery(0, b"t", b""), True), (delivery(0, b"t", b"", 2), True), (delivery(0, b"t", b"", 3), False),
    (delivery(0, b"", b""), True), (delivery(0, b"+", b""), False), (delivery(2, b"t", b""), False),
    (delivery(0, b"", b"\x01\x01"), True), (delivery(0, b"", b"\x01"), False), (delivery(0, b"", b"\x23\0\1"), False),
    ((9, 1, 1, 4, 0, -1, b"t", b"", b"", (1, 1, 1)), True), ((9, 1, 1, 4, 0, -1, b"t", b"", b""), False),
    ((9, 1, 1, 0, 0, -1, b"", b"\x01", b""), False), ((9, 1, 1, 0, 0, -1, b"", b"", b""), True),
    (delivery(1, b"", b"\0\0"), False), (delivery(1, b"\0", b""), False), (delivery(1, b"\0", b"\0\0"), True),
    ((7, 1, 1, -1, b"t", b"", b"", 1), True), ((7, 1, 1, -1, b"t", b"", b"", 0), False),
    (delivery(1, b"\1", b"\0\0"), False), (delivery(1, b"\1e" + b"k" * 255, b"\0\0"), True),
    (delivery(1, b"\1e" + b"k" * 256, b"\0\0"), False), (delivery(1, b"\0", b"\0\1"), False),
    ((9, 1, 1, 1, 0, -1, b"\0k", b"\x10\0\1", b""), True), ((9, 1, 1, 1, 0, -1, b"\0k", b"\x10\0", b""), False),
], ids=str)
def test_the_edges_of_what_a_record_may_say(record: peer.Record, valid: bool) -> None:
    data = peer.build(dict.fromkeys(peer.HEADER, 1), [record])
    assert found(data) == expected(data)
    assert (found(data) is not None) == valid


@pytest.mark.parametrize("change", [-8, 8])
def test_a_delivery_is_exactly_as_long_as_its_message(change: int) -> None:
    record = delivery(0, b"t", b"")
    size = len(record[5]) + change
    message = size.to_bytes(4, "little") + record[5][4:].ljust(size, b"\0")[:size - 4]
    data = peer.build(dict.fromkeys(peer.HEADER, 1), [(*record[:5], message)])
    assert found(data) is None is expected(data)


@pytest.mark.parametrize("second", [(9, 1, 1, 0, 0, -1, b"#", b"", b""), (9, 1, 1, 0, 0, -1, b"t", b"\x01\x02", b""),
                                    (9, 1, 1, 0, 0, -1, b"", b"\x01\x02", b""),
                                    delivery(0, b"t", b"\x01\x02")], ids=str)
def test_messages_in_queues_are_checked_once_for_the_same_bytes_alone(second: peer.Record) -> None:
    first = (9, 1, 1, 0, 0, -1, b"t", b"\x01\x01", b"")
    data = [peer.build(dict.fromkeys(peer.HEADER, 1), [first, first, *more]) for more in ((), (second,))]
    assert [found(one) is not None for one in data] == [True, False]
