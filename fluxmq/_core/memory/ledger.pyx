# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False
"""Machine. Writes the records of sessions that disk/record_kinds.pxd lists."""
cimport cython
from libc.stdint cimport INT64_MAX
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove

from fluxmq._core.disk.journal_format cimport BATCH_BYTES_MAX
from fluxmq._core.disk.record_kinds cimport (
    RECORD_CLOCK, RECORD_MESSAGE, RECORD_NAMESPACE, RECORD_RETAINED, RECORD_RETAINED_VERSION, RECORD_SENT,
)
from fluxmq._core.memory.message cimport msg_drop
from fluxmq._core.memory.node cimport WORK_SHARE_MAX
from fluxmq._core.wire.primitives cimport put_u8, put_u16, put_u32, put_u64
from fluxmq._core.wire.sizes cimport fit_u32

__all__ = ["Ledger"]

cdef enum:
    CLOCK_BYTES = 64            # upper bound of a CLOCK record with its header


# Defaults until limit_claims.
cdef enum:
    MEMBER_CLAIMS_MAX = 100000
    CLAIMS_MAX = 1000000


@cython.final
@cython.no_gc_clear             # sessions call forget() while they are deallocated, also by the collector
cdef class Ledger:
    """Machine. One per Hub.

    journal: the node's Journal, or None if nothing is durable.
    """

    def __cinit__(self, Journal journal):
        self.journal = journal
        self.commits = Commits(journal)
        self.batch_bytes_max = BATCH_BYTES_MAX // 2     # the other half is for records that must not be refused
        self.dead = []
        self.sessions_with_drops = []
        self.unpumped = []
        self.clock_dirty = []
        self.dirty_queues = {}
        self.limited = []
        self.in_lines = {}
        self.node.member_claims_max = MEMBER_CLAIMS_MAX
        self.node.claims_max = CLAIMS_MAX
        self.node.serve_until_ms = INT64_MAX
        self.node.work_share = WORK_SHARE_MAX           # until a poller divides its rounds
        self.node.work_round = <uint64_t>-1

    def __dealloc__(self):
        free(self.targets)

    cdef uint64_t next_identity(self) noexcept:
        if self.identity_last:
            self.identity_last += 1
        return self.identity_last

    cdef bint active(self) noexcept:
        return self.journal is not None

    cdef uint64_t batch(self) noexcept:
        """The batch that a change recorded now belongs to."""
        return self.journal.gathering if self.journal is not None else 0

    cdef bint keeps(self, Line line) noexcept:
        return line.number != 0 or self.journal is not None

    cdef uint8_t* reserve(self, Line line, uint8_t kind, uint32_t length) except NULL:
        return self.journal.reserve(kind, length) if line.number == 0 else line.reserve(kind, length)

    cdef int recorded(self, Line line) except -1:
        if line.number:
            self.commits.give(line)
        else:
            self.commits.mark += 1
        return 0

    cdef int close_batch(self) except -1:
        if self.journal.gather.records == 0 or (self.clock_batch == self.journal.gathering
                                                and self.clock_records == self.journal.gather.records):
            return 0                # nothing was recorded since
        if self.journal.gather.length + CLOCK_BYTES > BATCH_BYTES_MAX:
            return 0                # the batch is full and takes no more records; the next one gets its own CLOCK
        self.write_clock()
        self.clock_batch = self.journal.gathering
        self.clock_records = self.journal.gather.records
        return 0

    cpdef int submit(self) except -1:
        self.close_batch()
        return self.journal.submit()

    cpdef int poll(self) except -1:
        self.close_batch()
        return self.journal.poll()

    def write_clock(self):
        """Records the time of this turn. Raises StorageError."""
        cdef uint8_t* at = self.journal.reserve(RECORD_CLOCK, 16)
        put_u64(put_u64(at, <uint64_t>self.node.steady_ms), <uint64_t>(self.node.steady_ms + self.node.wall_lead))

    cdef int wait_for_earlier(self, Line line) except -1:
        """The next answer relies on an earlier record, perhaps of another client's change: makes it wait as if it had
        written a record itself. Raises StorageError."""
        if line.number != 0:
            self.commits.give(line)
        elif self.journal is not None and self.journal.backlog():
            self.write_clock()
            self.commits.mark += 1
        return 0

    def hold_queues(self):
        """Queues are not pumped until let_queues_go()."""
        if self.not_pumped is None:
            self.not_pumped = {}

    def let_queues_go(self) -> list:
        """Ends hold_queues(). Returns the queues that were to be pumped meanwhile."""
        held, self.not_pumped = self.not_pumped, None
        return list(held or ())

    def rely_on_earlier(self, uint64_t since):
        """For the cold half: if nothing was recorded since the mark, the answer confirms something that exists already,
        perhaps in a batch that is not durable yet. Makes an answer with this mark wait for it."""
        if self.commits.mark == since:
            self.wait_for_earlier(self.commits.local)

    cdef int write_sequence(self, uint8_t kind, uint64_t session, uint64_t sequence) except -1:
        cdef uint8_t* at = self.journal.reserve(kind, 16)
        put_u64(put_u64(at, session), sequence)
        self.commits.mark += 1
        return 0

    cdef int write_sent(self, uint64_t session, uint64_t sequence, uint16_t packet_id) except -1:
        cdef uint8_t* at = self.journal.reserve(RECORD_SENT, 18)
        put_u16(put_u64(put_u64(at, session), sequence), packet_id)
        self.commits.mark += 1
        return 0

    cdef int write_packet_id(self, uint8_t kind, uint64_t session, uint16_t packet_id) except -1:
        cdef uint8_t* at = self.journal.reserve(kind, 10)
        put_u16(put_u64(at, session), packet_id)
        self.commits.mark += 1
        return 0

    cdef int add_target(self, uint64_t session, uint64_t sequence, uint16_t packet_id, uint8_t first,
                        ids_t* ids) except -1:
        cdef target_t* grown
        cdef target_t* target
        cdef uint32_t capacity
        if self.targets_count == self.targets_capacity:
            capacity = self.targets_capacity * 2 if self.targets_capacity else 64
            grown = <target_t*>realloc(self.targets, capacity * sizeof(target_t))
            if grown == NULL:
                raise MemoryError()
            self.targets = grown
            self.targets_capacity = capacity
        target = &self.targets[self.targets_count]
        target.session = session
        target.sequence = sequence
        target.packet_id = packet_id
        target.first = first
        target.ids = ids
        self.targets_count += 1
        return 0

    cdef void drop_target(self, uint64_t session, uint64_t sequence) noexcept:
        """Reverts add_target: the session has evicted the message before its record was written."""
        cdef uint32_t i
        for i in range(self.targets_count):
            if self.targets[i].session == session and self.targets[i].sequence == sequence:
                self.targets_count -= 1
                memmove(&self.targets[i], &self.targets[i + 1], (self.targets_count - i) * sizeof(target_t))
                return

    cdef int write_message(self, msg_t* msg) except -1:
        """Records the message and every target added since the last record; assigns the message its number."""
        cdef uint64_t size = 31 + body_size(&msg.body)
        cdef uint32_t i, j
        cdef uint32_t count = self.targets_count
        cdef uint8_t* at
        cdef target_t* target
        self.targets_count = 0      # also if there is no room: the next message must not inherit them
        for i in range(count):
            size += 20
            if self.targets[i].ids != NULL:
                size += 4 * min(self.targets[i].ids.count, 255)
        self.message_last += 1
        msg.id = self.message_last
        at = self.journal.reserve(RECORD_MESSAGE, fit_u32(size))
        at = put_u64(at, msg.id)
        at = put_u64(at, <uint64_t>msg.body.expires_at)
        at = put_u8(at, msg.qos)
        at = put_u16(at, <uint16_t>msg.body.topic_length)
        at = put_u32(at, msg.body.properties_length)
        at = put_u32(at, msg.body.payload_length)
        at = put_u32(at, count)
        at = put_body(at, &msg.body)
        for i in range(count):
            target = &self.targets[i]
            at = put_u64(at, target.session)
            at = put_u64(at, target.sequence)
            at = put_u16(at, target.packet_id)
            at = put_u8(at, target.first)
            if target.ids == NULL:
                at = put_u8(at, 0)
                continue
            at = put_u8(at, <uint8_t>min(target.ids.count, 255))
            for j in range(min(target.ids.count, 255)):
                at = put_u32(at, target.ids.items[j])
        self.commits.mark += 1
        return 0

    cdef int write_retained(self, const body_t* body, uint8_t qos, Namespace namespace, uint64_t version=0,
                            uint64_t life=0, bint absent=0) except -1:
        cdef uint8_t* at = self.journal.reserve(RECORD_RETAINED_VERSION if version else RECORD_RETAINED,
                                                fit_u32(27 + body_size(body) + (17 if version else 0)))
        at = put_u64(at, namespace.number)
        at = put_u64(at, <uint64_t>body.expires_at)
        at = put_u8(at, qos)
        at = put_u16(at, <uint16_t>body.topic_length)
        at = put_u32(at, body.properties_length)
        at = put_u32(at, body.payload_length)
        at = put_body(at, body)
        if version:
            put_u8(put_u64(put_u64(at, version), life), absent)
        self.commits.mark += 1
        return 0

    cdef uint64_t namespace_number(self, Line line, Namespace namespace) except? 0xFFFFFFFF:
        cdef uint64_t number
        found = line.namespace_numbers.get(namespace)
        if found is not None:
            return found
        number = <uint64_t>max(line.namespaces) + 1
        line.name_namespace(number, namespace)
        if self.keeps(line):
            self.write(RECORD_NAMESPACE, number.to_bytes(8, "big") + namespace.record, line)
        return number

    def number_of(self, Namespace namespace not None, Line line=None) -> int:
        """The number of the namespace in records of a line (None: the journal); defined there now if it is new."""
        return self.namespace_number(self.commits.local if line is None else line, namespace)

    def write(self, int kind, bytes body not None, Line line=None):
        """Appends one record of the cold half. kind: RECORD_*; body: its bytes after the kind; line: None is the
        journal."""
        cdef Line where = self.commits.local if line is None else line
        memcpy(self.reserve(where, <uint8_t>kind, <uint32_t>len(body)), <const char*>body, len(body))
        self.recorded(where)

    cdef void forget(self, msg_t* msg) noexcept:
        """Drops a reference. If it was the last one and the view has the message, adds the number to `dead`."""
        cdef uint64_t number = msg_drop(msg)
        if number:
            self.dead.append(number)

    def take_dead(self) -> list:
        """Returns and clears the numbers of messages to delete from the view."""
        dead = self.dead
        self.dead = []
        return dead

    @property
    def records(self) -> int:
        """Number of records written so far, except those that no answer waits for."""
        return self.commits.mark - self.commits.tickets

    def limit_claims(self, uint32_t member_max, int64_t node_max):
        """Sets the limits of claims: member_max of a consumer without a limit of its own, node_max of the node."""
        self.node.member_claims_max = member_max
        self.node.claims_max = node_max

    def take_limited(self) -> list:
        """Consumers, readers and groups that got nothing since the last call because of the limits of claims."""
        limited = self.limited
        self.limited = []
        return limited

    def take_clock_dirty(self) -> list:
        """Returns and clears the list of queues that were pumped or whose earliest due time may have changed. The
        caller resets their `clock_dirty`."""
        dirty = self.clock_dirty
        self.clock_dirty = []
        return dirty

    def take_unpumped(self) -> list:
        """Returns and clears the list of queues to be pumped, so that they are not: for recovery."""
        unpumped = self.unpumped
        self.unpumped = []
        return unpumped

    def mark_unpumped(self):
        """Marks the durable queues to be pumped as dirty: the records of one that another's pump appended to, such as
        a dead-letter queue, are in the batch of this turn, and its own pump is in the next."""
        for queue in self.unpumped:
            queue.mark_dirty()

    def take_dirty_queues(self) -> list:
        """Returns and clears the list of durable queues that were pumped or marked. The caller resets their `dirty`."""
        dirty = list(self.dirty_queues)
        self.dirty_queues = {}
        return dirty

    @property
    def dirty_count(self) -> int:
        """Number of queues that take_dirty_queues() would return."""
        return len(self.dirty_queues)

    @property
    def cached_bytes(self) -> int:
        """Bytes of messages in memory that are also in segments and not in use."""
        return self.cache.bytes


cdef inline uint64_t body_size(const body_t* body) noexcept nogil:
    return <uint64_t>body.topic_length + body.properties_length + body.payload_length


cdef inline uint8_t* put_body(uint8_t* at, const body_t* body) noexcept nogil:
    memcpy(at, body.topic, body.topic_length)
    at += body.topic_length
    if body.properties_length:
        memcpy(at, body.properties, body.properties_length)
        at += body.properties_length
    if body.payload_length:
        memcpy(at, body.payload, body.payload_length)
    return at + body.payload_length
