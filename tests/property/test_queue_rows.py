"""Columns of messages are what a naive reading of the same bytes gives; bytes that are no messages are refused."""
from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.oracle_packets import named
from kit.readable import is_readable
from oracle import amqp091, mqtt, stored

from fluxmq._core.disk.journal import Journal
from fluxmq._core.errors import CorruptError
from fluxmq._core.hub.hub import Hub
from fluxmq._core.queue.log import Log
from fluxmq._core.queue.page import decode_page, durable_end, encode_page
from fluxmq._core.queue.rows import Rows, appends_of, scan_batch

texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Cn"]), max_size=8)
names = st.sampled_from(["partition-key", "a", "b", ""])
properties = st.lists(st.one_of(
    st.tuples(st.just(0x26), st.tuples(names, texts)), st.tuples(st.just(0x01), st.integers(0, 1)),
    st.tuples(st.just(0x03), texts), st.tuples(st.just(0x08), st.just("r/t")),
    st.tuples(st.just(0x09), st.binary(max_size=5)))).map(lambda found: _once(found))
message = st.fixed_dictionaries({
    "gap": st.integers(1, 4), "time": st.integers(0, 50), "topic": st.sampled_from(["a", "a/b", "b", "ü/1"]),
    "payload": st.binary(max_size=40), "told": properties, "expires": st.sampled_from([0, 5000]),
    "priority": st.integers(0, 255), "qos": st.integers(0, 2)})


def _once(found: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
    """Properties other than the user's stand there once."""
    seen: set[int] = set()
    kept = []
    for one in found:
        if one[0] == 0x26 or one[0] not in seen:
            kept.append(one)
            seen.add(one[0])
    return kept


def properties_of(told: list[tuple[int, Any]]) -> bytes:
    """As a queue keeps them: without their length."""
    return b"".join(mqtt.encode_property(name, value) for name, value in named(told))


def encoded(messages: list[dict[str, Any]], base: int = 0) -> bytes:
    raw, offset = b"", base
    for one in messages:
        raw += stored.message(offset, one["time"], one["topic"].encode(), one["payload"],
                              properties=properties_of(one["told"]), expires_at=one["expires"], qos=one["qos"],
                              priority=one["priority"])
        one["offset"] = offset
        offset += one["gap"]
    return raw


def columns(taken: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Rows of what take() gives, read by the rules of Arrow's layout."""
    def bit(valid: bytes, at: int) -> bool:
        return not valid or bool(valid[at >> 3] >> (at & 7) & 1)

    def text(column: Any, at: int) -> Any:
        valid, ends, data = column
        begin, end = (int.from_bytes(ends[4 * n:4 * n + 4], "little") for n in (at, at + 1))
        return data[begin:end] if bit(valid, at) else None

    def number(column: Any, at: int, size: int) -> Any:
        valid, data = column
        return int.from_bytes(data[size * at:size * (at + 1)], "little", signed=True) if bit(valid, at) else None

    def pairs(column: Any, at: int) -> list[tuple[bytes, bytes]]:
        ends, keys, values = column
        begin, end = (int.from_bytes(ends[4 * n:4 * n + 4], "little") for n in (at, at + 1))
        return [(text(keys, n), text(values, n)) for n in range(begin, end)]

    sizes = {"offset": 8, "time": 8, "expiry": 8, "priority": 2, "qos": 1}
    return [{name: pairs(column, at) if name in ("properties", "headers") else
             number(column, at, sizes[name]) if name in sizes else text(column, at)
             for name, column in taken.items()} for at in range(count)]


def expected(one: dict[str, Any]) -> dict[str, Any]:
    users = [pair for identifier, pair in one["told"] if identifier == 0x26]
    told = dict(found for found in one["told"] if found[0] != 0x26)
    headers: dict[str, str] = {}
    for name, value in users:
        headers.setdefault(name, value)
    plain = {0x01: ("payload-format-indicator", str), 0x08: ("response-topic", str),
             0x09: ("correlation-data", lambda raw: raw.hex())}
    key = headers.get("partition-key")
    return {
        "offset": one["offset"], "time": one["time"] * 1000, "topic": one["topic"].encode(), "payload": one["payload"],
        "content_type": told[0x03].encode() if 0x03 in told else None, "key": None if key is None else key.encode(),
        "priority": one["priority"], "qos": one["qos"], "expiry": one["expires"] * 1000 or None,
        "properties": [(plain[identifier][0].encode(), plain[identifier][1](value).encode())
                       for identifier, value in one["told"] if identifier in plain],
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()], "format": b"mqtt"}


@given(st.lists(message, max_size=12), st.integers(0, 30), st.integers(0, 40), st.integers(0, 3),
       st.sampled_from([None, frozenset([b"a", b"b"])]), st.sampled_from([b"", b"a", "ü".encode()]),
       st.integers(0, 30), st.integers(20, 60))
def test_rows_are_what_is_in_the_bytes(messages: list[dict[str, Any]], first: int, more: int, chunk: int,
                                       topics: frozenset[bytes] | None, prefix: bytes, low: int, high: int) -> None:
    raw = encoded(messages)
    rows = Rows(first, first + more, topics=topics, prefix=prefix, time_min=low, time_max=high,
                excluded=[(3, 5), (9, 10)])
    position = 0
    for _ in range(chunk):
        following = position + int.from_bytes(raw[position:position + 4], "little")
        assert rows.add(raw[position:following]) == following - position
        position = following
    assert rows.add(raw, position) == len(raw)
    rows.add(raw)                                               # again: looked at once
    inside = [one for one in messages if first <= one["offset"] < first + more]
    wanted = [one for one in inside if low <= one["time"] <= high and one["topic"].encode().startswith(prefix) and (
        topics is None or one["topic"].encode() in topics) and one["offset"] not in (3, 4, 9)]
    assert (rows.read, rows.taken, rows.count) == (len(inside), len(wanted), len(wanted))
    count = rows.count
    assert columns(rows.take(), count) == [expected(one) for one in wanted]
    assert rows.count == 0


@given(st.lists(message, min_size=1, max_size=5), st.data())
def test_bytes_that_are_no_messages(messages: list[dict[str, Any]], data: st.DataObject) -> None:
    raw = bytearray(encoded(messages))
    cut = data.draw(st.integers(1, len(raw) - 1))
    bounds = {0, *(sum(int.from_bytes(raw[at:at + 4], "little") for at in starts) for starts in _starts(bytes(raw)))}
    rows = Rows(0, 1 << 63)
    if cut in bounds:
        assert rows.add(raw[:cut]) == cut
    else:
        with pytest.raises(CorruptError):
            rows.add(raw[:cut])
    for at in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=4)):
        raw[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CorruptError):
        Rows(0, (1 << 64) - 1).add(raw)


def _starts(raw: bytes) -> list[list[int]]:
    found: list[int] = []
    at = 0
    while at < len(raw):
        found.append(at)
        at += int.from_bytes(raw[at:at + 4], "little")
    return [found[:n] for n in range(1, len(found) + 1)]


def test_messages_of_a_journal_batch() -> None:
    one = [stored.message(n, n, b"t", b"%d" % n) for n in range(4)]
    records = [(20, (7).to_bytes(8, "big") + one[0]), (22, b"settle"), (20, (8).to_bytes(8, "big") + one[1]),
               (5, b"else"), (20, (7).to_bytes(8, "big") + one[2]), (24, b"queue"), (29, b"trim"), (21, b"claim")]
    batch = stored.journal_batch(1, 0, records, 99)[32:]
    into = bytearray()
    assert appends_of(batch, 7, 0, 10, into) == 2 and bytes(into) == one[0] + one[2]
    assert appends_of(batch, 7, 1, 2, bytearray()) == 0
    tally: dict[int, list[int]] = {}
    assert scan_batch(batch, tally) == [(22, b"settle"), (24, b"queue"), (29, b"trim")]
    assert tally == {7: [0, 2, len(one[0]) + len(one[2])], 8: [1, 1, len(one[1])]}
    with pytest.raises(CorruptError):
        scan_batch(batch[:-1], tally)
    with pytest.raises(CorruptError):
        appends_of(batch[:-1], 7, 0, 10, into)


@given(st.lists(st.tuples(texts, texts), max_size=3))
def test_headers_of_amqp(pairs: list[tuple[str, str]]) -> None:
    headers = amqp091.build_properties({"headers": [(name.encode(), ("S", value.encode())) for name, value in pairs]})
    rows = Rows(0, 10, topics=[b"key"])
    rows.add(stored.message(0, 1, b"\x01ekey", b"p", properties=headers, qos=1, format=stored.AMQP091))
    rows.add(stored.message(1, 1, b"\x01eother", b"p", properties=headers, qos=1, format=stored.AMQP091))
    count = rows.count
    (found,) = columns(rows.take(), count)
    kept: dict[str, str] = {}
    for name, value in pairs:
        kept.setdefault(name, value)
    assert found["headers"] == [(name.encode(), value.encode()) for name, value in kept.items()]
    assert (found["topic"], found["format"]) == (b"key", b"amqp091")
    assert found["properties"] == [(b"exchange", b"e"), (b"routing-key", b"key")]


@given(st.lists(st.integers(0, 3000), max_size=40), st.integers(0, 50), st.integers(0, 50), st.integers(1, 9000))
def test_a_page_is_the_messages_of_a_log(sizes: list[int], start: int, stop: int, bytes_max: int) -> None:
    hub = Hub(None)
    hub.set_clock(1000, 1000)
    log = Log(hub.ledger, 5)
    for number, size in enumerate(sizes):
        log.append_message(b"t/%d" % number, bytes(size))
    found, here = [], start
    while True:
        page, following, loading = encode_page(log, None, here, stop, bytes_max)
        number, first, end, told, messages = stored.page(page)
        assert (number, first, end, told, loading) == (5, 0, len(sizes), following, False)
        number, first, end, told, view = decode_page(page)
        assert (number, first, end, told, bytes(view)) == (5, 0, len(sizes), following, page[40:])
        found += [(one.offset, one.topic, len(one.payload)) for one in messages]
        if following <= here:
            break
        here = following
    assert found == [(n, b"t/%d" % n, sizes[n]) for n in range(start, min(stop, len(sizes)))]
    with pytest.raises(CorruptError, match="version 2"):
        decode_page(page[:4] + b"\2" + page[5:])
    with pytest.raises(CorruptError, match="FMQM"):
        decode_page(page[:39])


def test_a_page_holds_what_is_durable(tmp_path: Path) -> None:
    """What waits for the disk is not shown: after a crash another message might have its offset."""
    journal = Journal(tmp_path, identity=1)
    hub = Hub(journal)
    hub.set_clock(1000, 1000)
    log = Log(hub.ledger, 5)

    def offsets() -> list[int]:
        _, _, end, following, messages = stored.page(encode_page(log, None, 0, 100, 1 << 20)[0])
        assert end == following == durable_end(log)
        return [one.offset for one in messages]

    def wait(batch: int) -> None:
        while journal.durable < batch:
            is_readable(journal.event_fd, 10)
            journal.poll()

    log.append_message(b"t", b"0")
    log.append_message(b"t", b"1")
    assert offsets() == []
    journal.submit()
    log.append_message(b"t", b"2")
    assert offsets() == [], "one batch is being written, one gathers"
    writer = threading.Thread(target=journal.run)
    writer.start()
    try:
        wait(1)
        assert offsets()[:2] == [0, 1]
        journal.submit()
        wait(2)
        assert offsets() == [0, 1, 2]
    finally:
        journal.close()
        writer.join()


def test_a_batch_is_bounded_whatever_its_messages_consist_of() -> None:
    """Offsets of a column are i32: properties count like payloads."""
    told = properties_of([(0x26, ("a", "x" * 60_000))] * 20)
    raw = b"".join(stored.message(offset, 0, b"a", b"", properties=told) for offset in range(20))
    rows, at, batches = Rows(0, 1 << 32), 0, []
    while at < len(raw):
        at = rows.add(raw, at)
        batches.append(rows.count)
        assert rows.full == (at < len(raw))
        rows.take()
    assert batches == [7, 7, 6]


def test_texts_fill_a_batch_as_payloads_do() -> None:
    """Else 32768 messages of no payload and with 64 KiB of properties each are more than offsets of 32 bits reach."""
    told = properties_of([(0x26, ("n", "x" * 60_000))])
    raw = b"".join(stored.message(n, 1, b"t", b"", properties=told, expires_at=(1 << 62) if n else 0)
                   for n in range(300))
    rows = Rows(0, 300)
    at = rows.add(raw)
    assert rows.full and 139 <= rows.count <= 141 and at < len(raw)
    first = rows.count
    taken = columns(rows.take(), first)
    assert taken[0]["expiry"] is None
    assert taken[1]["expiry"] == 253402300799999 * 1000, "what never ends has the last time that Python knows"
    rows.add(raw, at)
    assert rows.read == first + rows.count
