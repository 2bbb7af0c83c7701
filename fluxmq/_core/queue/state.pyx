# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. Groups on disk: the replay of their records, and their rows in the view.

    state   ┌─────────┬─────────┬─────────────────────────────────────────────────────────┐
            │ version │ cursors │ each: log, next, floor, pages, claims, pages …, claims … │      big-endian
            │ u8 = 1  │ u32     │ u64, u64, u64, u32, u32                                  │
            └─────────┴─────────┴─────────────────────────────────────────────────────────┘
    page    u64 offset >> 16, 8 192 bytes of bits: settled at or above `floor`
    claim   u64 offset, u16 deliveries, i64 not before (steady clock ms, 0 = at once; below 0: DUE_DYING…)
"""
import struct

from fluxmq._core.errors import CorruptError

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.disk.record_kinds cimport RECORD_CLAIM, RECORD_CURSOR, RECORD_RETURN, RECORD_SETTLE
from fluxmq._core.queue.claim cimport (
    CLAIM_DYING, CLAIM_READY, CLAIM_WAITING, DUE_DYING_RETRIES, claim_t, heap_push,
)
from fluxmq._core.queue.cursor cimport PAGE_BITS, Cursor
from fluxmq._core.queue.group cimport RUN_MAX, Group
from fluxmq._core.queue.lanes cimport lane_of
from fluxmq._core.wire.primitives cimport peek_u16, peek_u32, peek_u64

__all__ = ["RECORD_OFFSETS_MAX", "cursors_in", "cursors_of", "export_state", "replay", "restore_state", "state_of"]

cdef enum:
    AHEAD_BITS = 36             # offsets above a group's floor; more would need more than 8 MiB of pointers to pages
    PAGE_BYTES = 8192
    STATE_VERSION = 1
    CURSOR_BYTES = 32       # without its pages and claims
    CLAIM_BYTES = 18
    # Records with these lengths alone are of their kinds (disk/record_kinds.pxd).
    CLAIM_RECORD = 30
    SETTLE_RECORD = 28
    RETURN_RECORD = 34
    CURSOR_RECORD = 24

# Maximum number of offsets in one CLAIM or SETTLE.
RECORD_OFFSETS_MAX = RUN_MAX


def replay(Group group not None, int kind, bytes body not None):
    """At recovery: applies one CLAIM, SETTLE, RETURN or CURSOR of a group, in the order of the journal; a repetition
    has no effect.

    A claim of a member is ready again, with its count. A record about offsets that the log cannot have has no effect.
    Raises CorruptError, also for a run of more than RECORD_OFFSETS_MAX.
    """
    replay_record(group, kind, <const uint8_t*><const char*>body, <uint32_t>len(body))      # fits: a record


cdef int replay_record(Group group, int kind, const uint8_t* at, uint32_t length) except -1:
    cdef uint64_t log_number, first
    cdef uint32_t n = 1
    cdef uint16_t deliveries = 0
    cdef int64_t due = 0
    cdef Cursor cursor
    if length != (CLAIM_RECORD if kind == RECORD_CLAIM else SETTLE_RECORD if kind == RECORD_SETTLE
                  else RETURN_RECORD if kind == RECORD_RETURN else CURSOR_RECORD):
        raise CorruptError(f"a record of kind {kind} of group {group.number:016x} has the wrong length")
    log_number, first = peek_u64(at + 8), peek_u64(at + 16)
    if kind == RECORD_CLAIM:
        n, deliveries = peek_u32(at + 24), peek_u16(at + 28)
    elif kind == RECORD_SETTLE:
        n = peek_u32(at + 24)
    elif kind == RECORD_RETURN:
        deliveries, due = peek_u16(at + 24), <int64_t>peek_u64(at + 26)
    if n > RUN_MAX:
        raise CorruptError(f"a record of kind {kind} of group {group.number:016x} is about {n} messages; one is about "
                           f"{RUN_MAX} at most")
    cursor = group.cursor_of(log_number)
    if cursor is None:
        return 0                    # its log ended later in the journal
    if lane_of(first) != lane_of(cursor.log.first) or (
            first > cursor.floor and (first - cursor.floor) >> AHEAD_BITS):
        return 0
    group.changed()
    if kind == RECORD_CURSOR:
        return group.move(cursor, first)
    if kind == RECORD_SETTLE:
        return replay_settle(group, cursor, first, n)
    return replay_claim(group, cursor, first, n, deliveries, due, kind == RECORD_CLAIM)


cdef int replay_settle(Group group, Cursor cursor, uint64_t first, uint32_t n) except -1:
    cdef uint64_t offset
    cdef claim_t* claim
    for offset in range(first, first + n):
        claim = cursor.find(offset)
        if claim != NULL:
            group.unlink(claim)
            group.drop_claim(claim)
        cursor.mark(offset)
    if cursor.next < cursor.floor:      # messages in between may have been settled out of order
        cursor.next = cursor.floor
    return 0


cdef int replay_claim(Group group, Cursor cursor, uint64_t first, uint32_t n, uint16_t deliveries, int64_t due,
                      bint claimed) except -1:
    cdef uint64_t offset
    cdef claim_t* claim
    cdef uint16_t known
    for offset in range(first, first + n):
        if cursor.is_settled(offset):
            continue
        claim = cursor.find(offset)
        known = 0
        if claim == NULL:
            claim = group.add_claim(cursor, offset)
        else:
            group.unlink(claim)
            if claimed:
                known = claim.deliveries        # the view may be newer than this record
        claim.deliveries = max(deliveries, known)
        claim.due_ms = due
        if due < 0:
            claim.state = CLAIM_READY           # in the heap in which set_dying searches
            heap_push(&cursor.ready, claim)
            group.set_dying(cursor, claim, "max_retries" if due == DUE_DYING_RETRIES else "rejected")
        elif due:
            claim.state = CLAIM_WAITING
            heap_push(&group.waiting, claim)
        else:
            claim.state = CLAIM_READY
            heap_push(&cursor.ready, claim)
        if cursor.next <= offset:
            cursor.next = offset + 1
    return 0


def export_state(Group group not None) -> bytes:
    """As state_of, for the view; clears `dirty`."""
    group.dirty = False
    return state_of(group)


def state_of(Group group not None) -> bytes:
    """Encodes the group's state. Claims of members are encoded as returned ones, which they are after a restart."""
    cdef Cursor cursor
    cdef uint32_t i
    cdef claim_t* claim
    parts = [struct.pack(">BI", STATE_VERSION, len(group.cursors))]
    for cursor in group.cursors:
        pages = [(cursor.pages_base + i, <bytes>(<const char*>cursor.pages[i])[:PAGE_BYTES])
                 for i in range(cursor.pages_count) if cursor.pages[i] != NULL] if cursor.settled else []
        claims = []
        if cursor.table != NULL:
            for i in range(cursor.table_mask + 1):
                claim = cursor.table[i]
                while claim != NULL:
                    claims.append((claim.offset, claim.deliveries,
                                   claim.due_ms if claim.state in (CLAIM_WAITING, CLAIM_DYING) else 0))
                    claim = claim.chain
        parts.append(struct.pack(">QQQII", cursor.log.number, cursor.next, cursor.floor, len(pages), len(claims)))
        for index, bits in pages:
            parts.append(struct.pack(">Q", index) + bits)
        parts += [struct.pack(">QHq", *one) for one in sorted(claims)]
    return b"".join(parts)


def restore_state(Group group not None, bytes state not None):
    """Decodes the result of export_state into a new group with its cursors. Raises CorruptError."""
    cdef const uint8_t* at = <const uint8_t*><const char*>state
    cdef const uint8_t* end = at + len(state)
    cdef uint32_t count, pages, claims
    cdef Cursor cursor
    if end - at < 5:
        raise cut_short(group)
    if at[0] != STATE_VERSION:
        raise CorruptError(f"the state of group {group.number:016x} is of version {at[0]}")
    count = peek_u32(at + 1)
    at += 5
    for _ in range(count):
        if end - at < CURSOR_BYTES:
            raise cut_short(group)
        cursor = group.cursor_of(peek_u64(at))
        pages, claims = peek_u32(at + 24), peek_u32(at + 28)
        if <uint64_t>(end - at) < CURSOR_BYTES + <uint64_t>pages * (8 + PAGE_BYTES) + <uint64_t>claims * CLAIM_BYTES:
            raise cut_short(group)
        if cursor is not None:
            group.move(cursor, peek_u64(at + 16))
            cursor.next = peek_u64(at + 8)
        at += CURSOR_BYTES
        for _ in range(pages):
            if cursor is not None:
                restore_page(cursor, peek_u64(at), at + 8)
            at += 8 + PAGE_BYTES
        for _ in range(claims):
            if cursor is not None:
                replay_claim(group, cursor, peek_u64(at), 1, peek_u16(at + 8),
                             <int64_t>peek_u64(at + 10), False)
            at += CLAIM_BYTES
    if at != end:
        raise CorruptError(f"the state of group {group.number:016x} is longer than it says")


cdef object cut_short(Group group):
    return CorruptError(f"the state of group {group.number:016x} ends in the middle")


def cursors_in(bytes state not None) -> list:
    """Decodes the result of state_of: [(log, next, floor, [(first offset, bits)], [(offset, deliveries, not before)])];
    bits: settled messages, as an int. Raises CorruptError."""
    found, at = [], 5
    try:
        version, count = struct.unpack_from(">BI", state)
        if version != STATE_VERSION:
            raise CorruptError(f"the state of a group is of version {version}")
        for _ in range(count):
            log_number, next, floor, pages, claims = struct.unpack_from(">QQQII", state, at)
            at += CURSOR_BYTES
            bits = [struct.unpack_from(f">Q{PAGE_BYTES}s", state, at + i * (8 + PAGE_BYTES)) for i in range(pages)]
            at += pages * (8 + PAGE_BYTES)
            held = [struct.unpack_from(">QHq", state, at + i * CLAIM_BYTES) for i in range(claims)]
            at += claims * CLAIM_BYTES
            found.append((log_number, next, floor, [(index << PAGE_BITS, int.from_bytes(page, "little"))
                                                    for index, page in bits if any(page)], held))
    except struct.error:
        raise CorruptError("the state of a group ends in the middle") from None
    return found


def cursors_of(bytes state not None) -> list:
    """Decodes the result of export_state for a repair: [(log, reached)], where every offset that the group has claimed
    or settled is below `reached`. Raises CorruptError."""
    # Settled offsets may be above the next one to claim.
    return [(log_number, max([next] + [base + page.bit_length() for base, page in pages]))
            for log_number, next, floor, pages, claims in cursors_in(state)]


cdef int restore_page(Cursor cursor, uint64_t index, const uint8_t* raw) except -1:
    cdef uint32_t i
    for i in range(1 << PAGE_BITS):
        if raw[i >> 3] >> (i & 7) & 1 and (index << PAGE_BITS) + i >= cursor.floor:
            cursor.mark((index << PAGE_BITS) + i)
    return 0
