# The journal's format on disk: constants, little-endian access, and the walk over records, for code that writes or
# reads batches in C. The drawing of the format is at the top of disk/journal_format.pyx.
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from fluxmq._core.wire.crc32c cimport crc32c_extend

cdef enum:
    FILE_HEADER_BYTES = 40
    BATCH_HEADER_BYTES = 32
    RECORD_HEADER_BYTES = 5
    FORMAT_VERSION = 1
    # Maximum size of a batch, which one write and one read must hold in memory. Clients are throttled long before this.
    BATCH_BYTES_MAX = 1 << 30


cdef inline void put_u32_le(uint8_t* at, uint32_t value) noexcept nogil:
    at[0] = <uint8_t>value
    at[1] = <uint8_t>(value >> 8)
    at[2] = <uint8_t>(value >> 16)
    at[3] = <uint8_t>(value >> 24)


cdef inline void put_u64_le(uint8_t* at, uint64_t value) noexcept nogil:
    put_u32_le(at, <uint32_t>value)
    put_u32_le(at + 4, <uint32_t>(value >> 32))


cdef inline uint32_t peek_u32_le(const uint8_t* at) noexcept nogil:
    return <uint32_t>at[0] | <uint32_t>at[1] << 8 | <uint32_t>at[2] << 16 | <uint32_t>at[3] << 24


cdef inline uint64_t peek_u64_le(const uint8_t* at) noexcept nogil:
    return <uint64_t>peek_u32_le(at) | <uint64_t>peek_u32_le(at + 4) << 32


# Start value of every CRC of a file: the file's own id, so that a batch is valid in one file only.
cdef inline uint32_t crc_seed(uint64_t file_id) noexcept nogil:
    cdef uint8_t raw[8]
    put_u64_le(raw, file_id)
    return crc32c_extend(0, raw, 8)


# The id of file `number` in a journal with this identity (the output function of splitmix64: adjacent numbers differ in
# half of their bits). It is not secret, but unique on a disk.
cdef inline uint64_t file_id_of(uint64_t identity, uint64_t number) noexcept nogil:
    cdef uint64_t z = identity + number * <uint64_t>0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * <uint64_t>0x94D049BB133111EB
    return z ^ (z >> 31)


# Reads the next record of a batch. 1: kind, body and length are set (body is borrowed from the batch) and `at` is
# behind it. 0: `at` had reached `end`. -1: the bytes are no records; in a batch with a valid CRC, that is a bug of the
# writer.
cdef inline int journal_next_record(const uint8_t** at, const uint8_t* end, uint8_t* kind, const uint8_t** body,
                                    uint32_t* length) noexcept nogil:
    cdef const uint8_t* here = at[0]
    if here == end:
        return 0
    if end - here < RECORD_HEADER_BYTES:
        return -1
    cdef uint32_t size = peek_u32_le(here + 1)
    if <size_t>(end - here) - RECORD_HEADER_BYTES < size:
        return -1
    kind[0] = here[0]
    body[0] = here + RECORD_HEADER_BYTES
    length[0] = size
    at[0] = here + RECORD_HEADER_BYTES + size
    return 1


cdef void encode_file_header(uint8_t* into, uint64_t number, uint64_t first_batch, uint64_t file_id) noexcept nogil
# `batch` points at BATCH_HEADER_BYTES of room, followed by `length` bytes of records.
cdef void seal_batch(uint8_t* batch, uint64_t number, uint64_t synced, uint32_t length, uint32_t records,
                     uint32_t seed) noexcept nogil
