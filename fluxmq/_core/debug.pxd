"""Checks of every build (ensure), and of a debug build (check); and counts of live objects. See debug.h."""
from libc.stdint cimport int64_t

cdef extern from "debug.h" nogil:
    int FLUXMQ_DEBUG_BUILD
    void ensure "fluxmq_ensure"(bint condition) noexcept
    void check "fluxmq_check"(bint condition) noexcept
    void count_live "fluxmq_count"(int64_t counter, int by) noexcept        # a macro: `counter` is the variable itself

# What is allocated outside of Python and counted by hand. The one instance is message.live.
cdef struct live_t:
    int64_t messages
    int64_t blobs
    int64_t identifiers
    int64_t links
    int64_t chunks      # those in pools not counted
    int64_t routes
    int64_t waits       # for tickets of several commit lines
