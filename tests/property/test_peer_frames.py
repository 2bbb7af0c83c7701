"""Frames between nodes: what the compiled codec writes a naive one reads, and the other way round; and of bytes that
are no frame both say so, wherever they are cut or spoilt."""
from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given
from kit.exact import exact
from oracle import peer
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
PAYLOAD = st.one_of(st.binary(max_size=20), st.builds(lambda n: bytes(n), st.sampled_from([100, 127, 128, 20_000])))
FLAGS = st.builds(lambda qos, retain: qos | retain << 2, st.integers(0, 2), st.integers(0, 1))
LEFT = st.one_of(st.just(-1), st.integers(0, (1 << 52) - 1))
MESSAGE = st.tuples(st.just(2), NUMBERS, FLAGS, LEFT, TOPIC, WIRE, PAYLOAD)
ORIGIN = st.tuples(LONG.filter(bool), LONG, st.integers(0, 65535))
RECORDS = st.lists(st.one_of(
    MESSAGE, MESSAGE, st.builds(lambda message, origin: (*message, origin), MESSAGE, ORIGIN),
    st.tuples(st.just(8), LONG.filter(bool), st.integers(0, 65535), LONG),
    st.tuples(st.just(1), NUMBERS, NAME), st.tuples(st.just(5)),
    st.builds(lambda message, group, filter_: (3, *message[1:], group, filter_), MESSAGE, NAME, FILTER),
    st.builds(lambda message, group, filter_, origin: (3, *message[1:], group, filter_, origin), MESSAGE, NAME, FILTER,
              ORIGIN),
    st.builds(lambda message, life: (7, *message[1:], life), MESSAGE, LONG),
    st.builds(lambda message, life, origin: (7, *message[1:], life, origin), MESSAGE, LONG, ORIGIN),
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
    for record in records:
        if record[0] in (2, 3, 7) and record[5]:
            found = scan(record[5])
            if isinstance(found, int) or found["forward"] != record[5]:
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
