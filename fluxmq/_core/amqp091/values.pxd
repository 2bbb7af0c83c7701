# cython: language_level=3
"""Converts a value of an AMQP field table to text for an MQTT user property, and back to the same bytes.

A code describes the text: the letter of the type (t b B s U u I i l L f d T D S A F V), or that letter and `64`, in
which case the text is base64 of the value's bytes, for values without a text form. Strings need no code.

    t       true, false                     A F     JSON, see below
    f d     shortest form                   D       unscaled value, `e-`, scale: 1250e-2
    V       nothing                         others  decimal digits
    x64     byte arrays; S64 not UTF-8; d64 not a number; A64 F64 not expressible in JSON

JSON of nested values: a string is S, true and false are t, null is V, an integer is l, a number with a point d, an
array A, an object F. Any other value is an object with one member, its type: {"T": 1700000000}. A table that looks like
that is written as {"F": {…}}.
"""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef struct room_t:         # output buffer; its owner reuses it, so it seldom grows
    uint8_t* data
    size_t size
    size_t used             # invariant: used <= size

cdef struct entry_t:        # of a field table, borrowed
    const uint8_t* name
    const uint8_t* value    # behind its length, where the type has one
    uint32_t size           # of value
    uint8_t name_length
    uint8_t kind            # the letter

# Reserves n bytes behind `used`, which is unchanged. Earlier pointers into the room become invalid.
cdef uint8_t* room_more(room_t* room, size_t n) except NULL
cdef int room_put(room_t* room, const void* data, size_t n) except -1
cdef void room_free(room_t* room) noexcept

# The next entry of a table between at[0] and end. 0: there is none, or it is invalid.
cdef bint next_entry(const uint8_t** at, const uint8_t* end, entry_t* entry) noexcept nogil
# The next item of an array, as an entry without a name.
cdef bint next_item(const uint8_t** at, const uint8_t* end, entry_t* entry) noexcept nogil
# Checks one entry, which must extend to the end, with nested values: a client made it, other clients read it.
cdef bint entry_valid(const uint8_t* at, const uint8_t* end) noexcept nogil
# Writes name, letter, length and value.
cdef int put_entry(room_t* out, const entry_t* entry) except -1

# Writes the text. Returns the length of the code, at most 3; 0: a string.
cdef int value_text(room_t* out, const entry_t* entry, char* code) except -1
# Writes letter and value. 0: the text is invalid for the code, and nothing is written.
cdef bint text_value(room_t* out, const uint8_t* code, uint32_t code_length, const uint8_t* text,
                     uint32_t length) except -1
# Of every integer type but T.
cdef bint read_integer(const entry_t* entry, int64_t* value) noexcept nogil
# Decimal digits without leading zeros, at most `maximum`.
cdef bint read_decimal(const uint8_t* text, uint32_t length, uint64_t maximum, uint64_t* out) noexcept nogil
