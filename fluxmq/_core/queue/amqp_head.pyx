# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. The head of a queue as AMQP defines it: see queue/amqp_head.pxd."""
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.errors import UsageError

from fluxmq._core.queue.claim cimport Member, claim_t, may_hold
from fluxmq._core.queue.cursor cimport Cursor
from fluxmq._core.queue.group cimport Group
from fluxmq._core.queue.log cimport NOTHING_WANTED, chunk_t, record_t

__all__ = ["PULL_EMPTY", "PULL_GIVEN", "PULL_LIMITED", "PULL_STALLED", "pull", "purge_ready", "ready_of"]

globals().update(PULL_EMPTY=PULL_EMPTY, PULL_GIVEN=PULL_GIVEN, PULL_LIMITED=PULL_LIMITED,
                 PULL_STALLED=PULL_STALLED)

cdef enum:
    EXPIRE_MAX = 2000           # messages that expire in one pump; others follow in the next
    RECORD_BYTES = 56           # approximate size of a message in a log besides topic, properties and body


cdef inline bint is_empty(Cursor cursor) noexcept:
    return cursor.ready.count == 0 and cursor.next >= cursor.log.next


cdef uint64_t ready_count(Group group):
    cdef Cursor cursor
    cdef uint64_t held = 0
    cdef uint64_t found = group.claims
    cdef uint32_t at_lane = group.busy_from(0)
    while at_lane < group.order_count:
        for cursor in <list>group.order[at_lane]:
            held += cursor.held
            if cursor.log.next > max(cursor.next, cursor.log.first):
                found += cursor.log.next - max(cursor.next, cursor.log.first)
        at_lane = group.busy_from(at_lane + 1)
    return found - min(held, found)


def ready_of(Group group not None) -> int:
    """Number of unclaimed messages."""
    return ready_count(group)


# ---------------------------------------------------------------- pulling one message

cdef int pull_one(Group group, Member member) except -1:
    cdef Cursor cursor
    cdef claim_t* claim
    cdef const record_t* record = NULL
    cdef chunk_t* chunk = NULL
    cdef Member holder
    cdef bint stop = 0
    cdef int given
    cdef uint32_t at_lane = group.busy_from(0)
    if member.group is not group:
        raise UsageError("a member can pull only from its own group")
    group.touch()
    while at_lane < group.order_count:
        for cursor in <list>group.order[at_lane]:
            if cursor.floor < cursor.log.first:
                group.skip_to(cursor, cursor.log.first)
            if is_empty(cursor):
                continue
            if not may_hold(&group.ledger.node, member.carrier, member.held, member.held_max):
                return PULL_LIMITED
            claim = group.ready_claim(cursor, &record, &chunk, &stop)
            if claim == NULL and not stop:
                claim = group.fresh_claim(cursor, &record, &chunk, &stop)
            if stop:
                return PULL_STALLED
            if claim == NULL:
                continue
            holder = cursor.holder
            group.turn_next = group.turn_member         # a pull does not advance the turn of the consumers
            given = group.hand(cursor, claim, record, chunk, member)
            cursor.holder = holder                      # nor does it assign a partition
            return PULL_GIVEN if given else PULL_EMPTY
        at_lane = group.busy_from(at_lane + 1)
    return PULL_EMPTY


def pull(Group group not None, Member member not None) -> int:
    """pull_one for the cold half."""
    return pull_one(group, member)


# ---------------------------------------------------------------- heads

cdef const record_t* head_of(Group group, Cursor cursor, uint16_t* deliveries) except? NULL:
    """The oldest unclaimed message of a log. NULL: there is none, or it must be read first (group.stalled)."""
    cdef claim_t* claim
    cdef const record_t* found
    cdef chunk_t* chunk = NULL
    cdef uint64_t offset
    deliveries[0] = 0
    while cursor.ready.count:
        claim = cursor.ready.items[0]
        offset = claim.offset
        found = NULL
        if offset >= cursor.log.first:
            found = cursor.log.find(offset, &chunk)
            if found == NULL and cursor.log.wanted != NOTHING_WANTED and cursor.log.wanted <= offset:
                group.stalled = True
                return NULL
        if found != NULL and found.offset == offset:
            deliveries[0] = claim.deliveries
            return found
        group.settle_offset(cursor, offset)             # it is not stored any more
    while cursor.next < cursor.log.next:
        if cursor.settled and cursor.is_settled(cursor.next):
            cursor.next += 1
            continue
        found = cursor.log.find(cursor.next, &chunk)
        if found == NULL:
            if cursor.log.wanted != NOTHING_WANTED:
                cursor.pass_over(cursor.log.wanted)
                group.stalled = True
            return NULL
        cursor.pass_over(found.offset)
        return found
    return NULL


cdef int kill_head(Group group, Cursor cursor, const record_t* head, uint16_t deliveries, str reason) except -1:
    cdef uint64_t offset = head.offset
    group.ready_bytes -= head.payload_length
    if offset >= cursor.next:
        cursor.next = offset + 1
    return group.kill(cursor, offset, deliveries, reason)       # `head` is invalid afterwards


cdef int drop_heads(Group group, int64_t ready_max, int64_t bytes_max) except -1:
    cdef Cursor cursor
    cdef const record_t* head
    cdef uint16_t deliveries = 0
    cdef uint64_t ready = ready_count(group)
    cdef uint32_t at_lane = group.busy_from(0)
    if ready == 0:
        group.ready_bytes = 0
    while at_lane < group.order_count:
        for cursor in <list>group.order[at_lane]:
            while ready and ((ready_max >= 0 and ready > <uint64_t>ready_max)
                             or (bytes_max >= 0 and group.ready_bytes > bytes_max)):
                if is_empty(cursor):
                    break
                head = head_of(group, cursor, &deliveries)
                if head == NULL:
                    if group.stalled:
                        return 0
                    break
                kill_head(group, cursor, head, deliveries, "maxlen")
                ready = ready_count(group)
        at_lane = group.busy_from(at_lane + 1)
    return 0


cdef int64_t expire_heads(Group group) except? -1:
    cdef Cursor cursor
    cdef const record_t* head
    cdef uint16_t deliveries = 0
    cdef uint32_t killed = 0
    cdef int64_t now = group.now()
    cdef int64_t due = 0
    cdef uint64_t at
    cdef bint met = 0
    cdef uint32_t at_lane = group.busy_from(0)
    while at_lane < group.order_count and not met:      # messages behind the head expire later, as in RabbitMQ
        for cursor in <list>group.order[at_lane]:
            while not is_empty(cursor):
                at = cursor.ready.items[0].offset if cursor.ready.count else cursor.next
                if at != cursor.head_at or (cursor.head_expires and cursor.head_expires <= now):
                    if killed >= EXPIRE_MAX:
                        group.touch()
                        return due
                    head = head_of(group, cursor, &deliveries)
                    if head == NULL:
                        met = met or group.stalled
                        break
                    if head.expires_at and head.expires_at <= now:
                        killed += 1
                        kill_head(group, cursor, head, deliveries, "expired")
                        continue
                    cursor.head_at = head.offset
                    cursor.head_expires = head.expires_at
                if cursor.head_expires and (due == 0 or cursor.head_expires < due):
                    due = cursor.head_expires
                met = 1
                break
        at_lane = group.busy_from(at_lane + 1)
    return due


cdef int estimate_ready_bytes(Group group, int64_t most) except -1:
    cdef Cursor cursor
    cdef const record_t* record
    cdef chunk_t* chunk = NULL
    cdef uint64_t offset
    cdef int64_t found = 0
    cdef int64_t kept
    for cursor in group.cursors:
        kept = <int64_t>(cursor.log.kept_bytes - cursor.log.unflushed_bytes)
        offset = max(cursor.log.flushed, cursor.log.first)
        found += max(kept - <int64_t>((offset - cursor.log.first) * RECORD_BYTES), 0)
        while offset < cursor.log.next:
            record = cursor.log.find(offset, &chunk)
            if record == NULL:
                break
            if not cursor.is_settled(record.offset):
                found += record.payload_length
            offset = record.offset + 1
    group.ready_bytes = min(found, most)
    return 0


# ---------------------------------------------------------------- for the cold half

def purge_ready(Group group not None) -> int:
    """Settles all unclaimed messages of the group, without dead letters. Returns how many."""
    cdef Cursor cursor
    cdef uint64_t offset
    cdef uint64_t count = 0
    for cursor in group.cursors:
        if cursor.floor < cursor.log.first:
            group.skip_to(cursor, cursor.log.first)
        while cursor.ready.count:
            group.settle_offset(cursor, cursor.ready.items[0].offset)
            count += 1
        while cursor.next < cursor.log.next:
            offset = cursor.next
            cursor.next += 1
            if not cursor.is_settled(offset):
                group.settle_offset(cursor, offset)
                count += 1
    while group.waiting.count:
        group.settle_offset(<Cursor>group.waiting.items[0].cursor, group.waiting.items[0].offset)
        count += 1
    group.ready_bytes = 0
    group.write_records()
    return count
