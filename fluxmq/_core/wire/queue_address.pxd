# cython: language_level=3
"""The address of a queue as a topic: `$queue/<name>`; below it, `$queue/<name>/<routing key>`.

Modules that cimport the functions inline them; the module itself is for Python code.
"""
from libc.stdint cimport uint8_t
from libc.string cimport memcmp, memcpy

cdef extern from *:
    """
    #define FLUXMQ_QUEUE_PREFIX "$queue/"
    """
    const char* PREFIX "FLUXMQ_QUEUE_PREFIX"

cdef enum:
    QUEUE_PREFIX_BYTES = 7


cdef inline bint has_queue_prefix(const uint8_t* topic, size_t n) noexcept nogil:
    """Whether a topic is `$queue/` and at least one byte more."""
    return n > QUEUE_PREFIX_BYTES and memcmp(topic, PREFIX, QUEUE_PREFIX_BYTES) == 0


cdef inline uint8_t* put_queue_address(uint8_t* at, const void* name, size_t n) noexcept nogil:
    """Writes `$queue/<name>`; returns where it ends."""
    memcpy(at, PREFIX, QUEUE_PREFIX_BYTES)
    memcpy(at + QUEUE_PREFIX_BYTES, name, n)
    return at + QUEUE_PREFIX_BYTES + n
