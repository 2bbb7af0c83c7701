"""Field tables, properties and methods of AMQP 0-9-1 in literal bytes; what is refused, and in which words."""
from __future__ import annotations

import copy
import math
import pickle
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from kit.amqp091_values import same

from fluxmq._core.amqp091.fields import Float32, Integer, Timestamp, decode_table, encode_table, plain
from fluxmq._core.amqp091.methods import (
    METHODS,
    BasicPublish,
    BasicQos,
    ConnectionClose,
    ConnectionOpen,
    ConnectionStartOk,
    Method,
    QueueDeclare,
    QueueDelete,
    TxSelect,
    decode_method,
)
from fluxmq._core.amqp091.properties import decode_properties, encode_properties
from fluxmq._core.errors import ProtocolError, UsageError
from fluxmq._core.testing import amqp091 as amqp091_testing

VALUES: list[tuple[str, Any]] = [
    ("t 01", True),
    ("t 00", False),
    ("t 07", Integer(7, "t")),
    ("b FF", Integer(-1, "b")),
    ("B FF", Integer(255, "B")),
    ("s FFFE", Integer(-2, "s")),
    ("U FFFE", Integer(-2, "U")),
    ("u FFFE", Integer(65534, "u")),
    ("I FFFFFFFD", -3),
    ("i FFFFFFFD", Integer(4294967293, "i")),
    ("l 0000000000000005", Integer(5, "l")),
    ("l 0000000080000000", 2147483648),
    ("l 8000000000000000", -1 << 63),
    ("L FFFFFFFFFFFFFFFF", Integer(-1, "L")),
    ("f 3FC00000", Float32(1.5)),
    ("d 3FF8000000000000", 1.5),
    ("d 7FF0000000000000", math.inf),
    ("D 02 0000007B", Decimal("1.23")),
    ("D 02 FFFFFF85", Decimal("-1.23")),
    ("D 00 00000005", Decimal(5)),
    ("D FF 00000001", Decimal("1E-255")),
    ("S 00000003 616263", "abc"),
    ("S 00000001 FF", "\udcff"),
    ("x 00000003 616263", b"abc"),
    ("T 00000000655F0000", Timestamp(0x655F0000)),
    ("T FFFFFFFFFFFFFFFF", Timestamp((1 << 64) - 1)),
    ("V", None),
    ("A 00000000", []),
    ("A 00000007 49 00000001 74 01", [1, True]),
    ("F 00000000", {}),
    ("F 00000004 01 61 74 00", {"a": False}),
]


def wire_of(text: str) -> bytes:
    return text[:1].encode() + bytes.fromhex(text[1:])


@pytest.mark.parametrize(("text", "value"), VALUES, ids=[text for text, _ in VALUES])
def test_values_on_the_wire(text: str, value: Any) -> None:
    table = b"\x03key" + wire_of(text)
    assert same(decode_table(table), {"key": value})
    assert encode_table({"key": value}) == table
    assert amqp091_testing.check(table) == 0


BAD = [
    # table, what the text says
    ("01", "within a name"),
    ("02 61", "within a name"),
    ("01 61", "within the value of 'a'"),
    ("01 61 7A", "unknown type 'z'"),
    ("01 61 00", "unknown type '\\x00'"),
    ("01 61 74", "within the value"),
    ("01 61 49 000000", "within the value"),
    ("01 61 6C 00000000000000", "within the value"),
    ("01 61 44 00000000", "within the value"),
    ("01 61 53 000000", "within the value"),
    ("01 61 53 00000002 61", "within the value"),
    ("01 61 53 7FFFFFFF 61", "within the value"),
    ("01 61 78 80000000", "within the value"),
    ("01 61 46 FFFFFFFF", "within the value"),
    ("01 61 41 7FFFFFFF 5600", "within the value"),
    ("01 61 46 00000002 01 62", "within the value of 'b'"),
    ("01 61 46 00000001 56", "within a name"),
    ("01 61 41 00000002 49 00", "within the value of 'a'"),
]


@pytest.mark.parametrize(("text", "says"), BAD, ids=[text for text, _ in BAD])
def test_tables_that_are_refused(text: str, says: str) -> None:
    table = bytes.fromhex(text)
    assert amqp091_testing.check(table) == 502
    with pytest.raises(ProtocolError) as refused:
        decode_table(table)
    assert refused.value.reason == 502 and says in refused.value.text
    assert amqp091_testing.find(table, b"missing") is None
    # As headers, and as the arguments of a method, where the frame goes on behind it.
    length = len(table).to_bytes(4, "big")
    assert amqp091_testing.read_properties(b"\x20\x00" + length + table) == 502
    with pytest.raises(ProtocolError) as refused:
        decode_method(bytes.fromhex("0032 000A 0000 01 71 00") + length + table)
    assert refused.value.reason == 502 and says in refused.value.text
    assert "arguments of queue.declare" in refused.value.text


def test_a_length_of_two_gigabytes_is_only_a_lie() -> None:
    """Nothing is reserved for it, and nothing behind the end is read."""
    for length in (0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF):
        lie = length.to_bytes(4, "big")
        for table in (b"\x01aF" + lie, b"\x01aA" + lie, b"\x01aS" + lie, b"\x01aF\x00\x00\x00\x07\x01bx" + lie):
            assert amqp091_testing.check(table) == 502
        assert amqp091_testing.read_properties(b"\x20\x00" + lie) == 502
        with pytest.raises(ProtocolError) as refused:
            decode_properties(b"\x20\x00" + lie + b"\x01at\x01")
        assert refused.value.reason == 502
        with pytest.raises(ProtocolError) as refused:
            decode_method(bytes.fromhex("000A 000B") + lie + b"\x01at\x01")
        assert refused.value.reason == 502


def nested(levels: int, letter: bytes) -> bytes:
    """A table with so many levels of tables or arrays within it."""
    value = b"V"
    for _ in range(levels):
        inner = value if letter == b"A" else b"\x01n" + value
        value = letter + len(inner).to_bytes(4, "big") + inner
    return b"\x01n" + value


@pytest.mark.parametrize("letter", [b"A", b"F"])
def test_depth_has_an_end(letter: bytes) -> None:
    assert amqp091_testing.check(nested(128, letter)) == 0
    found = decode_table(nested(128, letter))
    assert encode_table(found) == nested(128, letter)
    for levels in (129, 1000, 30_000):
        assert amqp091_testing.check(nested(levels, letter)) == 502
        with pytest.raises(ProtocolError, match="nested more than 128 deep"):
            decode_table(nested(levels, letter))
    inner: Any = None
    for _ in range(129):
        inner = [inner] if letter == b"A" else {"n": inner}
    with pytest.raises(UsageError, match="nested more than 128 deep"):
        encode_table({"n": inner})


def test_a_table_that_holds_itself_has_no_bytes() -> None:
    table: dict[str, Any] = {}
    table["self"] = table
    with pytest.raises(UsageError, match="nested"):
        encode_table(table)


def test_every_byte_is_looked_at_once_however_deep_it_lies() -> None:
    """A megabyte at the bottom of 128 levels; if each level went through what is below it, this would not end."""
    filling = b"".join(b"\x01aI\x00\x00\x00\x01" for _ in range(150_000))
    value = b"F" + len(filling).to_bytes(4, "big") + filling
    for _ in range(127):
        value = b"A" + len(value).to_bytes(4, "big") + value
    table = b"\x01n" + value
    for _ in range(20):
        assert amqp091_testing.check(table) == 0
    assert amqp091_testing.check(table[:-1]) == 502


def test_of_a_name_that_stands_twice_the_first_counts() -> None:
    table = b"\x01at\x01\x01bt\x00\x01at\x00"
    assert amqp091_testing.find(table, b"a") == ("t", b"\x01")
    assert decode_table(table) == {"a": True, "b": False}


def test_find_tells_names_apart() -> None:
    table = encode_table({"x-match-more": 1, "x-matc": 2, "": 3, "x-match": "any", "t": {"x-match": 4}})
    assert amqp091_testing.find(table, b"x-match") == ("S", b"any")
    assert amqp091_testing.find(table, b"") == ("I", b"\x00\x00\x00\x03")
    assert amqp091_testing.find(table, b"t") == ("F", encode_table({"x-match": 4}))
    assert amqp091_testing.find(table, b"X-MATCH") is None


# ── values of our own ────────────────────────────────────────────────────────────────────────────────────────


def test_typed_numbers_are_numbers() -> None:
    number, stamp, real = Integer(5, "l"), Timestamp(1_700_000_000), Float32(0.5)
    assert number == 5 and number + 1 == 6 and hash(number) == hash(5) and {5: "x"}[number] == "x"
    assert f"{number} {stamp} {real} {number:03d}" == "5 1700000000 0.5 005"
    assert (repr(number), repr(stamp), repr(real)) == ("Integer(5, 'l')", "Timestamp(1700000000)", "Float32(0.5)")
    for value in (number, stamp, real):
        for twin in (copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
            assert same(twin, value)


@pytest.mark.parametrize(("value", "kind"), [(128, "b"), (-1, "B"), (1 << 15, "s"), (1 << 16, "u"), (1 << 31, "I"),
                                             (-1, "i"), (1 << 63, "l"), (-1 - (1 << 63), "L"), (256, "t"), (1, "S"),
                                             (1, "T"), (1, "")])
def test_integers_fit_their_type(value: int, kind: str) -> None:
    with pytest.raises(UsageError):
        Integer(value, kind)


@pytest.mark.parametrize("value", [1 << 63, -1 - (1 << 63), Decimal("NaN"), Decimal("Infinity"), Decimal(1 << 31),
                                   Decimal("1E-256"), Decimal("1E999999"), Decimal("0.12345678901"), Float32(1e39),
                                   object(), {1, 2}, {1: 2}, {"n" * 256: 1}, "\ud800", 1j])
def test_what_no_table_carries(value: object) -> None:
    with pytest.raises(UsageError):
        encode_table({"key": value})
    with pytest.raises(UsageError):
        encode_properties({"headers": {"key": [value]}})


def test_other_spellings_are_written_too() -> None:
    assert encode_table({"a": (1, 2)}) == encode_table({"a": [1, 2]})
    assert encode_table({"a": bytearray(b"x"), "b": memoryview(b"y")}) == encode_table({"a": b"x", "b": b"y"})
    assert decode_table(encode_table({"d": Decimal("12E2")})) == {"d": Decimal(1200)}
    assert decode_table(encode_table({"f": Float32(math.inf)})) == {"f": math.inf}
    with pytest.raises(UsageError):
        Timestamp(-1)


def test_plain_is_what_the_wire_added_taken_away() -> None:
    table = decode_table(encode_table({
        "n": Integer(5, "b"), "t": Timestamp(7), "f": Float32(0.5), "l": [Integer(1, "l"), {"d": 1.5}], "b": True,
        "s": "x", "v": None, "x": b"y", "m": Decimal("1.20")}))
    assert same(plain(table), {"n": 5, "t": 7, "f": 0.5, "l": [1, {"d": 1.5}], "b": True, "s": "x", "v": None,
                               "x": b"y", "m": Decimal("1.20")})
    assert msgspec.json.decode(msgspec.json.encode(plain({"n": Integer(5, "b")}))) == {"n": 5}


# ── properties ───────────────────────────────────────────────────────────────────────────────────────────────


def test_properties_on_the_wire() -> None:
    everything = {"content_type": "text/plain", "content_encoding": "gzip", "headers": {"a": 1}, "delivery_mode": 2,
                  "priority": 9, "correlation_id": "c", "reply_to": "r", "expiration": "60000", "message_id": "m",
                  "timestamp": 1_700_000_000, "type": "t", "user_id": "guest", "app_id": "a", "cluster_id": "k"}
    wire = encode_properties(everything)
    assert wire[:2] == b"\xff\xfc"
    assert decode_properties(wire) == everything and list(decode_properties(wire)) == list(everything)
    assert encode_properties({}) == b"\0\0" and decode_properties(b"\0\0") == {}
    assert encode_properties({"priority": None, "delivery_mode": 1}) == b"\x10\x00\x01"


@pytest.mark.parametrize("text", ["", "00", "0001", "0002", "8000", "8000 02 61", "2000 000000", "1000", "0800",
                                  "0040 00000000000000", "0000 00", "8001 01 61", "1000 02 00"])
def test_properties_that_are_refused(text: str) -> None:
    assert amqp091_testing.read_properties(bytes.fromhex(text)) == 502
    with pytest.raises(ProtocolError) as refused:
        decode_properties(bytes.fromhex(text))
    assert refused.value.reason == 502 and refused.value.text


@pytest.mark.parametrize("properties", [{"nothing": 1}, {"content-type": "x"}, {"priority": 256}, {"priority": "1"},
                                        {"timestamp": 1 << 64}, {"timestamp": -1}, {"type": b"x"},
                                        {"type": "x" * 256}, {"headers": []}])
def test_properties_that_cannot_be_written(properties: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        encode_properties(properties)


# ── methods ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_methods_on_the_wire() -> None:
    declare = QueueDeclare(queue="q", durable=True, no_wait=True, arguments={"x-max-length": 5})
    assert declare.encode() == bytes.fromhex("0032 000A 0000 01 71 12 00000012 0C") + b"x-max-lengthI\0\0\0\x05"
    assert (declare.name, declare.number, declare.synchronous, declare.has_content) == (
        "queue.declare", 50 << 16 | 10, True, False)
    assert repr(QueueDelete(queue="q", if_empty=True)) == (
        "QueueDelete(queue='q', if_unused=False, if_empty=True, no_wait=False)")
    assert BasicPublish.has_content and not BasicPublish.synchronous and not BasicPublish.by_server
    close = ConnectionClose(reply_code=320, reply_text="bye", class_id=60, method_id=40)
    assert decode_method(close.encode()) == close and (close.class_id, close.method_id) == (60, 40)
    assert TxSelect().frame(3) == bytes.fromhex("01 0003 00000004 005A 000A CE")


def test_methods_are_compared_by_type_and_value() -> None:
    assert BasicQos(prefetch_count=1, global_=True) == BasicQos(prefetch_count=1, global_=True)
    assert BasicQos(prefetch_count=1) != BasicQos(prefetch_count=2)
    assert BasicQos() != TxSelect()
    with pytest.raises(TypeError):
        hash(BasicQos())
    with pytest.raises(TypeError):
        Method()


def test_bits_that_no_field_has_are_not_looked_at() -> None:
    assert decode_method(bytes.fromhex("0032 0028 0000 01 71 FF")) == QueueDelete(
        queue="q", if_unused=True, if_empty=True, no_wait=True)


def test_reserved_fields_are_read_over() -> None:
    assert decode_method(bytes.fromhex("000A 0028 01 2F 05 6C6F73746F 01")) == ConnectionOpen(virtual_host="/")
    assert ConnectionOpen(virtual_host="/").encode() == bytes.fromhex("000A 0028 01 2F 00 00")


def test_text_of_any_bytes_survives() -> None:
    wire = bytes.fromhex("0032 0028 0000 03 FF6100 00")
    method = decode_method(wire)
    assert isinstance(method, QueueDelete) and method.queue == "\udcffa\0" and method.encode() == wire


def test_a_response_is_bytes() -> None:
    method = ConnectionStartOk(mechanism="PLAIN", response=b"\0guest\0\xff", locale="en_US")
    assert decode_method(method.encode()) == method


REFUSED = [
    ("", 501, "no class and method"),
    ("0032 00", 501, "3 bytes"),
    ("0000 000A", 540, "class 0"),
    ("001E 000A", 540, "class 30"),
    ("0032 0063", 503, "class 50 has no method 99"),
    ("0028 0029", 503, "class 40 has no method 41"),
    ("003C 0028", 502, "a reserved field of basic.publish"),
    ("003C 0028 0000 02 61", 502, "the exchange of basic.publish"),
    ("003C 0028 0000 00 00", 502, "the bits of basic.publish"),
    ("003C 0028 0000 00 00 00 00", 502, "1 bytes too many after basic.publish"),
    ("003C 0050 0000000000000001", 502, "the bits of basic.ack"),
    ("003C 0050 00000000000001", 502, "the delivery-tag of basic.ack"),
    ("000A 000B 00000000 05 504C41494E 00000010 00", 502, "the response of connection.start-ok"),
]


@pytest.mark.parametrize(("text", "reply", "says"), REFUSED, ids=[text for text, _, _ in REFUSED])
def test_methods_that_are_refused(text: str, reply: int, says: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        decode_method(bytes.fromhex(text))
    assert refused.value.reason == reply and says in refused.value.text


@pytest.mark.parametrize("method", [
    QueueDelete(queue="q" * 256), QueueDelete(queue="\ud800"), QueueDeclare(arguments={"x": object()})])
def test_methods_that_cannot_be_written(method: Method) -> None:
    with pytest.raises(UsageError):
        method.encode()
    with pytest.raises(UsageError):
        method.frame(1)


def test_channels_have_sixteen_bits() -> None:
    assert TxSelect().frame(65535)[1:3] == b"\xff\xff"
    for channel in (-1, 65536):
        with pytest.raises(UsageError):
            TxSelect().frame(channel)


def test_every_method_can_be_built_bare() -> None:
    for cls in METHODS.values():
        method = cls()
        assert decode_method(method.encode()) == method
