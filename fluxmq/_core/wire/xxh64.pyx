# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""XXH64. See wire/xxh64.pxd."""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

__all__ = ["xxh64"]

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #define FLUXMQ_XXH_1 UINT64_C(0x9E3779B185EBCA87)
    #define FLUXMQ_XXH_2 UINT64_C(0xC2B2AE3D27D4EB4F)
    #define FLUXMQ_XXH_3 UINT64_C(0x165667B19E3779F9)
    #define FLUXMQ_XXH_4 UINT64_C(0x85EBCA77C2B2AE63)
    #define FLUXMQ_XXH_5 UINT64_C(0x27D4EB2F165667C5)
    static inline uint64_t fluxmq_le64(const uint8_t* at) {
        uint64_t word;
        memcpy(&word, at, 8);
    #if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        word = __builtin_bswap64(word);
    #endif
        return word;
    }
    static inline uint32_t fluxmq_le32(const uint8_t* at) {
        uint32_t word;
        memcpy(&word, at, 4);
    #if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        word = __builtin_bswap32(word);
    #endif
        return word;
    }
    """
    const uint64_t P1 "FLUXMQ_XXH_1"
    const uint64_t P2 "FLUXMQ_XXH_2"
    const uint64_t P3 "FLUXMQ_XXH_3"
    const uint64_t P4 "FLUXMQ_XXH_4"
    const uint64_t P5 "FLUXMQ_XXH_5"
    uint64_t le64 "fluxmq_le64"(const uint8_t* at) noexcept nogil
    uint32_t le32 "fluxmq_le32"(const uint8_t* at) noexcept nogil


cdef inline uint64_t rotated(uint64_t word, int by) noexcept nogil:
    return word << by | word >> (64 - by)


cdef inline uint64_t round_of(uint64_t total, uint64_t word) noexcept nogil:
    return rotated(total + word * P2, 31) * P1


cdef inline void start(uint64_t* sums, uint64_t seed) noexcept nogil:
    sums[0] = seed + P1 + P2
    sums[1] = seed + P2
    sums[2] = seed
    sums[3] = seed - P1


cdef inline const uint8_t* stripes(uint64_t* sums, const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Hashes 32 bytes at a time; returns the first byte that is left."""
    cdef uint64_t a = sums[0], b = sums[1], c = sums[2], d = sums[3]
    while end - at >= 32:
        a = round_of(a, le64(at))
        b = round_of(b, le64(at + 8))
        c = round_of(c, le64(at + 16))
        d = round_of(d, le64(at + 24))
        at += 32
    sums[0] = a
    sums[1] = b
    sums[2] = c
    sums[3] = d
    return at


cdef inline uint64_t merged(const uint64_t* sums) noexcept nogil:
    cdef uint64_t hashed = rotated(sums[0], 1) + rotated(sums[1], 7) + rotated(sums[2], 12) + rotated(sums[3], 18)
    cdef int i
    for i in range(4):
        hashed = (hashed ^ round_of(0, sums[i])) * P1 + P4
    return hashed


cdef inline uint64_t finished(uint64_t hashed, const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Hashes the last bytes, fewer than 32, and mixes the bits."""
    while end - at >= 8:
        hashed = rotated(hashed ^ round_of(0, le64(at)), 27) * P1 + P4
        at += 8
    if end - at >= 4:
        hashed = rotated(hashed ^ le32(at) * P1, 23) * P2 + P3
        at += 4
    while at != end:
        hashed = rotated(hashed ^ at[0] * P5, 11) * P1
        at += 1
    hashed = (hashed ^ hashed >> 33) * P2
    hashed = (hashed ^ hashed >> 29) * P3
    return hashed ^ hashed >> 32


cdef uint64_t xxh64_of(const uint8_t* at, size_t n, uint64_t seed) noexcept nogil:
    cdef uint64_t[4] sums
    cdef const uint8_t* end = at + n
    cdef uint64_t hashed = seed + P5
    if n >= 32:
        start(sums, seed)
        at = stripes(sums, at, end)
        hashed = merged(sums)
    return finished(hashed + n, at, end)


cdef void xxh64_begin(xxh64_t* state, uint64_t seed) noexcept nogil:
    state.seed = seed
    state.total = 0
    start(state.sums, seed)


cdef void xxh64_more(xxh64_t* state, const uint8_t* at, size_t n) noexcept nogil:
    cdef size_t held = state.total % 32, more
    cdef const uint8_t* end = at + n
    if n == 0:
        return
    state.total += n
    if held:
        more = min(n, 32 - held)
        memcpy(state.rest + held, at, more)
        at += more
        if held + more < 32:
            return
        stripes(state.sums, state.rest, state.rest + 32)
    at = stripes(state.sums, at, end)
    memcpy(state.rest, at, <size_t>(end - at))


cdef uint64_t xxh64_end(const xxh64_t* state) noexcept nogil:
    cdef uint64_t hashed = merged(state.sums) if state.total >= 32 else state.seed + P5
    return finished(hashed + state.total, state.rest, state.rest + state.total % 32)


def xxh64(data: object, seed: int = 0, *, pieces: tuple[int, ...] = ()) -> int:
    """XXH64 of bytes, 0 to 2^64 - 1.

    pieces: ascending positions at which the bytes are split; they do not change the result.
    """
    cdef Py_buffer view
    cdef xxh64_t state
    cdef size_t last = 0, cut
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if not pieces:
            return xxh64_of(<const uint8_t*>view.buf, <size_t>view.len, seed)
        xxh64_begin(&state, seed)
        for cut in (*pieces, view.len):
            if cut < last or cut > <size_t>view.len:
                raise ValueError("the pieces must rise and lie within the data")
            xxh64_more(&state, <const uint8_t*>view.buf + last, cut - last)
            last = cut
        return xxh64_end(&state)
    finally:
        PyBuffer_Release(&view)
