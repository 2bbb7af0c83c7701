"""Valid AMQP 0-9-1 values from a source of randomness: a seeded random.Random, or the one that hypothesis draws.

They are made in the oracle's terms (tests/oracle/amqp091.py); `to_python` says which Python value the codec must answer
for each, `same` compares two of those by type and bits, and not as Python does, for which 1 == 1.0 == True.
"""
from __future__ import annotations

import importlib.util
import struct
import sys
from decimal import Decimal
from random import Random
from types import ModuleType
from typing import Any

from oracle.amqp091 import PROPERTIES, Malformed, Table, Value, arguments

from fluxmq._core.amqp091 import methods as amqp091_methods
from fluxmq._core.amqp091.fields import Float32, Integer, Timestamp
from kit.tree import ROOT

__all__ = ["METHODS", "attributes", "load", "method_of", "random_arguments", "random_method", "random_properties",
           "random_table", "random_value", "same", "to_python"]

FOLDER = ROOT / "proto" / "amqp091"
BITS = {"t": 8, "b": 8, "B": 8, "s": 16, "u": 16, "U": 16, "I": 32, "i": 32, "f": 32, "l": 64, "L": 64, "T": 64,
        "d": 64}
SIGNED = "bsUIlL"
LETTERS = "tbBsuUIilLTfdDSxAFV"
# Numbers that are none, quiet and signalling, the infinities, zeros with a sign, a subnormal.
ODD_FLOATS = {"f": (0x7FC00000, 0x7F800001, 0xFFC12345, 0x7F800000, 0xFF800000, 0x80000000, 1),
              "d": (0x7FF8 << 48, 0x7FF0 << 48 | 1, 0xFFF8 << 48 | 5, 0x7FF0 << 48, 0xFFF0 << 48, 1 << 63, 1)}
WORDS = (b"", b"a", b"x-death", b"x-match", b"count", "grün".encode(), b"\xff\xfe", b"\xed\xa0\x80", b"\x00",
         b"n" * 255)


def load(name: str) -> ModuleType:
    """A module of proto/amqp091, which is no package."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    spec = importlib.util.spec_from_file_location(f"proto_amqp091_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


TABLE = load("table")
# Every method: the compiled class, the row of the table, its number.
METHODS: list[tuple[type[amqp091_methods.Method], Any]] = [
    (amqp091_methods.METHODS[one.number << 16 | method.number], method)
    for one in TABLE.CLASSES for method in one.methods]


def attributes(row: Any) -> list[str | None]:
    """Its fields as attributes of the compiled class, with None where one is reserved."""
    return [None if field.reserved else {"global": "global_"}.get(field.name, field.name.replace("-", "_"))
            for field in row.fields]


def word(rng: Random) -> bytes:
    return rng.choice(WORDS) if rng.random() < 0.7 else rng.randbytes(rng.randint(0, 12))


def number(rng: Random, bits: int, signed: bool = False) -> int:
    value = rng.choice((0, 1, (1 << bits) - 1, 1 << (bits - 1), (1 << (bits - 1)) - 1, rng.getrandbits(bits)))
    return value - (1 << bits) if signed and value >> (bits - 1) else value


def random_value(rng: Random, depth: int = 3) -> Value:
    letter = rng.choice(LETTERS if depth else LETTERS.replace("A", "").replace("F", ""))
    if letter in "fd":
        plain = struct.unpack(">I" if letter == "f" else ">Q", struct.pack(f">{letter}", rng.uniform(-1e9, 1e9)))[0]
        return letter, rng.choice((plain, rng.choice(ODD_FLOATS[letter]), rng.getrandbits(BITS[letter])))
    if letter in BITS:
        return letter, rng.choice((0, 1)) if letter == "t" and rng.random() < 0.8 else number(
            rng, BITS[letter], letter in SIGNED)
    if letter == "D":
        return letter, (number(rng, 8), number(rng, 32, True))
    if letter == "V":
        return letter, None
    if letter == "F":
        return letter, random_table(rng, depth - 1)
    if letter == "A":
        return letter, [random_value(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    return letter, word(rng)


def random_table(rng: Random, depth: int = 3) -> Table:
    """Names once each: of one that stands twice the first counts, which has a test of its own."""
    names = list(dict.fromkeys(word(rng) for _ in range(rng.choice((0, 1, 1, 2, 4)))))
    return [(name, random_value(rng, depth)) for name in names]


def random_field(rng: Random, kind: str) -> Any:
    if kind == "table":
        return random_table(rng)
    if kind == "bit":
        return rng.random() < 0.5
    if kind in ("shortstr", "longstr", "longtext"):
        return word(rng)
    return number(rng, {"octet": 8, "short": 16, "long": 32, "longlong": 64}[kind])


def random_properties(rng: Random) -> dict[str, Any]:
    return {name: random_field(rng, kind) for name, kind in PROPERTIES.items() if rng.random() < 0.4}


def random_arguments(rng: Random, row: Any) -> list[Any]:
    """One for each field of the wire; zero and empty where it is reserved."""
    zero = {"bit": False, "shortstr": b"", "longstr": b""}
    return [zero.get(field.kind, 0) if field.reserved else random_field(rng, field.kind) for field in row.fields]


def text(octets: bytes) -> str:
    return octets.decode("utf-8", "surrogateescape")


def to_field(kind: str, value: Any) -> Any:
    """What the codec answers for a field of a method or a property."""
    if kind in ("shortstr", "longtext"):
        return text(value)
    return {text(name): to_python(held) for name, held in value} if kind == "table" else value


def random_method(rng: Random, cls: type[amqp091_methods.Method], row: Any) -> tuple[amqp091_methods.Method, list[Any]]:
    """A method and its arguments on the wire."""
    wire = random_arguments(rng, row)
    given = {name: to_field(field.kind, value) for name, field, value in zip(
        attributes(row), row.fields, wire, strict=True) if name is not None}
    return cls(**given), wire


def method_of(payload: bytes) -> amqp091_methods.Method:
    """The product's value for a method, read by the oracle: for tests that look at what a connection writes. Raises
    Malformed."""
    number = int.from_bytes(payload[:4], "big")
    cls, row = next(((cls, row) for cls, row in METHODS if cls.number == number), (None, None))
    if cls is None or row is None:
        raise Malformed(f"method {number:#x}")
    wire = arguments([field.kind for field in row.fields], payload[4:])
    return cls(**{name: to_field(field.kind, value)
                  for name, field, value in zip(attributes(row), row.fields, wire, strict=True) if name is not None})


def widened(bits: int) -> float:
    """A float of 32 bits. What is no number by hand: struct makes a signalling one quiet."""
    if bits & 0x7F800000 == 0x7F800000 and bits & 0x7FFFFF:
        bits = (bits >> 31) << 63 | 0x7FF << 52 | (bits & 0x7FFFFF) << 29
        return float(struct.unpack(">d", bits.to_bytes(8, "big"))[0])
    return float(struct.unpack(">f", bits.to_bytes(4, "big"))[0])


def to_python(value: Value) -> Any:
    letter, held = value
    match letter:
        case "t" if held <= 1:
            return held == 1
        case "I":
            return held
        case "l" if not -1 << 31 <= held < 1 << 31:
            return held
        case "T":
            return Timestamp(held)
        case "d":
            return struct.unpack(">d", struct.pack(">Q", held))[0]
        case "f":
            return Float32(widened(held))
        case "D":
            return Decimal(held[1]).scaleb(-held[0])
        case "S":
            return text(held)
        case "x" | "V":
            return held
        case "F":
            return {text(name): to_python(inner) for name, inner in held}
        case "A":
            return [to_python(inner) for inner in held]
    return Integer(held, letter)


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Integer):
        return one.kind == other.kind and int(one) == int(other)
    if isinstance(one, float):
        return struct.pack(">d", one) == struct.pack(">d", other)
    if isinstance(one, Decimal):
        return one.as_tuple() == other.as_tuple()
    return bool(one == other)
