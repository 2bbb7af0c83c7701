# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. A queue moves to another node: its messages, and the groups, which stay the same objects on both.

    old owner   take_out (consumers of other nodes) ─► become_relay: only what members here hold is left
    new owner   a relay's group ─► become_owner: the old owner's state; what members of this node hold they keep
                reserve: what others held is kept for them ─► PeerMember.hold_again, settle_reserved, or nobody in time

An owner that is back keeps in the same way what was claimed when it died (reserve_claimed).

docs/internals/cluster-queues.md, "Moves".
"""
import struct

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.disk.record_kinds cimport RECORD_RETURN
from fluxmq._core.memory.commits cimport Line
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.claim cimport CLAIM_HELD, CLAIM_READY, DELIVER_REFUSED, claim_t, enter, heap_push, heap_remove
from fluxmq._core.queue.cursor cimport PAGE_BITS
from fluxmq._core.queue.lanes cimport lane_of, log_index
from fluxmq._core.queue.log cimport NOTHING_WANTED, Log, chunk_t, record_t
from fluxmq._core.queue.relay cimport VERB_ACK, VERB_EXTEND, VERB_NACK, Relay
from fluxmq._core.wire.sizes cimport fit_u32
from fluxmq._core.queue.state import cursors_in, replay

__all__ = ["Reserve", "become_owner", "become_relay", "messages_from", "reserve", "reserve_claimed", "settle_reserved",
           "take_out"]


cdef class Reserve(Member):
    """Machine. See queue/handover.pxd. It joins by Group.attach, so it gets nothing and counts as no consumer."""

    cdef int deliver(self, claim_t* claim, const record_t* record) except -1:
        return DELIVER_REFUSED


def messages_from(Log log not None, uint64_t offset, uint64_t bytes_max, uint64_t end=NOTHING_WANTED) -> tuple:
    """Copies messages that are in memory, from an offset on and in front of `end`, until there are so many bytes:
    (messages as a log has them, the offset behind them, whether that one must be read from disk first)."""
    cdef bytearray found = bytearray()
    cdef chunk_t* chunk = NULL
    cdef const record_t* record
    cdef uint64_t wanted = log.wanted           # of consumers
    cdef bint missing
    offset = max(offset, log.first)
    try:
        while <uint64_t>len(found) < bytes_max:
            log.wanted = NOTHING_WANTED
            record = log.find(offset, &chunk)
            if record == NULL:
                missing = log.wanted != NOTHING_WANTED
                return bytes(found), log.wanted if missing else log.next, missing
            if record.offset >= end:
                return bytes(found), end, False
            while record != NULL and <uint64_t>len(found) < bytes_max:
                found += (<const char*>record)[:record.size]
                offset = record.offset + 1
                record = log.following(chunk, record)
                if record != NULL and record.offset >= end:
                    return bytes(found), end, False
    finally:
        log.wanted = wanted
    return bytes(found), offset, False


cdef list offsets_of(Cursor cursor):
    """Of all claims."""
    cdef uint32_t i
    cdef claim_t* claim
    found = []
    if cursor.table != NULL:
        for i in range(cursor.table_mask + 1):
            claim = cursor.table[i]
            while claim != NULL:
                found.append(claim.offset)
                claim = claim.chain
    found.sort()
    return found


cdef inline uint32_t index_of(Cursor cursor, uint32_t lanes):
    return log_index(cursor.partition, fit_u32(lane_of(cursor.log.first)), lanes)


def take_out(Group group not None, Member member not None, uint32_t lanes) -> list:
    """A member leaves, and what it holds is forgotten: the group's state was taken before. Returns that:
    [(index of the log in the queue, offset, deliveries)]."""
    cdef claim_t* claim
    found = []
    while member.oldest != NULL:
        claim = member.oldest
        found.append((index_of(<Cursor>claim.cursor, lanes), claim.offset, claim.deliveries))
        group.drop_held(claim)
    (group.members if member in group.members else group.pullers).remove(member)
    member.group = None
    group.unlimit(member)
    group.left(member)
    return found


def become_relay(Group group not None, Relay relay not None, list logs not None):
    """The group of a queue that another node gets: only what members of this node hold is left, without leases. logs:
    of the queue as a relay. The members are the relay's consumers."""
    cdef Cursor cursor
    cdef claim_t* claim
    cdef Py_ssize_t at
    group.write_records()
    for at in range(len(logs)):
        cursor = group.cursors[at]
        for offset in offsets_of(cursor):
            claim = cursor.find(offset)
            if claim.state == CLAIM_HELD and offset >= cursor.log.next:
                lose(group, claim)          # the message was appended, and taken back (queue/lend.pyx)
            elif claim.state == CLAIM_HELD:
                heap_remove(&group.leases, claim)
                claim.due_ms = 0
            else:
                group.unlink(claim)
                group.drop_claim(claim)
        cursor.log = <Log?>logs[at]
        cursor.start_at(cursor.log.first)
    group.number = 0
    group.said = group.expected = None
    group.volatile = True
    group.dirty = False
    group.home = None
    group.on_dead = None
    group.filter = None
    group.ready_bytes = 0
    group.relay = relay
    for member in group.members:
        relay.joined(group, <Member?>member, False)
    for member in group.pullers:
        relay.joined(group, <Member?>member, True)


cdef int lose(Group group, claim_t* claim) except -1:
    """A member of this node holds what the owner does not know as held: it is taken from the member."""
    (<Member>claim.member).withdraw(claim)
    return group.drop_held(claim)


def become_owner(Group group not None, uint64_t number, Line line not None, str mode not None, list logs not None,
                 bytes state):
    """The group of a relay whose messages are here now, in `logs`, with the state that the former owner's group had
    (state_of, with the numbers of these logs); None: that one did not know it, and it begins at the oldest messages. A
    message that a member of this node holds, in the delivery that the owner knows, it holds on. Raises CorruptError."""
    cdef Cursor cursor
    cdef claim_t* claim
    cdef Member member
    cdef Py_ssize_t at, i
    cdef set kept = set()
    cdef bytes raw
    cdef const uint8_t* bits_at
    group.relay = None
    group.number = number
    group.line = line
    for at in range(len(logs)):
        cursor = group.cursors[at]
        cursor.log = <Log?>logs[at]
        cursor.start_at(cursor.log.first)
    group.volatile = (<Cursor>group.cursors[0]).log.volatile or not group.ledger.keeps(line)
    for log_number, next, floor, pages, claims in cursors_in(state) if state is not None else ():
        cursor = group.cursor_of(log_number)
        if cursor is None:
            continue
        cursor.start_at(floor)
        for first, bits in pages:
            raw = bits.to_bytes(1 << (PAGE_BITS - 3), "little")
            bits_at = <const uint8_t*><const char*>raw
            for i in range(1 << PAGE_BITS):
                if bits_at[i >> 3] >> (i & 7) & 1 and <uint64_t>first + i >= cursor.floor:
                    cursor.mark(<uint64_t>first + i)
        for offset, deliveries, due in claims:
            claim = cursor.find(offset)
            if claim != NULL and claim.deliveries == deliveries and due == 0:
                kept.add((log_number, offset))
                member = <Member>claim.member
                if line.number:             # whoever led before may have said that nobody holds it any more
                    group.note_claim(log_number, claim, member)
                if member.lease_ms:
                    claim.due_ms = group.ledger.node.mono_ms + member.lease_ms
                    heap_push(&group.leases, claim)
                continue
            if claim != NULL:
                lose(group, claim)
            replay(group, RECORD_RETURN, struct.pack(">QQQHq", number, log_number, offset, deliveries, due))
        cursor.next = max(cursor.next, <uint64_t>next)
    for cursor in group.cursors:
        for offset in offsets_of(cursor):
            claim = cursor.find(offset)
            if claim.state == CLAIM_HELD and (cursor.log.number, offset) not in kept:
                lose(group, claim)
    group.mode = mode
    group.rank()
    group.balance()
    group.dirty = False
    group.changed()
    group.touch()


cdef bint is_reserved(const claim_t* claim, uint16_t deliveries):
    return (claim != NULL and claim.state == CLAIM_HELD and claim.deliveries == deliveries
            and isinstance(<Member>claim.member, Reserve))


cdef int let_go_one(Group group, claim_t* claim) except -1:
    group.take_from_member(claim)
    claim.due_ms = 0
    enter(claim, CLAIM_READY)
    heap_push(&(<Cursor>claim.cursor).ready, claim)
    group.ready_bytes += claim.payload
    return 0


cdef int let_go_of(Group group, Cursor cursor, uint64_t offset, uint16_t deliveries) except -1:
    cdef claim_t* claim = cursor.find(offset)
    cdef claim_t* behind
    if not is_reserved(claim, deliveries):
        return 0
    if group.mode == "shared" or not isinstance(cursor.holder, Reserve):
        return let_go_one(group, claim)
    # A partition that belongs to one member has one holder: what else is kept has reached nobody. The holder gets that
    # before newer messages.
    claim = cursor.holder.oldest
    while claim != NULL:
        behind = claim.behind
        if claim.cursor == <void*>cursor:
            let_go_one(group, claim)
        claim = behind
    return 0


def reserve(Group group not None, Reserve member not None, uint32_t log, uint64_t offset, uint16_t deliveries) -> bool:
    """Keeps a message that is ready, in this delivery, for the consumer that held it. False: it is not so."""
    if log >= <uint32_t>len(group.cursors):
        return False
    return group.hold_again(<Cursor>group.cursors[log], offset, deliveries, member)


def reserve_claimed(Group group not None) -> Reserve | None:
    """At the start of a node, after recovery: keeps what has been given out already, and is ready, for those who may
    hold it still. Returns what keeps it; None: there is no such message."""
    cdef Cursor cursor
    cdef claim_t* claim
    cdef Reserve one = None
    for cursor in group.cursors:
        for offset in offsets_of(cursor):
            claim = cursor.find(offset)
            if claim.state == CLAIM_READY and claim.deliveries:
                if one is None:
                    one = Reserve()
                    group.attach(one)
                group.hold_again(cursor, offset, claim.deliveries, one)
    return one


def settle_reserved(Group group not None, uint32_t log, uint64_t offset, uint16_t deliveries, int verb, int64_t ms,
                    bint counts, str reason not None) -> bool:
    """A consumer has settled a message (VERB_*) that it held when the queue moved. False: it is not kept for it any
    more."""
    cdef claim_t* claim
    if log >= <uint32_t>len(group.cursors):
        return False
    claim = (<Cursor>group.cursors[log]).find(offset)
    if not is_reserved(claim, deliveries):
        return False
    if verb == VERB_ACK:
        group.settle(claim)
    elif verb == VERB_NACK:
        group.give_back(claim, ms, counts)
    elif verb == VERB_EXTEND:
        by_offset.extend(group, (<Cursor>claim.cursor).log.number, offset, ms)
    else:
        group.reject(claim, reason or "rejected")
    return True
