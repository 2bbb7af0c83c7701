# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""For benchmarks: routes asked for from a loop in C, as a publisher's connection does."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from fluxmq._core.exchange.exchange cimport Exchanges, Route

__all__ = ["find_rounds"]


def find_rounds(Exchanges exchanges not None, bytes name not None, list keys not None, bytes headers not None,
                int rounds) -> int:
    """Asks for each key `rounds` times; returns how many queues were found in all."""
    cdef uint64_t found = 0
    cdef Route route
    cdef bytes key
    cdef int i
    for i in range(rounds):
        for key in keys:
            route = exchanges.find(<const uint8_t*><const char*>name, <uint32_t>len(name),
                                   <const uint8_t*><const char*>key, <uint32_t>len(key),
                                   <const uint8_t*><const char*>headers, <uint32_t>len(headers))
            found += <uint64_t>len(route.queues)
    return found
