# cython: language_level=3
"""The order of a queue's logs, and the structure of offsets.

A queue has `partitions` times `lanes` logs, partition-major; a lane is a priority. The top byte of an offset is its
lane, so a partition and an offset identify a message.
"""
from libc.stdint cimport uint32_t, uint64_t

cdef enum:
    LANE_SHIFT = 56


cdef inline uint64_t first_of(uint64_t lane) noexcept nogil:
    """The first offset of a lane."""
    return lane << LANE_SHIFT


cdef inline uint64_t lane_of(uint64_t offset) noexcept nogil:
    return offset >> LANE_SHIFT


cdef inline uint32_t log_index(uint32_t partition, uint32_t lane, uint32_t lanes) noexcept nogil:
    """The index in Queue.logs of a partition's lane."""
    return partition * lanes + lane
