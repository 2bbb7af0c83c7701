# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. The records of one commit line that say what becomes of messages, applied to queues: thousands of them for
each that declares or deletes something, which is for the engine (engine/queues/recovery/line.py).

    a batch ─► APPEND, TRIM ──────────────────────► logs[number]
               CLAIM, SETTLE, RETURN, CURSOR ─────► groups[number]      what is not there has ended later in the line
               QUEUE, GROUP, their ends, NAMESPACE ─► cold(kind, number, body)
               every other kind: not about queues

At a start hub/persist.pyx takes the journal apart, and a node that follows another one's line calls apply().
"""
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from fluxmq._core.disk.journal_format cimport journal_next_record
from fluxmq._core.disk.record_kinds cimport (
    RECORD_APPEND, RECORD_CLAIM, RECORD_CURSOR, RECORD_NAMESPACE, RECORD_RETURN, RECORD_SETTLE, RECORD_TRIM,
)
from fluxmq._core.errors import CorruptError

from fluxmq._core.queue.group cimport Group
from fluxmq._core.queue.lanes cimport lane_of
from fluxmq._core.queue.log cimport Log
from fluxmq._core.queue.queue cimport Queue
from fluxmq._core.queue.state cimport replay_record
from fluxmq._core.wire.primitives cimport peek_u64

__all__ = ["LineObjects"]

cdef extern from "string.h" nogil:
    void* memmem(const void* haystack, size_t length, const void* needle, size_t needle_length)

cdef const char* PRODUCER = "producer-id"
cdef size_t PRODUCER_LENGTH = 11


cdef inline bint is_of_group(uint8_t kind) noexcept nogil:
    return kind == RECORD_CLAIM or kind == RECORD_SETTLE or kind == RECORD_RETURN or kind == RECORD_CURSOR


cdef class LineObjects:
    """Machine. The engine puts objects into `logs` and `groups` and takes them out. on_produced: called with the state
    in `logs` and a message that holds the name of the property producer-id somewhere."""

    def __init__(self, on_produced not None):
        self.logs, self.groups = {}, {}
        self.on_produced = on_produced

    def apply(self, bytes records not None, cold not None) -> set:
        """Applies records that were committed together (Line.submit, or a batch of a journal). A repeated application
        has no effect. cold: called with (kind, number, body behind it) of records about queues that are not about
        messages, and of NAMESPACE. Returns the homes of groups that changed, and queues that were trimmed. Raises
        CorruptError: before anything is applied if the bytes do not divide into records, later if one of them is
        none."""
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
            elif kind == RECORD_NAMESPACE or RECORD_APPEND <= kind <= RECORD_TRIM:
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
            group = self.groups.get(peek_u64(body))
            if group is not None:
                replay_record(<Group>group, kind, body, length)
        return 1

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
        cdef uint64_t first
        cdef Log log
        if length != 16:
            raise CorruptError(f"a record of kind {<int>RECORD_TRIM} has {length} bytes")
        found = self.logs.get(peek_u64(body))
        if found is None:
            return 0
        first = peek_u64(body + 8)
        log = <Log>(<tuple>found)[1]
        if first > log.next and lane_of(first) == lane_of(log.first):
            log.replay(b"", first)      # a log that came from another node begins there
        log.trim(first)
        (<Queue>(<tuple>found)[0].queue).note_change()
        return 0
