# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""Values of AMQP field tables as text. See amqp091/values.pxd.

Integers, booleans and strings need no Python object; nested values and floats do.
"""
import json
from binascii import a2b_base64, b2a_base64
from struct import error as struct_error
from struct import pack, unpack

from libc.stdint cimport int8_t, int16_t, int32_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy

from fluxmq._core.wire.primitives cimport peek_u16, peek_u32, peek_u64, put_u32
from fluxmq._core.wire.sizes cimport low_u8
from fluxmq._core.wire.text cimport text_valid

__all__ = ["read_text", "write_text"]

cdef enum:
    DEPTH_MAX = 32              # nesting depth that becomes JSON
    RAW_DEPTH_MAX = 128         # nesting depth that is read from base64
    TEXT_MAX = 65535            # MQTT 5.0 section 1.5.4

cdef str LETTERS = "tbBsUuIilLfdTDSxAFV"
cdef dict RANGES = {
    c"b": (">b", -1 << 7, 1 << 7), c"B": (">B", 0, 1 << 8), c"s": (">h", -1 << 15, 1 << 15),
    c"U": (">h", -1 << 15, 1 << 15), c"u": (">H", 0, 1 << 16), c"I": (">i", -1 << 31, 1 << 31),
    c"i": (">I", 0, 1 << 32), c"l": (">q", -1 << 63, 1 << 63), c"L": (">q", -1 << 63, 1 << 63),
    c"T": (">Q", 0, 1 << 64)}


cdef uint8_t* room_more(room_t* room, size_t n) except NULL:
    cdef uint8_t* grown
    cdef size_t size = room.size
    if room.used + n > size:
        size = (room.used + n) * 2
        grown = <uint8_t*>realloc(room.data, size)
        if grown == NULL:
            raise MemoryError()
        room.data = grown
        room.size = size
    return room.data + room.used


cdef int room_put(room_t* room, const void* data, size_t n) except -1:
    cdef uint8_t* at = room_more(room, n + 1)
    if n:
        memcpy(at, data, n)
    room.used += n
    return 0


cdef void room_free(room_t* room) noexcept:
    free(room.data)
    room.data = NULL
    room.size = room.used = 0


# ---------------------------------------------------------------- the bytes of tables

cdef inline int fixed_size(uint8_t kind) noexcept nogil:
    """Size of a value; -1: it has its own length; -2: unknown type."""
    if kind == c"S" or kind == c"x" or kind == c"A" or kind == c"F":
        return -1
    if kind == c"I" or kind == c"i" or kind == c"f":
        return 4
    if kind == c"l" or kind == c"L" or kind == c"d" or kind == c"T":
        return 8
    if kind == c"t" or kind == c"b" or kind == c"B":
        return 1
    if kind == c"s" or kind == c"U" or kind == c"u":
        return 2
    if kind == c"D":
        return 5
    return 0 if kind == c"V" else -2


cdef bint next_item(const uint8_t** at, const uint8_t* end, entry_t* entry) noexcept nogil:
    cdef const uint8_t* cursor = at[0]
    cdef int size
    if cursor >= end:
        return 0
    entry.kind = cursor[0]
    cursor += 1
    size = fixed_size(entry.kind)
    if size == -2:
        return 0
    if size == -1:
        if end - cursor < 4:
            return 0
        entry.size = peek_u32(cursor)
        cursor += 4
    else:
        entry.size = <uint32_t>size
    if end - cursor < <ssize_t>entry.size:
        return 0
    entry.value = cursor
    at[0] = cursor + entry.size
    return 1


cdef bint next_entry(const uint8_t** at, const uint8_t* end, entry_t* entry) noexcept nogil:
    cdef const uint8_t* cursor = at[0]
    if cursor >= end or end - cursor - 1 < cursor[0]:
        return 0
    entry.name_length = cursor[0]
    entry.name = cursor + 1
    cursor += 1 + cursor[0]
    if not next_item(&cursor, end, entry):
        return 0
    at[0] = cursor
    return 1


cdef bint nested_valid(const entry_t* outer, int depth) noexcept nogil:
    cdef entry_t entry
    cdef const uint8_t* at = outer.value
    cdef const uint8_t* end = at + outer.size
    if outer.kind != c"A" and outer.kind != c"F":
        return 1
    if depth == 0:
        return 0
    while at < end:
        if not (next_entry(&at, end, &entry) if outer.kind == c"F" else next_item(&at, end, &entry)):
            return 0
        if not nested_valid(&entry, depth - 1):
            return 0
    return 1


cdef bint entry_valid(const uint8_t* at, const uint8_t* end) noexcept nogil:
    cdef entry_t entry
    return next_entry(&at, end, &entry) and at == end and nested_valid(&entry, RAW_DEPTH_MAX)


cdef int put_value(room_t* out, uint8_t kind, const void* value, uint32_t size) except -1:
    cdef uint8_t[5] head
    cdef uint32_t n = 1
    head[0] = kind
    if fixed_size(kind) == -1:
        put_u32(head + 1, size)
        n = 5
    room_put(out, head, n)
    return room_put(out, value, size)


cdef int put_entry(room_t* out, const entry_t* entry) except -1:
    room_put(out, &entry.name_length, 1)
    room_put(out, entry.name, entry.name_length)
    return put_value(out, entry.kind, entry.value, entry.size)


# ---------------------------------------------------------------- numbers

cdef bint read_decimal(const uint8_t* text, uint32_t length, uint64_t maximum, uint64_t* out) noexcept nogil:
    cdef uint64_t value = 0
    cdef uint64_t digit
    cdef uint32_t i
    if length == 0 or length > 20 or (text[0] == 48 and length > 1):
        return 0
    for i in range(length):
        if text[i] < 48 or text[i] > 57:
            return 0
        digit = text[i] - 48
        if value > (maximum - digit) // 10:
            return 0
        value = value * 10 + digit
    out[0] = value
    return 1


cdef bint read_integer(const entry_t* entry, int64_t* value) noexcept nogil:
    cdef const uint8_t* at = entry.value
    if entry.kind == c"I":
        value[0] = <int32_t>peek_u32(at)
    elif entry.kind == c"l" or entry.kind == c"L":
        value[0] = <int64_t>peek_u64(at)
    elif entry.kind == c"b":
        value[0] = <int8_t>at[0]
    elif entry.kind == c"B":
        value[0] = at[0]
    elif entry.kind == c"s" or entry.kind == c"U":
        value[0] = <int16_t>peek_u16(at)
    elif entry.kind == c"u":
        value[0] = peek_u16(at)
    elif entry.kind == c"i":
        value[0] = peek_u32(at)
    else:
        return 0
    return 1


cdef bint put_integer(room_t* out, uint8_t kind, const uint8_t* text, uint32_t length) except -1:
    """Writes any integer type, also T, from canonical decimal."""
    cdef uint8_t[8] raw
    cdef uint64_t value = 0
    cdef uint64_t maximum
    cdef uint32_t size = <uint32_t>fixed_size(kind)
    cdef uint32_t i
    cdef bint signed = kind != c"B" and kind != c"u" and kind != c"i" and kind != c"T"
    cdef bint negative = length > 1 and text[0] == c"-"
    if negative and (not signed or text[1] == 48):
        return 0
    maximum = <uint64_t>0xFFFFFFFFFFFFFFFF >> (64 - 8 * size + signed)
    if not read_decimal(text + negative, length - negative, maximum + negative, &value):
        return 0
    if negative:
        value = 0 - value
    for i in range(size):
        raw[i] = low_u8(value >> 8 * (size - 1 - i))
    put_value(out, kind, raw, size)
    return 1


# ---------------------------------------------------------------- text

cdef int put_base64(room_t* out, const entry_t* entry, char* code) except -1:
    cdef bytes text = b2a_base64((<const char*>entry.value)[:entry.size], newline=False)
    room_put(out, <const char*>text, len(text))
    code[0] = <char>entry.kind
    code[1] = c"6"
    code[2] = c"4"
    return 3


cdef int value_text(room_t* out, const entry_t* entry, char* code) except -1:
    cdef char[32] digits
    cdef int64_t value = 0
    cdef bytes text
    code[0] = <char>entry.kind
    if entry.kind == c"S":
        if not text_valid(entry.value, entry.size):
            return put_base64(out, entry, code)
        room_put(out, entry.value, entry.size)
        return 0
    if entry.kind == c"t" and entry.value[0] <= 1:
        room_put(out, <const char*>b"true" if entry.value[0] else <const char*>b"false", 5 - entry.value[0])
        return 1
    if entry.kind == c"V":
        return 1
    if entry.kind == c"T":
        value = snprintf(digits, 32, b"%llu", <unsigned long long>peek_u64(entry.value))
        room_put(out, digits, <size_t>value)
        return 1
    if read_integer(entry, &value):
        value = snprintf(digits, 32, b"%lld", <long long>value)
        room_put(out, digits, <size_t>value)
        return 1
    try:
        text = cold_text(entry.kind, (<const char*>entry.value)[:entry.size])
    except (ValueError, RecursionError):
        return put_base64(out, entry, code)
    room_put(out, <const char*>text, len(text))
    return 1


cdef bint text_value(room_t* out, const uint8_t* code, uint32_t code_length, const uint8_t* text,
                     uint32_t length) except -1:
    cdef bytes raw
    cdef uint8_t kind
    cdef uint8_t truth
    cdef entry_t entry
    cdef int size
    if code_length == 0 or (code_length != 1 and code_length != 3):
        return 0
    kind = code[0]
    size = fixed_size(kind)
    if size == -2:
        return 0
    if code_length == 3:
        raw = base64_bytes(text, length) if code[1] == c"6" and code[2] == c"4" else None
        if raw is None or (size >= 0 and len(raw) != size):
            return 0
        entry.kind = kind
        entry.value = <const uint8_t*><const char*>raw
        entry.size = <uint32_t>len(raw)
        if not nested_valid(&entry, RAW_DEPTH_MAX):
            return 0
        put_value(out, kind, entry.value, entry.size)
        return 1
    if kind == c"t":
        truth = length == 4
        if not (truth and memcmp(text, b"true", 4) == 0) and not (length == 5 and memcmp(text, b"false", 5) == 0):
            return 0
        put_value(out, kind, &truth, 1)
        return 1
    if kind == c"S":
        put_value(out, kind, text, length)
        return 1
    if kind == c"V":
        if length:
            return 0
        put_value(out, kind, text, 0)
        return 1
    if kind == c"f" or kind == c"d" or kind == c"D" or kind == c"A" or kind == c"F":
        try:
            raw = cold_value(kind, (<const char*>text)[:length])
        except (ValueError, RecursionError, OverflowError, struct_error):
            return 0
        put_value(out, kind, <const char*>raw, <uint32_t>len(raw))
        return 1
    return put_integer(out, kind, text, length) if kind != c"x" else 0


cdef bytes base64_bytes(const uint8_t* text, uint32_t length):
    """None: it is not canonical base64."""
    try:
        return a2b_base64((<const char*>text)[:length], strict_mode=True)
    except ValueError:
        return None


# ---------------------------------------------------------------- nested values and floats

cdef bytes cold_text(uint8_t kind, bytes raw):
    """Text of f, d, D, A, F, and of an invalid boolean. Raises ValueError if no text converts back."""
    if kind == c"f" or kind == c"d":
        return repr(plain_float(kind, raw)).encode()
    if kind == c"D":
        return decimal_text(raw).encode()
    if kind == c"A" or kind == c"F":
        text = json.dumps(plain_nested(kind, raw, DEPTH_MAX), ensure_ascii=False, allow_nan=False,
                          separators=(",", ":")).encode()
        if len(text) <= TEXT_MAX:
            return text
    raise ValueError


cdef object plain_float(uint8_t kind, bytes raw):
    value, = unpack(">f" if kind == c"f" else ">d", raw)
    if value != value:
        raise ValueError            # the text would not distinguish NaNs
    return value


cdef str decimal_text(bytes raw):
    scale, unscaled = unpack(">Bi", raw)
    return f"{unscaled}e-{scale}"


cdef object plain_nested(uint8_t kind, bytes raw, int depth):
    cdef const uint8_t* at = <const uint8_t*><const char*>raw
    cdef const uint8_t* end = at + len(raw)
    cdef entry_t entry
    cdef dict named = {}
    cdef list items = []
    if depth == 0:
        raise ValueError
    while at < end:
        if kind == c"A":
            if not next_item(&at, end, &entry):
                raise ValueError
            items.append(plain(&entry, depth))
        else:
            if not next_entry(&at, end, &entry):
                raise ValueError
            name = (<const char*>entry.name)[:entry.name_length].decode()
            if name in named:
                raise ValueError
            named[name] = plain(&entry, depth)
    if kind == c"A":
        return items
    return {"F": named} if len(named) == 1 and next(iter(named)) in LETTERS and next(iter(named)) else named


cdef object plain(const entry_t* entry, int depth):
    """A value for JSON. Raises ValueError."""
    cdef int64_t value = 0
    cdef bytes raw = (<const char*>entry.value)[:entry.size]
    cdef uint8_t kind = entry.kind
    if kind == c"S":
        return raw.decode()
    if kind == c"t" and raw[0] <= 1:
        return raw[0] == 1
    if kind == c"V":
        return None
    if kind == c"A" or kind == c"F":
        return plain_nested(kind, raw, depth - 1)
    if kind == c"d":
        return plain_float(kind, raw)
    if kind == c"f":
        return {"f": plain_float(kind, raw)}
    if kind == c"D":
        return {"D": decimal_text(raw)}
    if kind == c"x":
        return {"x": b2a_base64(raw, newline=False).decode()}
    if kind == c"T":
        return {"T": int.from_bytes(raw, "big")}
    if not read_integer(entry, &value):
        raise ValueError
    return value if kind == c"l" else {chr(kind): value}


cdef bytes cold_value(uint8_t kind, bytes text):
    """Raises ValueError."""
    if kind == c"f" or kind == c"d":
        return pack(">f" if kind == c"f" else ">d", float(text))
    if kind == c"D":
        return decimal_bytes(text.decode())
    value = json.loads(text)
    if kind == c"F" and isinstance(value, dict):
        return table_bytes(unwrapped(value), DEPTH_MAX)
    if kind == c"A" and isinstance(value, list):
        return b"".join([item_bytes(item, DEPTH_MAX) for item in value])
    raise ValueError


cdef bytes decimal_bytes(str text):
    unscaled, mark, scale = text.partition("e-")
    raw = pack(">Bi", int(scale), int(unscaled))
    if mark and decimal_text(raw) == text:
        return raw
    raise ValueError


cdef object unwrapped(dict value):
    """Removes the {"F": {…}} around a table with one member that looks like a type."""
    inner = value.get("F") if len(value) == 1 else None
    return inner if isinstance(inner, dict) else value


cdef bytes table_bytes(dict value, int depth):
    cdef list parts = []
    for name, item in value.items():
        raw = name.encode()
        if len(raw) > 255:
            raise ValueError
        parts.append(bytes((len(raw),)) + raw + item_bytes(item, depth))
    return b"".join(parts)


cdef bytes item_bytes(object value, int depth):
    """Letter, length and value of a JSON value. Raises ValueError, struct.error."""
    if depth == 0:
        raise ValueError
    if isinstance(value, str):
        return sized(b"S", value.encode())
    if isinstance(value, bool):
        return b"t\x01" if value else b"t\x00"
    if value is None:
        return b"V"
    if isinstance(value, int):
        return b"l" + pack(">q", value)
    if isinstance(value, float):
        return b"d" + pack(">d", value)
    if isinstance(value, list):
        return sized(b"A", b"".join([item_bytes(item, depth - 1) for item in value]))
    if not isinstance(value, dict):
        raise ValueError
    name, inner = next(iter(value.items())) if len(value) == 1 else ("", None)
    if len(name) != 1 or name not in LETTERS:
        return sized(b"F", table_bytes(value, depth - 1))
    if name == "F" and isinstance(inner, dict):
        return sized(b"F", table_bytes(inner, depth - 1))
    if name == "f" and isinstance(inner, (int, float)):
        return b"f" + pack(">f", inner)
    if name == "D" and isinstance(inner, str):
        return b"D" + decimal_bytes(inner)
    if name == "x" and isinstance(inner, str):
        return sized(b"x", a2b_base64(inner.encode(), strict_mode=True))
    if ord(name) in RANGES and isinstance(inner, int) and not isinstance(inner, bool):
        return name.encode() + pack(RANGES[ord(name)][0], inner)
    raise ValueError


cdef bytes sized(bytes letter, bytes value):
    return letter + len(value).to_bytes(4, "big") + value


# ---------------------------------------------------------------- for tests and cold uses

def write_text(bytes item not None) -> tuple[bytes, bytes]:
    """(code, text) of a value with its letter and length. Raises ValueError if it is invalid."""
    cdef room_t room
    cdef entry_t entry
    cdef char[3] code
    cdef const uint8_t* at = <const uint8_t*><const char*>item
    room.data = NULL
    room.size = room.used = 0
    if not next_item(&at, at + len(item), &entry) or not nested_valid(&entry, RAW_DEPTH_MAX):
        raise ValueError("not a value of a field table")
    try:
        room_more(&room, 1)
        n = value_text(&room, &entry, code)
        return code[:n], (<const char*>room.data)[:room.used]
    finally:
        room_free(&room)


def read_text(bytes code not None, bytes text not None) -> bytes | None:
    """The value with its letter and length; None: the text is invalid for the code."""
    cdef room_t room
    room.data = NULL
    room.size = room.used = 0
    try:
        if not text_value(&room, <const uint8_t*><const char*>code, <uint32_t>len(code),
                          <const uint8_t*><const char*>text, <uint32_t>len(text)):
            return None
        return (<const char*>room.data)[:room.used]
    finally:
        room_free(&room)
