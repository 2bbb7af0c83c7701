# CRC32-C for the compiled modules; the reasons stand in crc32c.h.
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t

cdef extern from "wire/crc32c.h" nogil:
    # Finished CRC of what `crc` covers followed by data[0:length]; 0 begins.
    uint32_t crc32c_extend(uint32_t crc, const uint8_t* data, size_t length) noexcept
    # The way without the processor's instruction, for tests that compare the two.
    uint32_t crc32c_by_table(uint32_t crc, const uint8_t* data, size_t length) noexcept
