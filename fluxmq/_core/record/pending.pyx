# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""Operations without acknowledgement. See record/pending.pxd."""
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from fluxmq._core.wire.sizes cimport fit_u32, low_u32

cdef enum:
    SIZE_MIN = 8
    # Pending deliveries of one channel: a client that never acknowledges must not make it grow without bound.
    WINDOW_MAX = 1 << 17
cdef uint64_t NUMBER_MAX = <uint64_t>1 << 62    # higher numbers are ignored, as sums would overflow


cdef inline uint32_t place_of(const pending_t* pending, uint64_t number) noexcept:
    # Numbers are consecutive, so their lowest bits spread them evenly.
    return low_u32(number ^ number >> 16) & (pending.size - 1)


cdef slot_t* find(const pending_t* pending, uint64_t number) noexcept:
    """The slot with that number, or the free slot for it."""
    cdef uint32_t i = place_of(pending, number)
    while pending.slots[i].number and pending.slots[i].number != number:
        i = (i + 1) & (pending.size - 1)
    return pending.slots + i


cdef int grow(pending_t* pending) except -1:
    cdef pending_t larger
    cdef uint32_t i
    larger.size = pending.size * 2 if pending.size else SIZE_MIN
    larger.count = pending.count
    larger.slots = <slot_t*>calloc(larger.size, sizeof(slot_t))
    if larger.slots == NULL:
        raise MemoryError()
    for i in range(pending.size):
        if pending.slots[i].number:
            find(&larger, pending.slots[i].number)[0] = pending.slots[i]
    free(pending.slots)
    pending[0] = larger
    return 0


cdef int pending_put(pending_t* pending, uint64_t number, int64_t seq, int64_t time) except -1:
    cdef slot_t* slot
    if (pending.count + 1) * 2 > pending.size:
        grow(pending)
    slot = find(pending, number)
    if slot.number == 0:
        pending.count += 1
        slot.number = number
    slot.sent.seq = seq
    slot.sent.time = time
    return 0


cdef void forget(pending_t* pending, uint32_t hole) noexcept:
    """Frees a slot and moves displaced entries back, so that a search may end at a free slot."""
    cdef uint32_t mask = pending.size - 1, i = hole, home
    pending.count -= 1
    while True:
        i = (i + 1) & mask
        if pending.slots[i].number == 0:
            break
        home = place_of(pending, pending.slots[i].number)
        if (i - home & mask) >= (i - hole & mask):
            pending.slots[hole] = pending.slots[i]
            hole = i
    pending.slots[hole].number = 0


cdef sent_t pending_get(pending_t* pending, uint64_t number, bint last) noexcept:
    cdef sent_t sent
    cdef slot_t* slot
    sent.seq = NOTHING
    sent.time = 0
    if pending.count == 0:
        return sent
    slot = find(pending, number)
    if slot.number:
        sent = slot.sent
        if last:
            forget(pending, <uint32_t>(slot - pending.slots))
    return sent


cdef void pending_free(pending_t* pending) noexcept:
    free(pending.slots)
    pending.slots = NULL
    pending.size = pending.count = 0


cdef int widen(window_t* window) except -1:
    cdef uint32_t size = window.size * 2 if window.size else SIZE_MIN, i
    cdef sent_t* sent = <sent_t*>calloc(size, sizeof(sent_t))
    if sent == NULL:
        raise MemoryError()
    for i in range(window.count):
        sent[(window.base + i) & (size - 1)] = window.sent[(window.base + i) & (window.size - 1)]
    free(window.sent)
    window.sent = sent
    window.size = size
    return 0


cdef int window_put(window_t* window, uint64_t number, int64_t seq, int64_t time) except -1:
    cdef sent_t* sent
    if number > NUMBER_MAX:
        return 0
    if window.count and number - window.base >= WINDOW_MAX and number > window.base + window.count:
        window.count = 0        # the number is implausibly far ahead
    if window.count == 0:
        window.base = number
    elif number < window.base + window.count:
        return 0
    while number >= window.base + window.count:
        if window.count == WINDOW_MAX:
            window.base += 1
            window.count -= 1
        if window.count == window.size:
            widen(window)
        sent = window.sent + ((window.base + window.count) & (window.size - 1))
        sent.seq = NOTHING
        window.count += 1
    sent = window.sent + (number & (window.size - 1))
    sent.seq = seq
    sent.time = time
    return 0


cdef sent_t window_take(window_t* window, uint64_t number, bint through) noexcept:
    cdef sent_t sent
    cdef sent_t* found
    sent.seq = NOTHING
    sent.time = 0
    if through and number == 0 and window.count:
        # The first one is pending, so this ends.
        number = window.base + window.count - 1
        while window.sent[number & (window.size - 1)].seq == NOTHING:
            number -= 1
    if number < window.base or number >= window.base + window.count:
        if through and number >= window.base:
            window.count = 0    # an unknown number, which the peer will refuse; lower ones are settled
        return sent
    found = window.sent + (number & (window.size - 1))
    sent = found[0]
    found.seq = NOTHING
    if through:
        window.count -= fit_u32(number + 1 - window.base)
        window.base = number + 1
    while window.count and window.sent[window.base & (window.size - 1)].seq == NOTHING:
        window.base += 1
        window.count -= 1
    return sent


cdef void window_free(window_t* window) noexcept:
    free(window.sent)
    window.sent = NULL
    window.size = window.count = 0
