"""Header tables for headers exchanges: the fields of a table sorted by name, and the comparison of values.

A table is given in its wire encoding without its length: u8 length, name, u8 kind, value; repeated. Nothing is copied:
a header_t points into these bytes.

Values are compared as RabbitMQ compares them: numbers by value whatever their kinds (1 as a byte, as 64 bits, as a
double), `S` and `x` by their bytes, tables and arrays field by field, in which the kinds must be the same too. A
binding's field without a value (`V`) matches any message that has a field with that name.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef enum:
    MATCH_ALL = 1               # x-match: all fields of the binding; otherwise any
    MATCH_WITH_X = 2            # fields that begin with `x-` count too

cdef struct header_t:
    const uint8_t* name
    const uint8_t* value        # what follows its kind
    uint32_t value_length
    uint8_t name_length
    uint8_t kind

cdef struct headers_t:          # sorted by name; of one name, as on the wire
    header_t* items
    uint32_t count
    uint32_t capacity

# Reads a table, replacing earlier contents. True: all of it; False: it is malformed, and the fields before that are
# set.
cdef bint headers_read(headers_t* headers, const uint8_t* table, uint32_t length) except -1
cdef void headers_free(headers_t* headers) noexcept
# Extracts the fields that a binding compares from its arguments, without `x-match` and ignored ones. Returns MATCH_*.
cdef uint8_t headers_pattern(headers_t* arguments) noexcept
cdef bint headers_match(const headers_t* pattern, uint8_t how, const headers_t* headers) noexcept
# Equal headers have equal hashes. presence: of the name only, for fields of bindings without a value.
cdef uint64_t header_hash(const header_t* header, bint presence, uint64_t seed) noexcept
