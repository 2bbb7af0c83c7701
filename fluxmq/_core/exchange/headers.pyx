# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Header tables read, ordered and compared; see exchange/headers.pxd."""
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.math cimport fabs, floor
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint16_t
from libc.stdlib cimport free, qsort, realloc
from libc.string cimport memcmp, memcpy

from fluxmq._core.errors import ProtocolError
from fluxmq._core.wire.hash cimport hash_bytes, hash_word
from fluxmq._core.wire.primitives cimport peek_u16, peek_u32, peek_u64
from fluxmq._core.wire.sizes cimport fit_u32

__all__ = ["KIND_NAMES", "read_headers", "sorted_table"]

# RabbitMQ's names for the types of fields, for the texts of refusals.
KIND_NAMES = {"S": "longstr", "x": "binary", "I": "signedint", "i": "unsignedint", "t": "bool", "l": "long",
              "L": "long", "d": "double", "f": "float", "b": "byte", "B": "unsignedbyte", "s": "short", "U": "short",
              "u": "unsignedshort", "D": "decimal", "T": "timestamp", "F": "table", "A": "array", "V": "void"}

cdef enum:
    DEPTH_MAX = 32              # of nested tables; deeper ones are compared byte for byte
    SYNTAX_ERROR = 502

cdef enum kind_class:           # kinds of one class may be equal
    OF_STRING = 1
    OF_INTEGER
    OF_FRACTION                 # a number that no integer of 64 bits equals
    OF_BOOL
    OF_DECIMAL
    OF_VOID
    OF_LIST                     # a table or an array

cdef struct value_t:
    const uint8_t* bytes        # of a string, a list
    uint64_t word               # of an integer its magnitude, of a fraction its bits
    double fraction
    uint32_t length
    uint8_t of                  # kind_class
    bint negative


# The end of a value of this kind that begins at `at`, or NULL: it is truncated, or its kind is unknown.
cdef const uint8_t* value_end(uint8_t kind, const uint8_t* at, const uint8_t* end) noexcept:
    cdef size_t size
    if kind == c"S" or kind == c"x" or kind == c"F" or kind == c"A":
        if end - at < 4:
            return NULL
        size = 4 + <size_t>peek_u32(at)
    elif kind == c"t" or kind == c"b" or kind == c"B":
        size = 1
    elif kind == c"s" or kind == c"U" or kind == c"u":
        size = 2
    elif kind == c"I" or kind == c"i" or kind == c"f":
        size = 4
    elif kind == c"l" or kind == c"L" or kind == c"d" or kind == c"T":
        size = 8
    elif kind == c"D":
        size = 5
    elif kind == c"V":
        size = 0
    else:
        return NULL
    return at + size if <size_t>(end - at) >= size else NULL


# Reads the field at `at`; returns the beginning of the next one, or NULL.
cdef const uint8_t* field_read(header_t* header, const uint8_t* at, const uint8_t* end) noexcept:
    if end - at < 2 or end - at < 2 + at[0]:
        return NULL
    header.name_length = at[0]
    header.name = at + 1
    at += 1 + header.name_length
    header.kind = at[0]
    header.value = at + 1
    at = value_end(header.kind, header.value, end)
    if at != NULL:
        header.value_length = fit_u32(at - header.value)
    return at


cdef inline int name_order(const header_t* a, const header_t* b) noexcept:
    cdef size_t shorter = a.name_length if a.name_length < b.name_length else b.name_length
    cdef int order = memcmp(a.name, b.name, shorter)
    return order if order != 0 else <int>a.name_length - <int>b.name_length


cdef int by_name(const void* a, const void* b) noexcept nogil:
    cdef const header_t* x = <const header_t*>a
    cdef const header_t* y = <const header_t*>b
    cdef size_t shorter = x.name_length if x.name_length < y.name_length else y.name_length
    cdef int order = memcmp(x.name, y.name, shorter)
    if order == 0:
        order = <int>x.name_length - <int>y.name_length
    return order if order != 0 else (x.name > y.name) - (x.name < y.name)


cdef bint headers_read(headers_t* headers, const uint8_t* table, uint32_t length) except -1:
    cdef const uint8_t* end = table + length
    cdef header_t* grown
    cdef bint ordered = True
    headers.count = 0
    while table != end:
        if headers.count == headers.capacity:
            grown = <header_t*>realloc(headers.items, (headers.capacity * 2 + 8) * sizeof(header_t))
            if grown == NULL:
                raise MemoryError()
            headers.items = grown
            headers.capacity = headers.capacity * 2 + 8
        table = field_read(&headers.items[headers.count], table, end)
        if table == NULL:
            break
        headers.count += 1
        if ordered and headers.count > 1:
            ordered = name_order(&headers.items[headers.count - 2], &headers.items[headers.count - 1]) <= 0
    if not ordered:
        qsort(headers.items, headers.count, sizeof(header_t), by_name)
    return table != NULL


cdef void headers_free(headers_t* headers) noexcept:
    free(headers.items)
    headers.items = NULL
    headers.count = headers.capacity = 0


cdef bint is_text(const header_t* header, const char* text, uint32_t length) noexcept:
    """Whether the value is this string."""
    return (header.kind == c"S" and header.value_length == 4 + length
            and memcmp(header.value + 4, text, length) == 0)


cdef uint8_t headers_pattern(headers_t* arguments) noexcept:
    cdef uint8_t how = MATCH_ALL
    cdef uint32_t i, kept = 0
    cdef header_t* one
    for i in range(arguments.count):
        one = &arguments.items[i]
        if one.name_length == 7 and memcmp(one.name, b"x-match", 7) == 0:
            if is_text(one, b"any", 3):
                how = 0
            elif is_text(one, b"any-with-x", 10):
                how = MATCH_WITH_X
            elif is_text(one, b"all-with-x", 10):
                how = MATCH_ALL | MATCH_WITH_X
            break
    for i in range(arguments.count):
        one = &arguments.items[i]
        if one.name_length >= 2 and memcmp(one.name, b"x-", 2) == 0:
            if not how & MATCH_WITH_X or one.name_length == 7 and memcmp(one.name, b"x-match", 7) == 0:
                continue
        arguments.items[kept] = one[0]
        kept += 1
    arguments.count = kept
    return how


cdef bint headers_match(const headers_t* pattern, uint8_t how, const headers_t* headers) noexcept:
    cdef uint32_t asked = 0, given = 0
    cdef const header_t* one
    cdef int order
    while asked < pattern.count and given < headers.count:
        one = &pattern.items[asked]
        order = name_order(one, &headers.items[given])
        if order > 0:
            given += 1
            continue
        if order == 0 and (one.kind == c"V" or same_values(one, &headers.items[given], 0)):
            if not how & MATCH_ALL:
                return True
        elif how & MATCH_ALL:
            return False
        asked += 1
        if order == 0:
            given += 1
    return how & MATCH_ALL and asked == pattern.count


# ---- values ----

cdef void set_integer(value_t* value, int64_t number) noexcept:
    value.of = OF_INTEGER
    value.negative = number < 0
    value.word = <uint64_t>0 - <uint64_t>number if number < 0 else <uint64_t>number


cdef void set_double(value_t* value, double number) noexcept:
    # A fraction with an integral value is converted to an integer, so that each number has one form.
    if floor(number) == number and fabs(number) < 18446744073709551616.0:
        value.of = OF_INTEGER
        value.negative = number < 0
        value.word = <uint64_t>fabs(number)
    else:
        value.of = OF_FRACTION
        value.fraction = number
        memcpy(&value.word, &number, 8)


cdef void value_read(value_t* value, const header_t* header) noexcept:
    cdef uint8_t kind = header.kind
    cdef const uint8_t* at = header.value
    cdef uint32_t word
    cdef uint64_t words
    cdef float single
    cdef double number
    value.negative = False
    value.word = 0
    value.bytes = at
    value.length = header.value_length
    if kind == c"S" or kind == c"x":
        value.of = OF_STRING
        value.bytes = at + 4
        value.length -= 4
    elif kind == c"F" or kind == c"A":
        value.of = OF_LIST
        value.bytes = at + 4
        value.length -= 4
    elif kind == c"t":
        value.of = OF_BOOL
        value.word = at[0] != 0
    elif kind == c"D":
        value.of = OF_DECIMAL
    elif kind == c"V":
        value.of = OF_VOID
    elif kind == c"b":
        set_integer(value, <int8_t>at[0])
    elif kind == c"B":
        set_integer(value, at[0])
    elif kind == c"s" or kind == c"U":     # RabbitMQ's code, and the specification's
        set_integer(value, <int16_t>peek_u16(at))
    elif kind == c"u":
        set_integer(value, peek_u16(at))
    elif kind == c"I":
        set_integer(value, <int32_t>peek_u32(at))
    elif kind == c"i":
        set_integer(value, peek_u32(at))
    elif kind == c"T":
        value.of = OF_INTEGER
        value.word = peek_u64(at)
    elif kind == c"f":
        word = peek_u32(at)
        memcpy(&single, &word, 4)
        set_double(value, single)
    elif kind == c"d":
        words = peek_u64(at)
        memcpy(&number, &words, 8)
        set_double(value, number)
    else:
        set_integer(value, <int64_t>peek_u64(at))


cdef bint same_values(const header_t* a, const header_t* b, int depth) noexcept:
    cdef value_t x, y
    value_read(&x, a)
    value_read(&y, b)
    if x.of != y.of:
        return False
    if x.of == OF_INTEGER:
        return x.word == y.word and (x.negative == y.negative or x.word == 0)
    if x.of == OF_FRACTION:
        return x.fraction == y.fraction
    if x.of == OF_BOOL:
        return x.word == y.word
    if x.of == OF_LIST and x.length and y.length:
        return a.kind == b.kind and same_lists(&x, &y, a.kind == c"F", depth)
    # An empty table equals an empty array.
    return x.length == y.length and memcmp(x.bytes, y.bytes, x.length) == 0


# Nonempty tables and arrays are equal if they have the same fields in the same order, with the same kinds.
cdef bint same_lists(const value_t* a, const value_t* b, bint named, int depth) noexcept:
    cdef const uint8_t* x = a.bytes
    cdef const uint8_t* y = b.bytes
    cdef const uint8_t* x_end = x + a.length
    cdef const uint8_t* y_end = y + b.length
    cdef header_t one, other
    if depth == DEPTH_MAX:
        return a.length == b.length and memcmp(x, y, a.length) == 0
    while x != x_end and y != y_end:
        x = entry_read(&one, x, x_end, named)
        y = entry_read(&other, y, y_end, named)
        if x == NULL or y == NULL or name_order(&one, &other) != 0:
            return False
        if one.kind != other.kind and not (one.kind in (c"l", c"L") and other.kind in (c"l", c"L")):
            return False
        if not same_values(&one, &other, depth + 1):
            return False
    return x == x_end and y == y_end


# A field of a table, or of an array, whose fields have no names.
cdef const uint8_t* entry_read(header_t* header, const uint8_t* at, const uint8_t* end, bint named) noexcept:
    if named:
        return field_read(header, at, end)
    header.name = at
    header.name_length = 0
    header.kind = at[0]
    header.value = at + 1
    at = value_end(header.kind, header.value, end)
    if at != NULL:
        header.value_length = fit_u32(at - header.value)
    return at


cdef uint64_t header_hash(const header_t* header, bint presence, uint64_t seed) noexcept:
    cdef uint64_t hash = hash_bytes(header.name, header.name_length, seed)
    cdef value_t value
    if presence:
        return hash_word(hash, seed ^ 1)
    value_read(&value, header)
    if value.of == OF_STRING or value.of == OF_DECIMAL:
        return hash_word(hash ^ value.of, hash_bytes(value.bytes, value.length, seed))
    # The hash of a list depends only on its kind: lists are rare, and are compared anyway.
    return hash_word(hash ^ value.of, hash_word(value.word, seed))


# ---- for the cold verbs ----

def read_headers(bytes table not None):
    """The fields of a table in its wire encoding: (name, kind, encoded value), ordered by name.

    Raises ProtocolError (502) if it is not a table.
    """
    cdef headers_t headers = headers_t(NULL, 0, 0)
    cdef header_t* one
    cdef uint32_t i
    cdef list found = []
    try:
        if not headers_read(&headers, <const uint8_t*><const char*>table, <uint32_t>len(table)):
            raise ProtocolError(SYNTAX_ERROR, "a field table is cut off, or has a field of an unknown kind")
        for i in range(headers.count):
            one = &headers.items[i]
            found.append((PyBytes_FromStringAndSize(<const char*>one.name, one.name_length), chr(one.kind),
                          PyBytes_FromStringAndSize(<const char*>one.value, one.value_length)))
        return found
    finally:
        headers_free(&headers)


def sorted_table(bytes table not None):
    """The table with its fields ordered by name, so that equal arguments of bindings have equal bytes."""
    if not table:
        return table
    return b"".join([bytes((len(name),)) + name + ord(kind).to_bytes(1, "big") + value
                     for name, kind, value in read_headers(table)])
