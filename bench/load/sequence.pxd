"""What was seen of a publisher's sequence numbers 0, 1, 2, …: loss, duplicates, order. Header only.

Two shapes, after what the receiver is promised:
- Track: one subscriber receives all messages of one publisher in order. The common case is one comparison; numbers
  that were passed over are kept as ranges, so a late number is told from a repeated one exactly.
- Ring: a shared subscription. Its members receive disjoint parts, over sockets read at different times, so numbers
  arrive in any order: a bit per number, in a ring as long as the numbers can be apart.
"""
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memmove

cdef extern from * nogil:
    int popcountll "__builtin_popcountll"(unsigned long long) noexcept

cdef enum:
    GAPS_MAX = 4096         # ranges remembered per track; the oldest is written off as lost beyond that
    RING_WORDS_MIN = 1024   # 65 536 numbers

cdef enum Verdict:
    SEEN_FIRST = 0          # the next number, or one that was skipped over before it
    SEEN_LATE = 1           # first time seen, but after a larger number: an order violation on a Track
    SEEN_AGAIN = 2

cdef struct Gap:
    uint64_t first          # both inclusive; first <= last
    uint64_t last

cdef struct Track:
    uint64_t next           # invariant: every number below is seen, in a gap or written off
    uint64_t written_off    # numbers of ranges that were forgotten
    Gap* gaps               # ascending, disjoint, all below next
    uint32_t gaps_count
    uint32_t gaps_room

cdef struct Ring:
    uint64_t base           # multiple of 64; every number below is seen or written off
    uint64_t top            # one past the largest number seen
    uint64_t written_off
    uint64_t* words         # bit n of word (n / 64) & mask: number n was seen, for base <= n < base + 64 (mask + 1)
    uint64_t mask

cdef inline int gap_insert(Track* t, uint32_t at, uint64_t first, uint64_t last) noexcept nogil:
    """0, or -1 without memory (the range is then written off)."""
    cdef Gap* grown
    if t.gaps_count == GAPS_MAX:
        t.written_off += t.gaps[0].last - t.gaps[0].first + 1
        t.gaps_count -= 1
        memmove(t.gaps, t.gaps + 1, t.gaps_count * sizeof(Gap))
        at = at - 1 if at > 0 else 0
    if t.gaps_count == t.gaps_room:
        grown = <Gap*>realloc(t.gaps, (t.gaps_room * 2 + 8) * sizeof(Gap))
        if grown == NULL:
            t.written_off += last - first + 1
            return -1
        t.gaps = grown
        t.gaps_room = t.gaps_room * 2 + 8
    memmove(t.gaps + at + 1, t.gaps + at, (t.gaps_count - at) * sizeof(Gap))
    t.gaps[at].first = first
    t.gaps[at].last = last
    t.gaps_count += 1
    return 0

cdef inline Verdict track_slow(Track* t, uint64_t n) noexcept nogil:
    cdef uint32_t low = 0
    cdef uint32_t high = t.gaps_count
    cdef uint32_t mid
    cdef Gap* g
    cdef uint64_t last
    if n > t.next:
        gap_insert(t, t.gaps_count, t.next, n - 1)
        t.next = n + 1
        return SEEN_FIRST
    while low < high:
        mid = (low + high) // 2
        if t.gaps[mid].last < n:
            low = mid + 1
        else:
            high = mid
    if low == t.gaps_count or t.gaps[low].first > n:
        return SEEN_AGAIN
    g = t.gaps + low
    if g.first == n and g.last == n:
        t.gaps_count -= 1
        memmove(g, g + 1, (t.gaps_count - low) * sizeof(Gap))
    elif g.first == n:
        g.first += 1
    elif g.last == n:
        g.last -= 1
    else:
        last = g.last
        g.last = n - 1
        gap_insert(t, low + 1, n + 1, last)
    return SEEN_LATE

cdef inline Verdict track_take(Track* t, uint64_t n) noexcept nogil:
    if n == t.next:
        t.next = n + 1
        return SEEN_FIRST
    return track_slow(t, n)

cdef inline uint64_t track_lost(Track* t, uint64_t sent) noexcept nogil:
    """How many of the numbers below `sent` never came."""
    cdef uint64_t lost = t.written_off
    cdef uint32_t i
    for i in range(t.gaps_count):
        lost += t.gaps[i].last - t.gaps[i].first + 1
    if sent > t.next:
        lost += sent - t.next
    return lost

cdef inline void ring_pass(Ring* r, uint64_t base) noexcept nogil:
    """Move the base up to `base`; what was not seen below it is lost."""
    cdef uint64_t* word
    while r.base < base:
        word = r.words + ((r.base >> 6) & r.mask)
        r.written_off += 64 - popcountll(word[0])
        word[0] = 0
        r.base += 64

cdef inline Verdict ring_take(Ring* r, uint64_t n) noexcept nogil:
    cdef uint64_t room = (r.mask + 1) << 6
    cdef uint64_t* word
    cdef uint64_t bit = <uint64_t>1 << (n & 63)
    if n < r.base:
        return SEEN_AGAIN
    if n >= r.base + room:
        ring_pass(r, ((n >> 6) << 6) + 64 - room)
    word = r.words + ((n >> 6) & r.mask)
    if word[0] & bit:
        return SEEN_AGAIN
    word[0] |= bit
    if n >= r.top:
        r.top = n + 1
    while r.words[(r.base >> 6) & r.mask] == <uint64_t>-1:
        ring_pass(r, r.base + 64)
    return SEEN_FIRST

cdef inline uint64_t ring_lost(Ring* r, uint64_t sent) noexcept nogil:
    """How many of the numbers below `sent` never came; `sent` >= top."""
    cdef uint64_t lost = r.written_off
    cdef uint64_t n = r.base
    if sent < r.base:
        return lost
    lost += sent - r.base
    while n < r.top:
        lost -= popcountll(r.words[(n >> 6) & r.mask])
        n += 64
    return lost


cdef enum Layout:
    LAYOUT_ALL = 0          # each subscriber receives from each publisher
    LAYOUT_PAIRS = 1        # subscriber i receives from publisher i
    LAYOUT_SHARED = 2       # each group of subscribers, as one, receives from each publisher

cdef struct Sequences:
    Layout layout
    uint32_t publishers
    uint32_t subscribers
    uint32_t groups         # LAYOUT_SHARED: subscriber i belongs to group i % groups
    Track* tracks           # [subscriber, publisher], or [subscriber] for pairs; NULL when shared
    Ring* rings             # [group, publisher]; NULL unless shared
    uint64_t* highest       # [subscriber, publisher]: one past the largest number seen; NULL unless shared
    uint64_t first          # seen for the first time
    uint64_t late           # of these, after a larger one of the same publisher at the same subscriber
    uint64_t again
    uint64_t foreign        # from a publisher that this subscriber must not hear

cdef inline bint sequences_take(Sequences* s, uint32_t subscriber, uint32_t publisher, uint64_t n) noexcept nogil:
    """Count one delivery; 1 when it is the first of this message to this receiver."""
    cdef Verdict verdict
    cdef uint64_t* highest
    if s.layout == LAYOUT_ALL:
        verdict = track_take(s.tracks + <size_t>subscriber * s.publishers + publisher, n)
    elif s.layout == LAYOUT_PAIRS:
        if publisher != subscriber:
            s.foreign += 1
            return 0
        verdict = track_take(s.tracks + subscriber, n)
    else:
        verdict = ring_take(s.rings + <size_t>(subscriber % s.groups) * s.publishers + publisher, n)
        highest = s.highest + <size_t>subscriber * s.publishers + publisher
        if n >= highest[0]:
            highest[0] = n + 1
        elif verdict == SEEN_FIRST:
            verdict = SEEN_LATE
    if verdict == SEEN_AGAIN:
        s.again += 1
        return 0
    s.first += 1
    if verdict == SEEN_LATE:
        s.late += 1
    return 1
