# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. Claims and heaps of them, and the members that take them. See queue/claim.pxd."""
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memset

from fluxmq._core.debug cimport is_transition
from fluxmq._core.memory.link cimport link_drop, link_hold
from fluxmq._core.queue.log cimport chunk_drop
from fluxmq._core.queue.shared_room cimport ROOM_UNSHARED

__all__ = ["TRANSITIONS", "Filter", "GroupOwner", "Member"]

STATES = {0: "NONE", CLAIM_READY: "READY", CLAIM_WAITING: "WAITING", CLAIM_HELD: "HELD", CLAIM_DYING: "DYING"}
TRANSITIONS = {
    ("NONE", "claim"): "HELD",
    ("HELD", "settle"): "NONE",
    ("HELD", "give back"): "READY",
    ("HELD", "give back, delayed"): "WAITING",
    ("HELD", "dead, on disk only"): "DYING",
    ("READY", "claim"): "HELD",
    ("READY", "dead, on disk only"): "DYING",
    ("READY", "settle late"): "NONE",
    ("READY", "give back late"): "READY",
    ("READY", "give back late, delayed"): "WAITING",
    ("WAITING", "its time"): "READY",
    ("WAITING", "dead, on disk only"): "DYING",
    ("WAITING", "settle late"): "NONE",
    ("WAITING", "give back late"): "READY",
    ("WAITING", "give back late, delayed"): "WAITING",
    ("DYING", "read"): "NONE",
}

cdef bint may_enter(uint8_t state, uint8_t after) noexcept:
    return is_transition(STATES, TRANSITIONS, state, after)


# ---------------------------------------------------------------- heaps

cdef inline bint less(const heap_t* heap, const claim_t* a, const claim_t* b) noexcept nogil:
    if heap.by_due:
        return a.due_ms < b.due_ms
    return a.offset < b.offset


cdef inline void put(heap_t* heap, uint32_t at, claim_t* claim) noexcept nogil:
    heap.items[at] = claim
    claim.heap_at = at + 1


cdef void sift_up(heap_t* heap, uint32_t at) noexcept nogil:
    cdef claim_t* claim = heap.items[at]
    cdef uint32_t parent
    while at:
        parent = (at - 1) >> 1
        if not less(heap, claim, heap.items[parent]):
            break
        put(heap, at, heap.items[parent])
        at = parent
    put(heap, at, claim)


cdef void sift_down(heap_t* heap, uint32_t at) noexcept nogil:
    cdef claim_t* claim = heap.items[at]
    cdef uint32_t child
    while True:
        child = 2 * at + 1
        if child >= heap.count:
            break
        if child + 1 < heap.count and less(heap, heap.items[child + 1], heap.items[child]):
            child += 1
        if not less(heap, heap.items[child], claim):
            break
        put(heap, at, heap.items[child])
        at = child
    put(heap, at, claim)


cdef int heap_push(heap_t* heap, claim_t* claim) except -1:
    cdef claim_t** grown
    if heap.count == heap.room:
        grown = <claim_t**>realloc(heap.items, (heap.room * 2 + 16) * sizeof(claim_t*))
        if grown == NULL:
            raise MemoryError()
        heap.items = grown
        heap.room = heap.room * 2 + 16
    heap.count += 1
    put(heap, heap.count - 1, claim)
    sift_up(heap, heap.count - 1)
    return 0


cdef void heap_remove(heap_t* heap, claim_t* claim) noexcept:
    cdef uint32_t at = claim.heap_at
    if at == 0:
        return
    at -= 1
    claim.heap_at = 0
    heap.count -= 1
    if at < heap.count:
        put(heap, at, heap.items[heap.count])
        sift_up(heap, at)
        sift_down(heap, heap.items[at].heap_at - 1)


# ---------------------------------------------------------------- claims

cdef claim_t* spare = NULL          # free list; there is only one thread
cdef uint32_t spares = 0


cdef void claim_let_go(claim_t* claim) noexcept:
    if claim.chunk != NULL:
        chunk_drop(claim.chunk)
        claim.chunk = NULL


cdef claim_t* claim_new() except NULL:
    global spare, spares
    cdef claim_t* claim = spare
    if claim != NULL:
        spare = claim.chain
        spares -= 1
    else:
        claim = <claim_t*>malloc(sizeof(claim_t))
        if claim == NULL:
            raise MemoryError()
    memset(claim, 0, sizeof(claim_t))
    return claim


cdef void claim_free(claim_t* claim) noexcept:
    global spare, spares
    if spares >= 4096:
        free(claim)
        return
    claim.chain = spare
    spare = claim
    spares += 1


cdef class GroupOwner:
    """Machine. See queue/claim.pxd."""

    cdef int touch(self) except -1:
        return 0

    cdef int note_change(self) except -1:
        return 0

    cdef bint is_copy(self) noexcept:
        return 0

    cdef bint rests(self) noexcept:
        return 0


cdef class Filter:
    """Machine. See queue/claim.pxd."""

    cdef bint wants(self, const record_t* record) noexcept:
        return 1


cdef class Member:
    """Machine. See queue/claim.pxd."""

    def __dealloc__(self):
        if self.carrier != NULL:
            link_drop(self.carrier)

    cdef void carried_by(self, link_t* link) noexcept:
        link_hold(link)
        self.carrier = link

    cdef SharedRoom sharing(self):
        return None

    cdef uint32_t shared_room(self) noexcept:
        return ROOM_UNSHARED

    cdef uint32_t credit(self) noexcept:
        return 0

    cdef int deliver(self, claim_t* claim, const record_t* record) except -1:
        raise NotImplementedError

    cdef int withdraw(self, claim_t* claim) except -1:
        return 0

    cdef void forget(self, claim_t* claim) noexcept:
        pass
