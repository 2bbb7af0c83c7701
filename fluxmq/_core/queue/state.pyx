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

from fluxmq._core.disk.journal_format cimport RECORD_HEADER_BYTES, put_u32_le
from fluxmq._core.disk.record_kinds cimport RECORD_CLAIM, RECORD_CURSOR, RECORD_OWNER, RECORD_RETURN, RECORD_SETTLE
from fluxmq._core.queue.claim cimport (
    CLAIM_DYING, CLAIM_HELD, CLAIM_READY, CLAIM_WAITING, DUE_DYING_RETRIES, Member, claim_member, claim_t, heap_push,
)
from fluxmq._core.queue.cursor cimport PAGE_BITS, Cursor
from fluxmq._core.queue.group cimport RUN_MAX, Group
from fluxmq._core.queue.lanes cimport lane_of
from fluxmq._core.wire.primitives cimport peek_u16, peek_u32, peek_u64, put_u16, put_u32, put_u64

__all__ = ["RECORD_OFFSETS_MAX", "cursors_in", "cursors_of", "export_state", "holders_of", "records_of", "replay",
           "restore_state", "state_of"]

cdef enum:
    AHEAD_BITS = 36             # offsets above a group's floor; more would need more than 8 MiB of pointers to pages
    PAGE_BYTES = 8192
    STATE_VERSION = 1
    CURSOR_BYTES = 32       # without its pages and claims
    CLAIM_BYTES = 18
    PART_BYTES = 65536
    HOLDERS_MIN = 1000          # of a copy's group, that may hold nothing any more
    # Records with these lengths alone are of their kinds (disk/record_kinds.pxd); GROUP_RECORD_MAX is the largest.
    CLAIM_RECORD = 30           # or, in lines other than the journal, with who holds it
    HELD_RECORD = 46
    SETTLE_RECORD = 28
    RETURN_RECORD = 34
    CURSOR_RECORD = 24
    OWNER_RECORD = 28

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
    cdef uint32_t holder = 0
    if kind == RECORD_OWNER:
        return replay_owner(group, at, length)
    if length != (HELD_RECORD if kind == RECORD_CLAIM and length == HELD_RECORD
                  else CLAIM_RECORD if kind == RECORD_CLAIM else SETTLE_RECORD if kind == RECORD_SETTLE
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
    if kind == RECORD_CLAIM and length == HELD_RECORD and group.line.number:
        holder = holder_of(group, peek_u64(at + 30), peek_u64(at + 38))
    return replay_claim(group, cursor, first, n, deliveries, due, kind == RECORD_CLAIM, holder)


cdef int replay_owner(Group group, const uint8_t* at, uint32_t length) except -1:
    if length != OWNER_RECORD:
        raise CorruptError(f"a record of kind {<int>RECORD_OWNER} of group {group.number:016x} has the wrong length")
    if group.said is None:
        group.said = {}
    group.said.pop(peek_u32(at + 8), None)
    if peek_u64(at + 12) or peek_u64(at + 20):
        group.said[peek_u32(at + 8)] = peek_u64(at + 12), peek_u64(at + 20)
    return 0


cdef uint32_t holder_of(Group group, uint64_t life, uint64_t member) except 0:
    """1 + the index in Group.holders."""
    cdef tuple key = (life, member)
    if group.holders is None:
        group.holders, group.holder_numbers = [], {}
    found = group.holder_numbers.get(key)
    if found is None:
        if len(group.holders) > 2 * group.claims + HOLDERS_MIN:
            forget_holders(group)
        group.holders.append(key)
        found = group.holder_numbers[key] = <uint32_t>len(group.holders)    # fits: as many as claims
    return found


cdef int forget_holders(Group group) except -1:
    """Those who hold nothing any more."""
    cdef Cursor cursor
    cdef claim_t* claim
    cdef uint32_t i
    former, group.holders, group.holder_numbers = group.holders, [], {}
    for cursor in group.cursors:
        for i in range(cursor.table_mask + 1 if cursor.table != NULL else 0):
            claim = cursor.table[i]
            while claim != NULL:
                if claim.state == CLAIM_READY and claim.held_since:
                    key = former[claim.held_since - 1]
                    if key not in group.holder_numbers:
                        group.holders.append(key)
                        group.holder_numbers[key] = len(group.holders)
                    claim.held_since = group.holder_numbers[key]
                claim = claim.chain
    return 0


def holders_of(Group group not None) -> list:
    """Of a copy, what its leader's members hold: [(index of the log, offset, deliveries, life of the member's node,
    member)]; a member is known by Member.mark."""
    cdef Cursor cursor
    cdef claim_t* claim
    cdef uint32_t i
    cdef Py_ssize_t at
    found = []
    if group.holders is None:
        return found
    for at in range(len(group.cursors)):
        cursor = group.cursors[at]
        for i in range(cursor.table_mask + 1 if cursor.table != NULL else 0):
            claim = cursor.table[i]
            while claim != NULL:
                if claim.state == CLAIM_READY and claim.held_since:
                    found.append((at, claim.offset, claim.deliveries, *<tuple>group.holders[claim.held_since - 1]))
                claim = claim.chain
    found.sort()
    return found


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
                      bint claimed, uint32_t holder) except -1:
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
        claim.held_since = holder
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


cdef class Written:
    """Records one after the other, in parts of at most PART_BYTES."""
    cdef uint64_t group
    cdef uint64_t log
    cdef list parts
    cdef bytearray room
    cdef uint32_t used

    cdef int end_part(self) except -1:
        if self.used:
            self.parts.append(bytes(self.room[:self.used]))
            self.used = 0
        return 0

    cdef int put(self, uint8_t kind, uint64_t first, uint32_t count, uint16_t deliveries=0, int64_t due=0,
                 uint64_t life=0, uint64_t member=0) except -1:
        cdef uint8_t* raw
        cdef uint8_t* body
        cdef uint32_t length = (HELD_RECORD if kind == RECORD_CLAIM else SETTLE_RECORD if kind == RECORD_SETTLE
                                else RETURN_RECORD if kind == RECORD_RETURN else CURSOR_RECORD)
        if self.used + RECORD_HEADER_BYTES + length > PART_BYTES:
            self.end_part()
        raw = <uint8_t*><char*>self.room + self.used
        self.used += RECORD_HEADER_BYTES + length
        raw[0] = kind
        put_u32_le(raw + 1, length)
        body = put_u64(put_u64(put_u64(raw + RECORD_HEADER_BYTES, self.group), self.log), first)
        if kind == RECORD_CLAIM or kind == RECORD_SETTLE:
            body = put_u32(body, count)
        if kind == RECORD_CLAIM:
            put_u64(put_u64(put_u16(body, deliveries), life), member)
        elif kind == RECORD_RETURN:
            put_u64(put_u16(body, deliveries), <uint64_t>due)
        return 0

    cdef int settled(self, Cursor cursor) except -1:
        """SETTLE of each run of settled messages above the cursor's floor."""
        cdef uint32_t i, at
        cdef uint32_t count = 0
        cdef uint64_t offset
        cdef uint64_t first = 0
        cdef const uint8_t* page
        for i in range(cursor.pages_count if cursor.settled else 0):
            page = <const uint8_t*>cursor.pages[i]
            for at in range(1 << PAGE_BITS if page != NULL else 0):
                if at & 7 == 0 and page[at >> 3] == 0 and count == 0:
                    continue
                offset = ((cursor.pages_base + i) << PAGE_BITS) + at
                if not page[at >> 3] >> (at & 7) & 1 or offset < cursor.floor:
                    continue
                if count and offset == first + count and count < RUN_MAX:
                    count += 1
                    continue
                if count:
                    self.put(RECORD_SETTLE, first, count)
                first, count = offset, 1
        return self.put(RECORD_SETTLE, first, count) if count else 0

    cdef int claims(self, Group group, Cursor cursor) except -1:
        """RETURN of each message that was given out and is in nobody's hands, CLAIM of the others."""
        cdef uint32_t i
        cdef claim_t* claim
        cdef Member member
        held = []
        for i in range(cursor.table_mask + 1 if cursor.table != NULL else 0):
            claim = cursor.table[i]
            while claim != NULL:
                if claim.state == CLAIM_HELD:
                    member = <Member>claim_member(claim, CLAIM_HELD)
                    held.append((claim.offset, claim.deliveries, member.life if member.life else group.ledger.life,
                                 member.mark))
                elif claim.state == CLAIM_READY and claim.held_since and group.holders is not None:
                    held.append((claim.offset, claim.deliveries, *<tuple>group.holders[claim.held_since - 1]))
                else:
                    self.put(RECORD_RETURN, claim.offset, 1, claim.deliveries,
                             claim.due_ms if claim.state in (CLAIM_WAITING, CLAIM_DYING) else 0)
                claim = claim.chain
        held.sort()
        return self.held(held)

    cdef int held(self, list found) except -1:
        """CLAIM of each run. found: (offset, deliveries, life, member), ascending."""
        cdef uint32_t count = 0
        cdef uint64_t first = 0
        cdef tuple of_run = None
        for one in found:
            if count and one[0] == first + count and one[1:] == of_run and count < RUN_MAX:
                count += 1
                continue
            if count:
                self.put(RECORD_CLAIM, first, count, of_run[0], 0, of_run[1], of_run[2])
            first, count, of_run = one[0], 1, one[1:]
        return self.put(RECORD_CLAIM, first, count, of_run[0], 0, of_run[1], of_run[2]) if count else 0


def records_of(Group group not None, bint export=False) -> list:
    """The group's state as CURSOR, SETTLE, RETURN, OWNER and, of what members hold, CLAIM records, as they are in a
    batch, in parts of about 64 KiB. An open run of claims is recorded first (Group.flush_records). export: for the
    view; clears `dirty`."""
    cdef Cursor cursor
    cdef Written written = Written.__new__(Written)
    group.write_records()
    group.dirty = group.dirty and not export
    written.parts, written.room, written.group = [], bytearray(PART_BYTES), group.number
    for cursor in group.cursors:
        written.log = cursor.log.number
        written.put(RECORD_CURSOR, cursor.floor, 0)
        written.settled(cursor)
        written.claims(group, cursor)
    written.end_part()
    for partition, (life, member) in group.owners_said().items():
        written.parts.append(struct.pack("<BI", <int>RECORD_OWNER, <int>OWNER_RECORD) + struct.pack(
            ">QIQQ", group.number, partition, life, member))
    return written.parts


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
                             <int64_t>peek_u64(at + 10), False, 0)
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
