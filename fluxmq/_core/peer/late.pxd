"""Records to another node that wait for commits here: deliveries for their claims, answers for what they say is done.

They wait in a queue for each commit line, in order, and gather when it has committed what they wait for: so a line that
stands still holds back its own only. A line other than the journal may have a quarter of the window waiting. When
commits are given up, because this node does not lead the line any more, of what waited only answers are sent, as
refusals.
"""
from cpython.ref cimport PyObject
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from fluxmq._core.memory.commits cimport Waiter, ticket_t
from fluxmq._core.peer.stream cimport FrameStream

cdef struct late_t:             # records that wait for one commit
    uint64_t position
    size_t end                  # of their bytes in Late.data

cdef class Late(Waiter):
    """Records of a stream that wait for commits of one line, in order."""
    cdef void* stream           # borrowed; NULL once it is gone
    cdef PyObject* next         # the stream's Late of another line, owned
    cdef uint32_t line
    cdef uint8_t* data
    cdef size_t first           # those before have left
    cdef size_t length
    cdef size_t space
    cdef late_t* blocks
    cdef uint32_t blocks_first
    cdef uint32_t blocks_count
    cdef uint32_t blocks_room

    cdef uint8_t* room(self, size_t n, uint64_t position) except NULL
    cdef int put(self, const uint8_t* end) except -1
    cdef size_t upto(self, uint64_t position) noexcept
    cdef int decided(self, uint64_t position, size_t end) except -1
    cdef void drop(self) noexcept

cdef class LateStream(FrameStream):
    cdef PyObject* late                 # a list of Late, owned, the last one used in front; the garbage collector
                                        # must not clear it before this
    cdef PyObject* late_writing         # the one that late_space gave room of, borrowed; NULL: it was of `gather`
    cdef readonly size_t late_bytes     # of all; journal_bytes of these: a disk that is slow slows all down
    cdef public bytes given_up_answer   # sent instead of an answer whose commit was given up; None: nothing is

    # Room for a record that waits for `ticket`; late_put adds what was written.
    cdef uint8_t* late_space(self, size_t n, ticket_t ticket) except NULL
    cdef int late_put(self, const uint8_t* end) except -1
    # Whether so much waits for another line than the journal that its queues deliver nothing more.
    cdef bint line_full(self, uint32_t line)

    cdef Late late_of(self, uint32_t line, bint make)
    cdef int gather_late(self, Late late, size_t end) except -1
    cdef int refuse_late(self, Late late, size_t end) except -1
    cdef void count_late(self, Late late, Py_ssize_t change) noexcept
    cdef int relieve(self, uint32_t line) except -1
