# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. What is in memory although segments have it too, and gives way when that is too much."""
from libc.stdint cimport uint64_t

from fluxmq._core.memory.ledger cimport Ledger, cache_t
from fluxmq._core.queue.log cimport Log, chunk_t

__all__ = ["evict_cold"]


cdef void cache_in(void* which) noexcept:
    """It may go from now on, after all the others."""
    cdef chunk_t* chunk = <chunk_t*>which
    cdef cache_t* cache = chunk.cache
    if chunk.cached or cache == NULL:
        return
    chunk.cached = 1
    chunk.warmer = NULL
    chunk.colder = <chunk_t*>cache.warmest
    if cache.warmest != NULL:
        (<chunk_t*>cache.warmest).warmer = chunk
    else:
        cache.coldest = which
    cache.warmest = which
    cache.bytes += chunk.room


cdef void cache_out(void* which) noexcept:
    """It stays."""
    cdef chunk_t* chunk = <chunk_t*>which
    cdef cache_t* cache = chunk.cache
    if not chunk.cached:
        return
    chunk.cached = 0
    if chunk.colder != NULL:
        chunk.colder.warmer = chunk.warmer
    else:
        cache.coldest = <void*>chunk.warmer
    if chunk.warmer != NULL:
        chunk.warmer.colder = chunk.colder
    else:
        cache.warmest = <void*>chunk.colder
    chunk.colder = chunk.warmer = NULL
    cache.bytes -= chunk.room


def evict_cold(Ledger ledger not None, uint64_t bytes_max) -> int:
    """Chunks of all logs that segments have and nobody holds go, those read longest ago first, until at most so many
    bytes are left of them. Those of this turn and the last stay, or what somebody waits for could go before he sees it.
    Returns how many chunks were looked at."""
    cdef chunk_t* chunk
    cdef Log log
    cdef Py_ssize_t looked = 0
    while ledger.cache.bytes > bytes_max:
        looked += 1
        chunk = <chunk_t*>ledger.cache.coldest
        if chunk.used_turn + 1 >= ledger.node.turn:
            break
        log = <Log>chunk.log
        log.take_out(log.chunk_of(chunk.covers - 1))
        log.found = 0
    return looked
