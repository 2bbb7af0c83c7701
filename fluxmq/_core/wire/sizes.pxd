# cython: language_level=3
"""Numbers into fewer bits. Header only; see sizes.h.

A size has 64 bits where it is counted (size_t, Py_ssize_t, a difference of pointers) and 8, 16 or 32 where it is kept
or written. Between them stands one of these, and never a cast: a cast of a size that is larger than was thought gives a
small number without a word, and what is then copied is not (tests/tidy/test_narrowing.py finds casts).

    fit_*   the number fits, or the process ends in front of what it would corrupt. What a peer or a file announces is
            checked against its limit before, with an error that the peer gets: this is for our own mistakes
    low_*   the lowest bits, on purpose: of a hash, of an integer that is written byte by byte, of a counter that wraps
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "wire/sizes.h" nogil:
    uint8_t fit_u8 "fluxmq_fit_u8"(uint64_t n) noexcept
    uint16_t fit_u16 "fluxmq_fit_u16"(uint64_t n) noexcept
    uint32_t fit_u32 "fluxmq_fit_u32"(uint64_t n) noexcept
    int32_t fit_i32 "fluxmq_fit_i32"(uint64_t n) noexcept      # at least 0

    uint8_t low_u8 "fluxmq_low_u8"(uint64_t n) noexcept
    uint16_t low_u16 "fluxmq_low_u16"(uint64_t n) noexcept
    uint32_t low_u32 "fluxmq_low_u32"(uint64_t n) noexcept
