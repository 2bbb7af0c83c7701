# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. A member of a group that delivers to Python."""
cimport cython
from libc.stdint cimport int64_t, uint32_t

from fluxmq._core.queue.claim cimport Member, claim_t
from fluxmq._core.queue.cursor cimport Cursor
from fluxmq._core.queue.log cimport record_t

__all__ = ["PyMember"]


@cython.final
cdef class PyMember(Member):
    """A member in Python, for cold uses and tests.

    on_deliver: called with (log number, offset, deliveries); False refuses. on_withdraw: called with
    the same when a claim is taken from the member. room: its credit.
    """
    cdef public uint32_t room
    cdef public object on_deliver
    cdef public object on_withdraw

    def __init__(self, on_deliver, on_withdraw=None, uint32_t room=1, int64_t lease_ms=0):
        self.on_deliver = on_deliver
        self.on_withdraw = on_withdraw
        self.room = room
        self.lease_ms = lease_ms

    cdef uint32_t credit(self) noexcept:
        return self.room - self.held if self.room > self.held else 0

    cdef int deliver(self, claim_t* claim, const record_t* record) except -1:
        return self.on_deliver((<Cursor>claim.cursor).log.number, claim.offset, claim.deliveries) is not False

    cdef int withdraw(self, claim_t* claim) except -1:
        if self.on_withdraw is not None:
            self.on_withdraw((<Cursor>claim.cursor).log.number, claim.offset, claim.deliveries)
        return 0
