# cython: language_level=3
"""Counters of live objects: what is allocated and not yet freed. They count in a build with FLUXMQ_DEBUG=1 only; tests
read them through fluxmq._core.testing.live() and assert that they come back to where they were.

Header only.
"""
from libc.stdint cimport int64_t

cdef extern from *:
    """
    #ifdef FLUXMQ_DEBUG
    #define FLUXMQ_COUNTS 1
    #define fluxmq_count(counter, n) ((counter) += (n))
    #else
    #define FLUXMQ_COUNTS 0
    #define fluxmq_count(counter, n) ((void)(counter))
    #endif
    """
    bint FLUXMQ_COUNTS
    void fluxmq_count(int64_t counter, int n) noexcept nogil
