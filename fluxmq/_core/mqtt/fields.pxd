# cython: language_level=3
"""Fields of cold MQTT packets as Python values: reads that raise, writes that check.

A reader takes one value of section 1.5 from a Cursor over the body of a complete packet, so that a short read is a
Malformed Packet (ProtocolError 0x81). `what` names the field in the error. A writer returns the wire bytes of one
value and raises UsageError if the value does not fit.
"""
from libc.stdint cimport uint8_t

from fluxmq._core.wire.primitives cimport Cursor

cdef object malformed(str text)         # always raises ProtocolError(0x81, text)
cdef object forbidden(str text)         # always raises ProtocolError(0x82, text)

cdef int read_u8(Cursor* c, str what) except -1
cdef int read_u16(Cursor* c, str what) except -1
cdef object read_u32(Cursor* c, str what)
cdef object read_varint(Cursor* c, str what)
cdef str read_text(Cursor* c, str what)       # checked: UTF-8, no U+0000
cdef bytes read_binary(Cursor* c, str what)
cdef bytes read_rest(Cursor* c)
cdef int expect_end(Cursor* c, str what) except -1    # raises if bytes are left over

cdef bytes write_number(object value, int size, str what)    # big-endian, size bytes
cdef bytes write_varint(object value, str what)
cdef bytes write_text(object value, str what)
cdef bytes write_binary(object value, str what)
