# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. A base class: see queue/relay.pxd."""

__all__ = ["Relay"]


cdef class Relay:
    """Machine. The way from a queue's relay to its owner."""

    cdef int publish(self, const body_t* body, uint8_t qos, int awaited, const pub_t* pub) except -1:
        raise NotImplementedError

    cdef int settle(self, object group, claim_t* claim, uint8_t verb, int64_t ms, bint counts, str reason) except -1:
        raise NotImplementedError

    cdef int barrier(self) except -1:
        raise NotImplementedError

    cdef int joined(self, object group, Member member, bint pulls) except -1:
        raise NotImplementedError

    cdef int left(self, object group, Member member) except -1:
        raise NotImplementedError

    cdef int rests(self, Member member) except -1:
        raise NotImplementedError

    cdef int pump(self) except -1:
        raise NotImplementedError
