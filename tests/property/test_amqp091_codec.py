"""Properties of the AMQP 0-9-1 codec: it reads what it writes and writes what it read, agrees with a naive twin about
what is right and what is not, and raises ProtocolError and nothing else."""
from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.amqp091_values import (
    METHODS,
    attributes,
    random_method,
    random_properties,
    random_table,
    random_value,
    same,
    to_field,
    to_python,
)
from kit.exact import exact
from oracle import amqp091 as oracle

from fluxmq._core.amqp091.fields import decode_table, encode_table
from fluxmq._core.amqp091.methods import Method, decode_method
from fluxmq._core.amqp091.properties import decode_properties, encode_properties
from fluxmq._core.errors import ProtocolError
from fluxmq._core.testing import amqp091 as amqp091_testing

randoms = st.randoms(use_true_random=False)
methods = st.sampled_from(METHODS)


def kinds_of(row: Any) -> list[str]:
    return [field.kind for field in row.fields]


def spoilt(rng: Random, wire: bytes) -> bytes:
    data = bytearray(wire or b"\0")
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data))
        data[at] = rng.choice((data[at] ^ 1 << rng.randrange(8), 0, 1, 0xFF, ord(rng.choice("tbBsuUIilLTfdDSxAFVz"))))
    return bytes(data)


# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=400, deadline=None)
@given(randoms)
def test_a_table_reads_as_what_it_says_and_is_written_in_the_same_bytes(rng: Random) -> None:
    table = random_table(rng)
    wire = oracle.build_table(table)
    found = decode_table(wire)
    assert same(found, to_field("table", table))
    assert encode_table(found) == wire
    assert amqp091_testing.check(wire) == 0


@settings(max_examples=300, deadline=None)
@given(randoms)
def test_every_value_keeps_its_type(rng: Random) -> None:
    value = random_value(rng)
    wire = b"\x01v" + oracle.build_value(value)
    assert same(decode_table(wire), {"v": to_python(value)})
    assert encode_table(decode_table(wire)) == wire


@settings(max_examples=60, deadline=None)
@given(randoms)
def test_a_table_cut_short_is_refused_where_the_twin_refuses_it(rng: Random) -> None:
    wire = oracle.build_table(random_table(rng))
    for end in range(min(len(wire), 200)):
        agree_on_table(wire[:end])


@settings(max_examples=600, deadline=None)
@given(randoms)
def test_a_spoilt_table_is_refused_where_the_twin_refuses_it(rng: Random) -> None:
    agree_on_table(spoilt(rng, oracle.build_table(random_table(rng))))


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=60))
def test_garbage_is_refused_where_the_twin_refuses_it(data: bytes) -> None:
    agree_on_table(data)


def agree_on_table(wire: bytes) -> None:
    wire = exact(wire)
    try:
        table = oracle.parse_table(wire)
    except oracle.Malformed:
        assert amqp091_testing.check(wire) == 502
        with pytest.raises(ProtocolError) as refused:
            decode_table(wire)
        assert refused.value.reason == 502 and refused.value.text
        amqp091_testing.find(wire, b"x-match")
        return
    assert amqp091_testing.check(wire) == 0
    found = decode_table(wire)
    if oracle.repeats(table):
        # Of a name that stands twice the first counts.
        assert list(found) == list(dict.fromkeys(oracle_name.decode("utf-8", "surrogateescape")
                                                 for oracle_name, _ in table))
        assert encode_table(decode_table(encode_table(found))) == encode_table(found)
    else:
        assert same(found, to_field("table", table))
        assert encode_table(found) == wire


@settings(max_examples=300, deadline=None)
@given(randoms)
def test_a_name_is_found_where_it_stands_first(rng: Random) -> None:
    table = random_table(rng, 2) + random_table(rng, 1)
    wire = oracle.build_table(table)
    for name in {name for name, _ in table} | {b"x-match", b"missing", b""}:
        value = next((value for other, value in table if other == name), None)
        if value is None:
            assert amqp091_testing.find(wire, name) is None
        else:
            raw = oracle.build_value(value)
            assert amqp091_testing.find(wire, name) == (value[0], raw[5:] if value[0] in "SxAF" else raw[1:])


@settings(max_examples=200, deadline=None)
@given(randoms, st.integers(0, 6))
def test_depth_is_counted_as_the_twin_counts_it(rng: Random, depth: int) -> None:
    table = random_table(rng, 5)
    deepest = max((oracle.depth_of(value) for _, value in table), default=0)
    assert amqp091_testing.check(oracle.build_table(table), depth) == (502 if deepest > depth else 0)


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-1 << 63, (1 << 63) - 1) | st.floats() | st.binary(max_size=20)
    | st.text(st.characters(codec="utf-8"), max_size=20),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=20), inner, max_size=4), max_leaves=12)


def plainly(value: Any) -> Any:
    """Without what the wire added: an int is an int again."""
    if isinstance(value, dict):
        return {name: plainly(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [plainly(inner) for inner in value]
    return value if type(value) in (bool, float, str, bytes, type(None)) else int(value)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=20), plain, max_size=5))
def test_plain_python_goes_through_a_table(table: dict[str, Any]) -> None:
    wire = encode_table(table)
    assert same(plainly(decode_table(wire)), table)
    assert oracle.build_table(oracle.parse_table(wire)) == wire


# ── properties ───────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=300, deadline=None)
@given(randoms)
def test_properties_read_in_place_and_as_values(rng: Random) -> None:
    properties = random_properties(rng)
    wire = oracle.build_properties(properties)
    found = decode_properties(wire)
    assert same(found, {name: to_field(oracle.PROPERTIES[name], value) for name, value in properties.items()})
    assert encode_properties(found) == wire
    agree_on_properties(wire)


@settings(max_examples=400, deadline=None)
@given(randoms)
def test_spoilt_properties_are_refused_where_the_twin_refuses_them(rng: Random) -> None:
    agree_on_properties(spoilt(rng, oracle.build_properties(random_properties(rng))))


@settings(max_examples=60, deadline=None)
@given(randoms)
def test_properties_cut_short_are_always_refused(rng: Random) -> None:
    wire = oracle.build_properties(random_properties(rng))
    for end in range(min(len(wire), 200)):
        assert amqp091_testing.read_properties(exact(wire[:end])) == 502
        agree_on_properties(wire[:end])
    assert amqp091_testing.read_properties(wire + b"\0") == 502


def agree_on_properties(wire: bytes) -> None:
    scanned = amqp091_testing.read_properties(wire)
    try:
        properties = oracle.parse_properties(wire)
    except oracle.Malformed:
        assert scanned == 502
        with pytest.raises(ProtocolError) as refused:
            decode_properties(wire)
        assert refused.value.reason == 502
        return
    flags = {"flags": int.from_bytes(wire[:2], "big")}
    if "headers" in properties:
        assert isinstance(scanned, dict)
        assert scanned["headers"] == oracle.build_table(properties["headers"])
        properties["headers"] = scanned["headers"]
    assert scanned == flags | properties
    found = decode_properties(wire)
    assert list(found) == list(properties)
    if not oracle.repeats(oracle.parse_table(properties.get("headers", b""))):
        assert encode_properties(found) == wire


# ── methods ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("cls", "row"), METHODS, ids=lambda value: getattr(value, "__name__", ""))
def test_every_method_reads_back_as_it_was_written(cls: type[Method], row: Any) -> None:
    @settings(max_examples=40, deadline=None)
    @given(randoms)
    def check(rng: Random) -> None:
        method, arguments = random_method(rng, cls, row)
        wire = cls.number.to_bytes(4, "big") + oracle.build_arguments(kinds_of(row), arguments)
        assert method.encode() == wire
        found = decode_method(wire)
        assert type(found) is cls and found.encode() == wire
        assert all(same(getattr(found, name), getattr(method, name)) for name in cls.fields)
        # Python's own equality, which no table with a NaN in it would pass.
        if "nan" not in repr(method).lower():
            assert found == method and repr(found) == repr(method)
        channel = rng.randint(0, 65535)
        assert method.frame(channel) == (b"\x01" + channel.to_bytes(2, "big") + len(wire).to_bytes(4, "big")
                                         + wire + b"\xce")

    check()


@settings(max_examples=150, deadline=None)
@given(randoms, methods)
def test_a_method_cut_short_or_too_long_is_always_refused(rng: Random, which: tuple[type[Method], Any]) -> None:
    wire = random_method(rng, *which)[0].encode()
    for end in range(min(len(wire), 150)):
        with pytest.raises(ProtocolError) as refused:
            decode_method(exact(wire[:end]))
        assert refused.value.reason == (501 if end < 4 else 502)
    with pytest.raises(ProtocolError) as refused:
        decode_method(wire + b"\0")
    assert refused.value.reason == 502


@settings(max_examples=600, deadline=None)
@given(randoms, methods)
def test_a_spoilt_method_is_refused_where_the_twin_refuses_it(rng: Random, which: tuple[type[Method], Any]) -> None:
    agree_on_method(spoilt(rng, random_method(rng, *which)[0].encode()))


@settings(max_examples=400, deadline=None)
@given(methods, st.binary(max_size=60))
def test_garbage_behind_a_number_is_refused_where_the_twin_refuses_it(which: tuple[type[Method], Any],
                                                                      data: bytes) -> None:
    agree_on_method(which[0].number.to_bytes(4, "big") + data)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=30))
def test_garbage_raises_only_protocol_errors(data: bytes) -> None:
    agree_on_method(data)


ROWS = {cls.number: (cls, row) for cls, row in METHODS}


def agree_on_method(wire: bytes) -> None:
    wire = exact(wire)
    number = int.from_bytes(wire[:4], "big")
    try:
        if number not in ROWS or len(wire) < 4:
            raise oracle.Malformed("number")
        cls, row = ROWS[number]
        arguments = oracle.arguments(kinds_of(row), wire[4:])
    except oracle.Malformed:
        with pytest.raises(ProtocolError) as refused:
            decode_method(wire)
        assert refused.value.reason in (501, 502, 503, 540) and refused.value.text
        return
    method = decode_method(wire)
    assert type(method) is cls
    for name, field, value in zip(attributes(row), row.fields, arguments, strict=True):
        if name is not None and not (field.kind == "table" and oracle.repeats(value)):
            assert same(getattr(method, name), to_field(field.kind, value))
    assert decode_method(method.encode()).encode() == method.encode()


# ── numbers and strings ──────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40))
def test_readers_take_all_or_nothing(data: bytes) -> None:
    for kind, width in (("shortstr", 1), ("longstr", 4)):
        length = int.from_bytes(data[:width], "big")
        there = len(data) >= width + length and len(data) >= width
        assert amqp091_testing.take(kind, exact(data)) == (there, data[width:width + length] if there else b"",
                                                    width + length if there else 0)
    assert amqp091_testing.take("u64", exact(data)) == (
        (True, int.from_bytes(data[:8], "big"), 8) if len(data) >= 8 else (False, 0, 0))


@given(st.integers(0, (1 << 64) - 1), st.binary(max_size=255))
def test_writers_write_what_readers_read(number: int, octets: bytes) -> None:
    assert amqp091_testing.put("u64", number) == number.to_bytes(8, "big")
    assert amqp091_testing.put("shortstr", octets) == bytes((len(octets),)) + octets
