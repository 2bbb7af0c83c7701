"""The objects that the records of one commit line name by number, and the records about messages applied to them. See
queue/line.pyx."""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fluxmq._core.queue.group cimport Group

cdef class LineObjects:
    cdef readonly dict logs         # number -> (state of its queue, Log)
    cdef readonly dict groups       # number -> Group
    cdef object on_produced         # (state, message): an APPEND may name its producer
    # Applies one record if it is about messages; 0: it is not, and nothing was done. body: with the number in front.
    # Raises CorruptError.
    cdef int take(self, uint8_t kind, const uint8_t* body, uint32_t length) except -1
    cdef int append(self, const uint8_t* body, uint32_t length) except -1
    cdef int trim(self, const uint8_t* body, uint32_t length) except -1
    cdef int of_group(self, uint8_t kind, const uint8_t* body, uint32_t length) except -1

cdef class Incoming(LineObjects):
    cdef public int64_t shift_ms
    # What consumers hold at that node: Group -> [(log, first offset, count, deliveries)], with numbers of this node.
    cdef readonly dict held
    cdef int of_owner(self, const uint8_t* body, uint32_t length) except -1
    cdef Group group_of(self, uint8_t kind, const uint8_t* body)
    cdef tuple log_of(self, uint64_t number)
