"""Memory for the messages of a chunk: large blocks are mapped."""
from libc.stdint cimport uint8_t, uint32_t

cdef uint8_t* data_new(uint32_t room) except NULL
cdef void data_free(uint8_t* data, uint32_t room) noexcept
