"""Mutation fuzzer of the AMQP 0-9-1 codec. Deterministic: a seed and an iteration number are an input.

    python tests/fuzz/fuzz_amqp091.py [--seconds S | --iterations N] [--seed K] [--out DIR]

Each iteration takes a valid method, field table or property list and spoils it in a few places. Allowed outcomes: what
the naive twin reads too, or a ProtocolError where that refuses as well; the reading in place agrees with the one that
makes values. What was read is written and reads as the same. Whatever else happens is written to regressions/amqp091/
as a file, which the tests replay from then on.
"""
from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from random import Random

if __name__ == "__main__":    # run as a script: the tree's root and tests/ are not on the path yet
    sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]

from fuzz.fuzzing import Fuzzer, mutate
from kit.amqp091_values import METHODS, random_method, random_properties, random_table, same, to_field
from kit.exact import exact
from oracle import amqp091 as oracle

from fluxmq._core.amqp091.fields import decode_table, encode_table
from fluxmq._core.amqp091.methods import decode_method
from fluxmq._core.amqp091.properties import decode_properties, encode_properties
from fluxmq._core.errors import ProtocolError
from fluxmq._core.testing import amqp091 as amqp091_testing

KINDS = ("method", "table", "properties")
# Bytes that mean something: lengths at the edges, classes and methods, the letters of types, the borders of UTF-8.
SPICE = bytes((0, 1, 2, 3, 4, 5, 8, 10, 11, 20, 30, 31, 40, 50, 51, 60, 70, 80, 85, 90, 0x7F, 0x80, 0xBF, 0xC2, 0xCE,
               0xED, 0xF0, 0xFC, 0xFF)) + b"tbBsuUIilLTfdDSxAFVz"
ROWS = {cls.number: (cls, row) for cls, row in METHODS}


def make_inputs(seed: int, iteration: int) -> list[tuple[int, bytes]]:
    """Which of KINDS, and the bytes."""
    rng = Random(seed << 32 | iteration)
    kind = rng.choice((0, 0, 1, 2))
    if kind == 0:
        data = bytearray(random_method(rng, *rng.choice(METHODS))[0].encode())
    elif kind == 1:
        data = bytearray(oracle.build_table(random_table(rng, rng.choice((1, 3, 6)))))
    else:
        data = bytearray(oracle.build_properties(random_properties(rng)))
    for _ in range(rng.choice((0, 1, 1, 2, 3, 6))):
        mutate(rng, data, SPICE)
    return [(kind, bytes(data))]


def check(kind: int, data: bytes, seen: Counter[str]) -> None:
    """Decode it and ask everything that may be asked of the result. Raises what must not happen."""
    (check_method, check_table, check_properties)[kind](exact(data), seen)


def check_method(data: bytes, seen: Counter[str]) -> None:
    number = int.from_bytes(data[:4], "big")
    try:
        method = decode_method(data)
    except ProtocolError as error:
        assert error.reason in (501, 502, 503, 540) and error.text, error
        assert (error.reason == 501) == (len(data) < 4)
        assert (error.reason == 502) == (len(data) >= 4 and number in ROWS)
        if error.reason == 502:
            refuses(lambda: oracle.arguments([field.kind for field in ROWS[number][1].fields], data[4:]))
        seen[f"refused {error.reason}"] += 1
        return
    cls, row = ROWS[number]
    assert type(method) is cls
    oracle.arguments([field.kind for field in row.fields], data[4:])
    again = decode_method(method.encode())
    assert all(same(getattr(again, name), getattr(method, name)) for name in cls.fields), method
    repr(method)
    seen[cls.__name__] += 1


def check_table(data: bytes, seen: Counter[str]) -> None:
    amqp091_testing.find(data, b"x-match")
    reply = amqp091_testing.check(data)
    try:
        found = decode_table(data)
    except ProtocolError as error:
        assert error.reason == reply == 502 and error.text, error
        refuses(lambda: oracle.parse_table(data))
        seen["refused table"] += 1
        return
    assert reply == 0
    table = oracle.parse_table(data)
    for name, value in reversed(dict(reversed(table)).items()):
        raw = oracle.build_value(value)
        assert amqp091_testing.find(data, name) == (value[0], raw[5:] if value[0] in "SxAF" else raw[1:])
    if not oracle.repeats(table):
        assert same(found, to_field("table", table)), found
        assert encode_table(found) == data
    assert same(decode_table(encode_table(found)), found)
    seen["table"] += 1


def check_properties(data: bytes, seen: Counter[str]) -> None:
    scanned = amqp091_testing.read_properties(data)
    try:
        found = decode_properties(data)
    except ProtocolError as error:
        assert error.reason == scanned == 502 and error.text, error
        refuses(lambda: oracle.parse_properties(data))
        seen["refused properties"] += 1
        return
    properties = oracle.parse_properties(data)
    assert isinstance(scanned, dict) and list(found) == list(properties)
    headers = properties.get("headers", [])
    if headers or "headers" in properties:
        properties["headers"] = oracle.build_table(headers)
    assert scanned == properties | {"flags": int.from_bytes(data[:2], "big")}
    if not oracle.repeats(headers):
        assert encode_properties(found) == data
    seen["properties"] += 1


def refuses(parse: object) -> None:
    try:
        parse()  # type: ignore[operator]
    except oracle.Malformed:
        return
    raise AssertionError("refused, and the naive twin reads it")


FUZZER = Fuzzer("amqp091", "Mutation fuzzer of the AMQP 0-9-1 codec.", make_inputs, check)

if __name__ == "__main__":
    FUZZER.main()
