"""The messages of proto/cluster.proto, written and read by hand.

A message of protocol buffers is a sequence of fields, each a tag (number << 3 | wire type) and a value; of wire type 2
the value is a length and as many bytes. Ours have only such fields. What we write is what standard code writes for
these messages (an empty field is left out), and what we read is whatever standard code may write: fields in any order,
fields of later versions, a field twice (the last one counts).

    https://protobuf.dev/programming-guides/encoding/
"""
from fluxmq._core.errors import FluxError

__all__ = ["EnvelopeError", "call_of", "field_of", "wrap_call", "wrap_field"]

_LENGTH_DELIMITED = 2
# Tags of fields 1 and 2.
_FIRST, _SECOND = b"\x0a", b"\x12"
# Wire types of one size: 64 and 32 bits. Groups (3, 4) are not used since 2008, and proto3 does not have them.
_FIXED = {1: 8, 5: 4}


class EnvelopeError(FluxError):
    """What came is not a message of protocol buffers."""


def wrap_field(data: bytes) -> bytes:
    """Frame or Part: a message whose field 1 is `data`."""
    return _field(_FIRST, data)


def field_of(message: bytes) -> bytes:
    """The field 1 of a Frame or Part. Raises EnvelopeError."""
    if message[:1] == _FIRST:
        size, at = _read_varint(message, 1)
        if at + size == len(message):
            return message[at:]
    return _fields(message).get(1, b"")


def wrap_call(method: str, body: bytes) -> bytes:
    """CallRequest."""
    return _field(_FIRST, method.encode()) + _field(_SECOND, body)


def call_of(message: bytes) -> tuple[str, bytes]:
    """Method and body of a CallRequest. Raises EnvelopeError."""
    fields = _fields(message)
    try:
        return fields.get(1, b"").decode(), fields.get(2, b"")
    except UnicodeDecodeError:
        raise EnvelopeError("the name of a method is not UTF-8") from None


def _field(tag: bytes, data: bytes) -> bytes:
    return b"".join((tag, _varint(len(data)), data)) if data else b""


def _varint(number: int) -> bytes:
    """Seven bits to a byte, the lowest first; all but the last have the highest bit set."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    """The number that begins there, and where it ends."""
    number = 0
    for shift in range(0, 70, 7):
        if at == len(message):
            raise EnvelopeError("a message ends within a number")
        byte = message[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise EnvelopeError("a number has more than ten bytes")


def _fields(message: bytes) -> dict[int, bytes]:
    """The length-delimited fields by number. Others are skipped."""
    found: dict[int, bytes] = {}
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            _, at = _read_varint(message, at)
            continue
        if kind == _LENGTH_DELIMITED:
            size, at = _read_varint(message, at)
        elif kind in _FIXED:
            size = _FIXED[kind]
        else:
            raise EnvelopeError(f"a field has wire type {kind}")
        if number == 0 or at + size > len(message):
            raise EnvelopeError("a field ends behind its message" if number else "a field has number 0")
        if kind == _LENGTH_DELIMITED:
            found[number] = message[at:at + size]
        at += size
    return found
