"""Checks of every build (ensure), and of a debug build (check); and counts of live objects. See debug.h."""
from libc.stdint cimport int64_t

cdef extern from "debug.h" nogil:
    int FLUXMQ_DEBUG_BUILD
    void ensure "fluxmq_ensure"(bint condition) noexcept
    void check "fluxmq_check"(bint condition) noexcept
    void count_live "fluxmq_count"(int64_t counter, int by) noexcept        # a macro: `counter` is the variable itself

# Whether a table {(state, event): state after it} has a step between two states, given by their numbers in `states`.
# For a C function that check() calls: Python objects in the argument of check() are loaded in every build.
cdef inline bint is_transition(object states, dict transitions, int state, int after) noexcept:
    cdef tuple step
    for step, result in transitions.items():
        if step[0] == states[state] and result == states[after]:
            return 1
    return 0

# What is allocated outside of Python and counted by hand. The one instance is message.live.
cdef struct live_t:
    int64_t messages
    int64_t blobs
    int64_t identifiers
    int64_t links
    int64_t chunks      # those in pools not counted
    int64_t routes
    int64_t waits       # for tickets of several commit lines
    int64_t frames      # for other nodes, not acknowledged
