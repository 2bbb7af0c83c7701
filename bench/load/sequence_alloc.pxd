"""Allocation of Sequences: cold, and apart from sequence.pxd so that that one is only the rules. Header only."""
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from bench.load.sequence cimport LAYOUT_ALL, LAYOUT_PAIRS, LAYOUT_SHARED, Layout, Ring, Sequences, Track

cdef inline size_t sequences_tracks(Sequences* s) noexcept nogil:
    if s.layout == LAYOUT_PAIRS:
        return s.subscribers
    if s.layout == LAYOUT_SHARED:
        return <size_t>s.groups * s.publishers
    return <size_t>s.subscribers * s.publishers

cdef inline void sequences_free(Sequences* s) noexcept nogil:
    cdef size_t i
    if s.tracks != NULL:
        for i in range(sequences_tracks(s)):
            free(s.tracks[i].gaps)
    if s.rings != NULL:
        for i in range(sequences_tracks(s)):
            free(s.rings[i].words)
    free(s.tracks)
    free(s.rings)
    free(s.highest)
    memset(s, 0, sizeof(Sequences))

cdef inline int sequences_init(Sequences* s, Layout layout, uint32_t publishers, uint32_t subscribers,
                               uint32_t groups, uint64_t words) noexcept nogil:
    """0, or -1 without memory. words: length of a ring in words of 64 numbers, a power of two."""
    cdef size_t i
    memset(s, 0, sizeof(Sequences))
    s.layout = layout
    s.publishers = publishers
    s.subscribers = subscribers
    s.groups = groups
    if layout != LAYOUT_SHARED:
        s.tracks = <Track*>calloc(sequences_tracks(s) + 1, sizeof(Track))
        return 0 if s.tracks != NULL else -1
    s.rings = <Ring*>calloc(sequences_tracks(s) + 1, sizeof(Ring))
    s.highest = <uint64_t*>calloc(<size_t>subscribers * publishers + 1, sizeof(uint64_t))
    if s.rings == NULL or s.highest == NULL:
        sequences_free(s)
        return -1
    for i in range(sequences_tracks(s)):
        s.rings[i].mask = words - 1
        s.rings[i].words = <uint64_t*>calloc(words, sizeof(uint64_t))
        if s.rings[i].words == NULL:
            sequences_free(s)
            return -1
    return 0
