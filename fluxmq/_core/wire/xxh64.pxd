# cython: language_level=3
"""XXH64, the digest of payloads: a fast hash of 64 bits, not secure against deliberate collisions.

    32 bytes at a time over four accumulators; then 8, 4 and 1 at a time; then the bits are mixed. Words are
    little-endian.

xxh64_of hashes bytes in one piece; a state takes them in pieces.
"""
from libc.stdint cimport uint8_t, uint64_t

cdef struct xxh64_t:
    uint64_t seed
    uint64_t total          # bytes taken
    uint64_t[4] sums
    uint8_t[32] rest        # total % 32 bytes that do not fill a stripe yet

cdef uint64_t xxh64_of(const uint8_t* at, size_t n, uint64_t seed) noexcept nogil

cdef void xxh64_begin(xxh64_t* state, uint64_t seed) noexcept nogil
cdef void xxh64_more(xxh64_t* state, const uint8_t* at, size_t n) noexcept nogil
cdef uint64_t xxh64_end(const xxh64_t* state) noexcept nogil        # the state may take further bytes
