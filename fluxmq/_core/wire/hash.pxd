# cython: language_level=3
# A keyed 64-bit hash of byte strings for the core's own tables. Header only: every cimporter inlines it.
#
# Clients choose topics, filters and client identifiers, so chosen keys must not be able to collide in a table.
# The construction is the folded multiply: two 64-bit words, each xored with secret key material, are multiplied to
# 128 bits and the halves xored. Both factors are keyed: with a public constant on either side a peer could send that
# constant, make the product zero whatever the seed, and collide at will. The result never leaves the process and is
# never stored: it differs with byte order and may change between versions.
#
# 8 bytes or fewer cost two multiplications, then one more per further 16 bytes. Nothing outside data[0:length] is read.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from *:
    """
    #ifndef FLUXMQ_HASH_FOLD
    #define FLUXMQ_HASH_FOLD
    #include <stdint.h>
    static inline uint64_t fluxmq_fold(uint64_t a, uint64_t b) {
        unsigned __int128 product = (unsigned __int128)a * b;
        return (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    #define FLUXMQ_HASH_K1 UINT64_C(0x9E6C63D0876A9A47)
    #define FLUXMQ_HASH_K2 UINT64_C(0xD1B54A32D192ED03)
    #define FLUXMQ_HASH_K3 UINT64_C(0xA3EC647659359ACD)
    #endif
    """
    # 64 x 64 -> 128 bits, high half xor low half.
    uint64_t fold "fluxmq_fold" (uint64_t a, uint64_t b) noexcept nogil
    # Arbitrary odd words with about half of their bits set: they only keep the two keys made of one seed apart.
    const uint64_t HASH_K1 "FLUXMQ_HASH_K1"
    const uint64_t HASH_K2 "FLUXMQ_HASH_K2"
    const uint64_t HASH_K3 "FLUXMQ_HASH_K3"


cdef inline uint64_t load_u64(const uint8_t* data) noexcept nogil:
    cdef uint64_t word
    memcpy(&word, data, 8)
    return word


cdef inline uint64_t load_u32(const uint8_t* data) noexcept nogil:
    cdef uint32_t word
    memcpy(&word, data, 4)
    return word


# seed: any 64 secret bits, constant for the life of the table.
cdef inline uint64_t hash_bytes(const uint8_t* data, size_t length, uint64_t seed) noexcept nogil:
    cdef uint64_t key = (seed << 32 | seed >> 32) ^ HASH_K2
    cdef uint64_t state = seed ^ HASH_K1
    cdef const uint8_t* end = data + length
    if length <= 8:
        # The word in front and only the key behind: the length, mixed in at the end, tells the short ones apart.
        if length == 8:
            state ^= load_u64(data)
        elif length >= 4:
            state ^= load_u32(data) | load_u32(end - 4) << 32
        elif length > 0:
            state ^= <uint64_t>data[0] | <uint64_t>data[length >> 1] << 8 | <uint64_t>data[length - 1] << 16
        state = fold(state, key)
    else:
        while end - data > 16:
            state = fold(state ^ load_u64(data), key ^ load_u64(data + 8))
            data += 16
        # The last 16 bytes, overlapping what the loop has read; of 9 to 15 bytes, the first and the last eight.
        data = end - 16 if length > 16 else data
        state = fold(state ^ load_u64(data), key ^ load_u64(end - 8))
    return fold(state ^ key, HASH_K3 ^ length)


# For pointers and for hashes that need another input mixed in: one multiplication.
cdef inline uint64_t hash_word(uint64_t word, uint64_t seed) noexcept nogil:
    return fold(word ^ seed, HASH_K3)
