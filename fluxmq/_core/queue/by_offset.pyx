# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. For the cold half: messages of a group, named by log and offset.

The records of changes are written by the next pump of the queue, or by Group.flush_records.
"""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fluxmq._core.errors import UsageError

from fluxmq._core.disk.record_kinds cimport RECORD_CURSOR
from fluxmq._core.queue.claim cimport CLAIM_DYING, CLAIM_HELD, Member, claim_member, claim_t, heap_push, heap_remove
from fluxmq._core.queue.cursor cimport Cursor
from fluxmq._core.queue.group cimport Group
from fluxmq._core.queue.relay cimport VERB_EXTEND
from fluxmq._core.wire.primitives cimport put_u64

__all__ = ["claim_of", "extend", "give_back_at", "held_upto", "is_settled", "reject_at", "seek", "settle_any",
           "settle_at"]


def claim_of(Group group not None, uint64_t log_number, uint64_t offset) -> tuple | None:
    """(deliveries, the member that holds it or None); None: never claimed, settled, or dead."""
    cdef Cursor cursor = group.cursor_of(log_number)
    cdef claim_t* claim = cursor.find(offset) if cursor is not None else NULL
    if claim == NULL or claim.state == CLAIM_DYING:
        return None
    holder = <object><Member>claim_member(claim, CLAIM_HELD) if claim.state == CLAIM_HELD else None
    return claim.deliveries, holder


def is_settled(Group group not None, uint64_t log_number, uint64_t offset) -> bool:
    cdef Cursor cursor = group.cursor_of(log_number)
    return cursor is not None and cursor.is_settled(offset)


cdef claim_t* named_claim(Group group, Cursor cursor, uint64_t offset):
    """The claim of a message that a command names by its offset; NULL: none, or the message is dead. A member that
    holds it forgets its handle; a message that nobody holds any more is not among the ready ones from here on."""
    cdef claim_t* claim = cursor.find(offset) if cursor is not None else NULL
    if claim == NULL or claim.state == CLAIM_DYING:
        return NULL
    if claim.state == CLAIM_HELD:
        (<Member>claim_member(claim, CLAIM_HELD)).forget(claim)
    else:
        group.ready_bytes -= claim.payload
    return claim


def settle_at(Group group not None, uint64_t log_number, uint64_t offset) -> bool:
    """Settles a claimed message. False: it is not claimed."""
    cdef claim_t* claim = named_claim(group, group.cursor_of(log_number), offset)
    if claim == NULL:
        return False
    group.settle(claim)
    return True


def settle_any(Group group not None, uint64_t log_number, uint64_t offset):
    """Settles a message, claimed or not."""
    cdef Cursor cursor = group.cursor_of(log_number)
    if cursor is not None:
        named_claim(group, cursor, offset)
        group.settle_offset(cursor, offset)


def held_upto(Group group not None, uint64_t log_number, uint64_t offset, Member member=None) -> list:
    """Offsets, in order, of messages that members (or the given one) hold at or below an offset."""
    cdef Cursor cursor = group.cursor_of(log_number)
    cdef claim_t* claim
    cdef uint32_t i
    found = []
    if cursor is not None and cursor.table != NULL:
        for i in range(cursor.table_mask + 1):
            claim = cursor.table[i]
            while claim != NULL:
                if claim.offset <= offset and claim.state == CLAIM_HELD and (
                        member is None or claim.member == <void*>member):
                    found.append(claim.offset)
                claim = claim.chain
    found.sort()
    return found


def give_back_at(Group group not None, uint64_t log_number, uint64_t offset, int64_t delay_ms=0,
                 bint counts=True) -> bool:
    cdef claim_t* claim = named_claim(group, group.cursor_of(log_number), offset)
    if claim == NULL:
        return False
    group.give_back(claim, delay_ms, counts)
    return True


def reject_at(Group group not None, uint64_t log_number, uint64_t offset, str reason not None) -> bool:
    """Rejects a claimed message. False: it is not claimed."""
    cdef claim_t* claim = named_claim(group, group.cursor_of(log_number), offset)
    if claim == NULL:
        return False
    group.reject(claim, reason)
    return True


def extend(Group group not None, uint64_t log_number, uint64_t offset, int64_t lease_ms) -> bool:
    """Sets the lease of a message to end lease_ms from now; 0: when its member leaves."""
    cdef Cursor cursor = group.cursor_of(log_number)
    cdef claim_t* claim = cursor.find(offset) if cursor is not None else NULL
    if claim == NULL or claim.state != CLAIM_HELD:
        return False
    if group.relay is not None:
        group.relay.settle(group, claim, VERB_EXTEND, lease_ms, False, None)
        return True
    heap_remove(&group.leases, claim)
    claim.due_ms = group.ledger.node.mono_ms + lease_ms if lease_ms else 0
    if lease_ms:
        heap_push(&group.leases, claim)
    group.touch()                            # the timer may have to tick earlier
    return True


cpdef int seek(Group group, uint64_t log_number, uint64_t next) except -1:
    """Moves the group's position in a log: everything below `next` becomes settled, nothing above. Raises
    UsageError while members hold claims."""
    cdef Cursor cursor = group.cursor_of(log_number)
    cdef uint8_t* at
    if cursor is None:
        raise UsageError(f"log {log_number:016x} is not one of the group's")
    if cursor.held:
        raise UsageError("messages are in the hands of members")
    group.move(cursor, next)
    if not group.volatile:
        group.write_records()
        at = group.ledger.reserve(group.line, RECORD_CURSOR, 24)
        put_u64(put_u64(put_u64(at, group.number), log_number), next)
        group.ledger.recorded(group.line)
    group.touch()
    return 0
