# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. The records of one commit line that say what becomes of messages, applied to queues: thousands of them for
each that declares or deletes something, which is for the engine (engine/queues/recovery/line.py).

    a batch ─► APPEND, TRIM ──────────────────────► logs[number]
               CLAIM, SETTLE, RETURN, CURSOR ─────► groups[number]      what is not there has ended later in the line
               CLOCK, NAMESPACE, and others about queues ─► cold(kind, number, body)
               every other kind: not about queues

At a start hub/persist.pyx takes the journal apart, and a node that follows another one's line calls apply(). For a
queue that comes from another node Incoming does, too: what it applies is recorded here.
"""
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fluxmq._core.disk.journal_format cimport RECORD_HEADER_BYTES, journal_next_record, put_u32_le
from fluxmq._core.disk.record_kinds cimport (
    RECORD_APPEND, RECORD_CLAIM, RECORD_CLOCK, RECORD_CURSOR, RECORD_NAMESPACE, RECORD_OWNER, RECORD_RETURN,
    RECORD_SETTLE, RECORD_TRIM, is_known, is_of_queues,
)
from fluxmq._core.errors import CorruptError

from fluxmq._core.queue.group cimport Group
from fluxmq._core.queue.lanes cimport lane_of
from fluxmq._core.queue.log cimport Log, record_holds, record_t
from fluxmq._core.queue.queue cimport Queue
from fluxmq._core.queue.state cimport GROUP_RECORD_MAX, replay_record
from fluxmq._core.wire.primitives cimport peek_u16, peek_u32, peek_u64, put_u64

__all__ = ["Incoming", "LineObjects", "append_records"]

cdef extern from "string.h" nogil:
    void* memmem(const void* haystack, size_t length, const void* needle, size_t needle_length)

cdef const char* PRODUCER = "producer-id"
cdef size_t PRODUCER_LENGTH = 11


cdef inline bint is_of_group(uint8_t kind) noexcept nogil:
    return kind == RECORD_CLAIM or kind == RECORD_SETTLE or kind == RECORD_RETURN or kind == RECORD_CURSOR \
        or kind == RECORD_OWNER


cdef class LineObjects:
    """Machine. The engine puts objects into `logs` and `groups` and takes them out. on_produced: called with the state
    in `logs` and a message that holds the name of the property producer-id somewhere."""

    def __init__(self, on_produced not None):
        self.logs, self.groups = {}, {}
        self.on_produced = on_produced

    def apply(self, bytes records not None, cold not None) -> set:
        """Applies records that were committed together (Line.submit, or a batch of a journal). A repeated application
        has no effect. cold: called with (kind, number, body behind it) of records about queues that are not about
        messages, of NAMESPACE, and of CLOCK, whose number is its first one. Returns the homes of groups that changed,
        and queues that were trimmed. Raises CorruptError: before anything is applied if the bytes do not divide into
        records of known kinds, later if one of them is none."""
        cdef const uint8_t* at = <const uint8_t*><const char*>records
        cdef const uint8_t* end = at + len(records)
        cdef const uint8_t* body = NULL
        cdef uint8_t kind = 0
        cdef uint32_t length = 0
        cdef uint32_t count = 0
        cdef int found = 1
        cdef set changed = set()
        cdef object home = None
        while found > 0:
            found = journal_next_record(&at, end, &kind, &body, &length)
            count += found > 0
            if found > 0 and not is_known(kind):
                raise CorruptError(f"record {count} of a batch is of kind {kind}, which this version does not know")
        if found < 0:
            raise CorruptError(f"a journal batch does not divide into records after {count} of them")
        at = <const uint8_t*><const char*>records
        while journal_next_record(&at, end, &kind, &body, &length) > 0:
            if self.take(kind, body, length):
                if kind == RECORD_TRIM:
                    trimmed = self.logs.get(peek_u64(body))
                    if trimmed is not None:
                        changed.add((<tuple>trimmed)[0].queue)
                elif is_of_group(kind):
                    group = self.groups.get(peek_u64(body))
                    if group is not None and (<Group>group).home is not home:
                        home = (<Group>group).home
                        changed.add(home)
            elif kind == RECORD_NAMESPACE or kind == RECORD_CLOCK or is_of_queues(kind):
                if length < 8:
                    raise CorruptError(f"a record of kind {kind} has {length} bytes")
                cold(kind, peek_u64(body), PyBytes_FromStringAndSize(<const char*>body + 8, length - 8))
        return changed

    cdef int take(self, uint8_t kind, const uint8_t* body, uint32_t length) except -1:
        if not (kind == RECORD_APPEND or kind == RECORD_TRIM or is_of_group(kind)):
            return 0
        if length < 8:
            raise CorruptError(f"a record of kind {kind} has {length} bytes")
        if kind == RECORD_APPEND:
            self.append(body, length)
        elif kind == RECORD_TRIM:
            self.trim(body, length)
        else:
            self.of_group(kind, body, length)
        return 1

    cdef int of_group(self, uint8_t kind, const uint8_t* body, uint32_t length) except -1:
        group = self.groups.get(peek_u64(body))
        if group is not None:
            replay_record(<Group>group, kind, body, length)
        return 0

    cdef int append(self, const uint8_t* body, uint32_t length) except -1:
        found = self.logs.get(peek_u64(body))
        if found is None:
            return 0                    # its queue ended later
        state = (<tuple>found)[0]
        body += 8
        length -= 8
        (<Log>(<tuple>found)[1]).replay_append(body, length)
        (<Queue>state.queue).note_change()
        if memmem(body, length, PRODUCER, PRODUCER_LENGTH) != NULL:
            self.on_produced(state, PyBytes_FromStringAndSize(<const char*>body, length))
        return 0

    cdef int trim(self, const uint8_t* body, uint32_t length) except -1:
        cdef uint64_t first, next
        cdef Log log
        if length != 16 and length != 24:
            raise CorruptError(f"a record of kind {<int>RECORD_TRIM} has {length} bytes")
        found = self.logs.get(peek_u64(body))
        if found is None:
            return 0
        log = <Log>(<tuple>found)[1]
        first = peek_u64(body + 8)
        next = max(first, peek_u64(body + 16)) if length == 24 else first
        if next > log.next and lane_of(next) == lane_of(log.first):
            log.replay(b"", next)       # a log that came from another node begins there, or goes on there
        log.trim(first)
        (<Queue>(<tuple>found)[0].queue).note_change()
        return 0


cdef class Incoming(LineObjects):
    """Machine. As LineObjects, for a queue that comes from another node: the numbers in records, and the keys of
    `groups` and `logs`, are that node's, and the objects have numbers of this one. What is applied is recorded in the
    line of the objects, as if it had been decided here. shift_ms: from that node's clock to the line's, added to
    deadlines. on_produced is not called: what producers have sent is in records of its own. Raises CorruptError also
    for a record about a log or group that was not named before."""

    def __cinit__(self):
        self.held = {}

    cdef int append(self, const uint8_t* body, uint32_t length) except -1:
        cdef tuple found = self.log_of(peek_u64(body))
        (<Log>found[1]).take_in(body + 8, length - 8, self.shift_ms)
        (<Queue>found[0].queue).note_change()
        return 0

    cdef int trim(self, const uint8_t* body, uint32_t length) except -1:
        cdef Log log = <Log>self.log_of(peek_u64(body))[1]
        cdef uint64_t first = log.first
        cdef uint64_t next = log.next
        cdef uint8_t* at
        LineObjects.trim(self, body, length)
        if (log.first != first or log.next != next) and not log.volatile and log.ledger.keeps(log.line):
            at = log.ledger.reserve(log.line, RECORD_TRIM, 24)
            put_u64(at, log.number)
            put_u64(at + 8, log.first)
            put_u64(at + 16, log.next)
            log.ledger.recorded(log.line)
        return 0

    cdef int of_group(self, uint8_t kind, const uint8_t* body, uint32_t length) except -1:
        cdef uint8_t own[GROUP_RECORD_MAX]
        cdef int64_t due
        cdef Group group
        cdef Log log
        if kind == RECORD_OWNER:
            return self.of_owner(body, length)
        if length < 24 or length > GROUP_RECORD_MAX:
            raise CorruptError(f"a record of kind {kind} has {length} bytes")
        group = self.group_of(kind, body)
        log = <Log>self.log_of(peek_u64(body + 8))[1]
        if group.cursor_of(log.number) is None:
            raise CorruptError(f"a record of kind {kind} names a log that its group does not read")
        memcpy(own, body, length)
        put_u64(own, group.number)
        put_u64(own + 8, log.number)
        if kind == RECORD_RETURN and length == 34:
            due = <int64_t>peek_u64(own + 26)
            if due > 0:
                put_u64(own + 26, <uint64_t>max(due + self.shift_ms, <int64_t>1))
        replay_record(group, kind, own, length)
        if kind == RECORD_CLAIM:
            self.held.setdefault(group, []).append(
                (log.number, peek_u64(own + 16), peek_u32(own + 24), peek_u16(own + 28)))
        if kind == RECORD_CLAIM and group.line.number == 0:
            length = 30         # the journal does not say who
        if not group.volatile:
            memcpy(group.ledger.reserve(group.line, kind, length), own, length)
            group.ledger.recorded(group.line)
        return 0

    cdef int of_owner(self, const uint8_t* body, uint32_t length) except -1:
        cdef Group group = self.group_of(RECORD_OWNER, body)
        cdef uint8_t* at
        replay_record(group, RECORD_OWNER, body, length)
        if group.line.number and not group.volatile:        # the journal does not say who
            at = group.ledger.reserve(group.line, RECORD_OWNER, length)
            memcpy(put_u64(at, group.number), body + 8, length - 8)
            group.ledger.recorded(group.line)
        return 0

    cdef Group group_of(self, uint8_t kind, const uint8_t* body):
        found = self.groups.get(peek_u64(body))
        if found is None:
            raise CorruptError(f"a record of kind {kind} names a group {peek_u64(body):016x} that was not sent")
        return <Group>found

    cdef tuple log_of(self, uint64_t number):
        found = self.logs.get(number)
        if found is None:
            raise CorruptError(f"a record names a log {number:016x} that was not sent")
        return <tuple>found


def append_records(uint64_t log, bytes messages not None) -> bytes:
    """APPEND records of messages as a log has them. Raises CorruptError if they are none."""
    cdef const uint8_t* at = <const uint8_t*><const char*>messages
    cdef const uint8_t* end = at + len(messages)
    cdef const uint8_t* here = at
    cdef uint32_t size
    cdef uint32_t count = 0
    cdef uint8_t* out
    while here < end:
        if not record_holds(here, end - here):
            raise CorruptError(f"log {log:016x} has what is no message")
        here += (<const record_t*>here).size
        count += 1
    found = PyBytes_FromStringAndSize(NULL, len(messages) + <Py_ssize_t>count * (RECORD_HEADER_BYTES + 8))
    out = <uint8_t*><char*>found
    while at < end:
        size = (<const record_t*>at).size
        out[0] = RECORD_APPEND
        put_u32_le(out + 1, 8 + size)
        put_u64(out + RECORD_HEADER_BYTES, log)
        memcpy(out + RECORD_HEADER_BYTES + 8, at, size)
        out += RECORD_HEADER_BYTES + 8 + size
        at += size
    return found
