# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. The cache of chunks that are also in segments, and their eviction."""
from libc.stdint cimport uint64_t

from fluxmq._core.memory.ledger cimport Ledger, cache_t
from fluxmq._core.queue.log cimport Log, chunk_t

__all__ = ["evict_cold"]


cdef void cache_in(void* which) noexcept:
    """Adds a chunk that may be evicted, behind all others."""
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
    """Removes a chunk from the list."""
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
    """Evicts chunks that are in segments and not in use, least recently read first, until at most `bytes_max` are left.
    Keeps those read in this turn and the last, so that a waiting reader sees its chunk before it is evicted. Returns
    the number of chunks examined."""
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
