# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. A log in memory: chunks of messages, appended at one end, dropped at the other. See queue/log.pxd.

    first                    flushed                                   next
      │  (on disk, maybe here) │   only here and in the journal          │
      ▼                        ▼                                         ▼
      [loaded chunk] ……gap…… [ chunk ][ chunk ][      tail chunk     ]

Chunks are in ascending order and never overlap. Messages that are not flushed are always in memory; flushed ones are
while there is room (evict). A gap is filled by load(), which the storage ring calls when `wanted` is in it.

It is one file because all operations maintain the same invariants of the same chunks.
"""
cimport cython
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove, memset

from fluxmq._core.disk.record_kinds cimport RECORD_APPEND
from fluxmq._core.errors import CorruptError, UsageError
from fluxmq._core.envelope.envelope cimport Envelope
from fluxmq._core.memory.message cimport FORMAT_LAST, body_borrow
from fluxmq._core.memory.spans cimport spans_add, spans_end, spans_wait
from fluxmq._core.queue.cache cimport cache_in, cache_out
from fluxmq._core.queue.lanes cimport first_of, lane_of
from fluxmq._core.queue.pages cimport data_free, data_new

from fluxmq._core.queue.sizes cimport Sizes, span_t
from fluxmq._core.wire.primitives cimport put_u64
from fluxmq._core.wire.sizes cimport fit_u32

__all__ = ["Log", "Needed", "Record", "envelope_of"]

NOTHING_WANTED = 0xFFFFFFFFFFFFFFFF

cdef enum:
    HEAD_BYTES = 48
    CHUNK_BYTES_MIN = 512           # many queues have few messages, and a page for each would be most of their memory
    AT_ROOM_MIN = 4
    SPAN_BYTES_MAX = 65536          # of a batch; larger spans are chunks or files


@cython.freelist(64)
@cython.final
cdef class Record:
    """Value. A copy of one message, for the cold half. time_ms: wall clock, ms. expires_at, not_before: steady clock,
    ms; 0 = none."""
    cdef readonly uint64_t offset
    cdef readonly int64_t time_ms
    cdef readonly int64_t expires_at
    cdef readonly int64_t not_before
    cdef readonly bytes topic
    cdef readonly bytes properties
    cdef readonly bytes payload
    cdef readonly uint8_t qos
    cdef readonly uint8_t priority
    cdef readonly uint8_t format     # FORMAT_* of memory/message.pxd

    @property
    def envelope(self) -> Envelope:
        return Envelope(self.format, self.topic, self.properties)

    def __repr__(self) -> str:
        return f"Record(offset={self.offset}, topic={self.topic!r}, payload={self.payload!r})"


cdef Record record_value(const record_t* record, int64_t shift_ms):
    cdef Record value = Record.__new__(Record)
    cdef const char* at = <const char*>record + HEAD_BYTES
    value.offset = record.offset
    value.time_ms = record.time_ms
    value.expires_at = shifted(record.expires_at, -shift_ms)
    value.not_before = shifted(record.not_before, -shift_ms)
    value.topic = at[:record.topic_length]
    at += record.topic_length
    value.properties = at[:record.properties_length]
    at += record.properties_length
    value.payload = at[:record.payload_length]
    value.qos = record.qos & 0x0F
    value.format = record.qos >> 4
    value.priority = record.priority
    return value


def envelope_of(bytes message not None) -> Envelope:
    """Decodes a message in the format of a log. Raises CorruptError."""
    cdef const record_t* record = <const record_t*><const char*>message
    cdef const char* at = <const char*>message + HEAD_BYTES
    if len(message) < HEAD_BYTES or len(message) < HEAD_BYTES + <Py_ssize_t>record.topic_length + \
            record.properties_length:
        raise CorruptError("a message is shorter than it says")
    if record.qos >> 4 > FORMAT_LAST:
        raise CorruptError(f"a message has format {record.qos >> 4}, which this version does not know")
    return Envelope(record.qos >> 4, at[:record.topic_length],
                    (at + record.topic_length)[:record.properties_length])


cdef void record_body(const record_t* record, int64_t shift_ms, body_t* out) noexcept:
    memset(out, 0, sizeof(body_t))
    out.topic = <const uint8_t*>record + HEAD_BYTES
    out.topic_length = record.topic_length
    out.properties = out.topic + record.topic_length
    out.properties_length = record.properties_length
    out.payload = out.properties + record.properties_length
    out.payload_length = record.payload_length
    out.expires_at = shifted(record.expires_at, -shift_ms)
    out.format = record.qos >> 4


cdef void chunk_hold(chunk_t* chunk) noexcept:
    chunk.refs += 1
    if chunk.cached:
        cache_out(chunk)


cdef void chunk_drop(chunk_t* chunk) noexcept:
    chunk.refs -= 1
    if chunk.refs == 1 and chunk.state == CHUNK_FLUSHED:
        cache_in(chunk)
    elif chunk.refs == 0:
        free(chunk.at)
        free(chunk.taken)
        data_free(chunk.data, chunk.room)
        free(chunk)


cdef chunk_t* chunk_new(uint32_t room) except NULL:
    cdef chunk_t* chunk = <chunk_t*>malloc(sizeof(chunk_t))
    if chunk == NULL:
        raise MemoryError()
    memset(chunk, 0, sizeof(chunk_t))
    chunk.refs = 1
    chunk.room = room
    try:
        chunk.data = data_new(room)
    except MemoryError:
        free(chunk)
        raise
    return chunk


cdef chunk_t* chunk_of_message(const uint8_t* message, uint32_t size, int64_t expires_at) except NULL:
    cdef chunk_t* chunk = chunk_new(size)
    memcpy(chunk.data, message, size)
    (<record_t*>chunk.data).expires_at = expires_at
    chunk.used = size
    return chunk


cdef int chunk_index(chunk_t* chunk, uint32_t position) except -1:
    """Makes the record at a position of data the chunk's last one."""
    cdef uint32_t* grown
    cdef uint32_t room
    if chunk.count == chunk.at_room:
        room = chunk.at_room * 2 if chunk.at_room else AT_ROOM_MIN
        grown = <uint32_t*>realloc(chunk.at, room * sizeof(uint32_t))
        if grown == NULL:
            raise MemoryError()
        chunk.at = grown
        chunk.at_room = room
    chunk.at[chunk.count] = position
    chunk.count += 1
    return 0


cdef uint32_t chunk_search(const chunk_t* chunk, uint64_t offset) noexcept:
    """Index of the first record at or above offset; count when there is none."""
    cdef uint32_t low = 0
    cdef uint32_t high = chunk.count
    cdef uint32_t middle
    if offset <= chunk.first:
        return 0
    # Nearly all chunks have every offset, and need no search.
    if chunk.count and chunk.last - chunk.first == chunk.count - 1:
        return fit_u32(offset - chunk.first) if offset <= chunk.last else chunk.count
    while low < high:
        middle = (low + high) // 2
        if record_at(chunk, middle).offset < offset:
            low = middle + 1
        else:
            high = middle
    return low


cdef uint64_t chunk_bytes(const chunk_t* chunk, uint32_t i, uint32_t end) noexcept:
    """Size of the kept records from i up to end."""
    cdef uint64_t total = 0
    if i >= end:
        return 0
    if chunk.taken == NULL or chunk.state != CHUNK_FLUSHED:
        return (chunk.at[end] if end < chunk.count else chunk.used) - chunk.at[i]
    while i < end:
        if chunk.taken[i >> 3] >> (i & 7) & 1:
            total += record_at(chunk, i).size
        i += 1
    return total


cdef class Needed:
    """Decides which messages are still needed. The base class: all of them."""

    cdef bint is_needed(self, uint64_t offset) noexcept:
        return 1


@cython.no_gc_clear             # its chunks leave the ledger's list while it is deallocated, also by the collector
@cython.final
cdef class Log:
    """Machine. One lane of one partition.

    number: its name on disk, unique within a line. lane: in the top byte of every offset. first, next: range in
    segments (both or neither). volatile: kept in memory only and not recorded. line: the commit line of its records;
    None: the journal.
    """

    def __cinit__(self, Ledger ledger not None, uint64_t number, *, int lane=0, first=None, next=None,
                  bint volatile=False, Line line=None):
        cdef uint64_t base = first_of(<uint64_t>lane)
        if not 0 <= lane <= 255 or (first is None) != (next is None):
            raise UsageError("a lane is 0 to 255, and first and next are given together")
        self.ledger = ledger
        self.line = ledger.commits.local if line is None else line
        self.number = number
        self.disk = number if self.line.number == 0 else 0
        self.volatile = volatile
        self.first = base if first is None else <uint64_t>first
        self.next = base if next is None else <uint64_t>next
        if self.first > self.next or lane_of(self.first) != <uint64_t>lane:
            raise UsageError("first is not above next, and both are of the lane")
        self.flushed = self.next
        self.sizes = Sizes()
        self.wanted = NOTHING_WANTED
        self.stored_first = self.stored_next = base
        self.kept_upto = NOTHING_WANTED

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self.chunks_count):
            self.let_go(self.chunks[i])
        for i in range(self.retained_count):
            chunk_drop(self.retained[i])
        free(self.chunks)
        free(self.retained)
        free(self.spans.items)
        if self.namespace is not None:
            self.namespace.bytes -= <int64_t>self.kept_bytes

    # ---------------------------------------------------------------- append

    cdef chunk_t* tail_for(self, uint32_t size) except NULL:
        """The chunk that will have the next message, which has this size."""
        cdef chunk_t* tail = self.chunks[self.chunks_count - 1] if self.chunks_count else NULL
        cdef chunk_t* made
        cdef uint32_t room = self.room_hint if self.room_hint else CHUNK_BYTES_MIN
        if tail != NULL and tail.state == CHUNK_OPEN:
            if tail.room - tail.used >= size:
                return tail
            # Chunks of idle logs are small, and busy logs need few allocations.
            room = self.room_hint = min(room * 2, <uint32_t>CHUNK_BYTES_MAX)
        made = chunk_new(max(room, size))
        try:
            self.insert(self.chunks_count, made)
        except MemoryError:
            chunk_drop(made)
            raise
        return made

    cdef int insert(self, uint32_t at, chunk_t* chunk) except -1:
        cdef chunk_t** grown
        if self.chunks_count == self.chunks_room:
            grown = <chunk_t**>realloc(self.chunks, (self.chunks_room * 2 + 1) * sizeof(chunk_t*))
            if grown == NULL:
                raise MemoryError()
            self.chunks = grown
            self.chunks_room = self.chunks_room * 2 + 1
        memmove(self.chunks + at + 1, self.chunks + at, (self.chunks_count - at) * sizeof(chunk_t*))
        self.chunks[at] = chunk
        self.chunks_count += 1
        self.memory += chunk.room
        chunk.log = <void*>self
        chunk.cache = &self.ledger.cache
        return 0

    cdef void take_out(self, uint32_t at) noexcept:
        cdef chunk_t* chunk = self.chunks[at]
        self.chunks_count -= 1
        memmove(self.chunks + at, self.chunks + at + 1, (self.chunks_count - at) * sizeof(chunk_t*))
        self.memory -= chunk.room
        self.let_go(chunk)

    cdef void let_go(self, chunk_t* chunk) noexcept:
        """Removes a chunk from the log; it may still be in use elsewhere."""
        cache_out(chunk)
        chunk.cache = NULL
        chunk.log = NULL
        chunk_drop(chunk)

    cdef uint64_t append(self, const body_t* body, uint8_t qos, uint8_t priority,
                         int64_t not_before) except? 0xFFFFFFFFFFFFFFFF:
        cdef uint64_t total = HEAD_BYTES + <uint64_t>body.topic_length + body.properties_length + body.payload_length
        cdef uint32_t size = fit_u32((total + 7) & ~<uint64_t>7)
        cdef chunk_t* chunk = self.tail_for(size)
        cdef uint8_t* at = chunk.data + chunk.used
        cdef record_t* record = <record_t*>at
        record.size = size
        record.payload_length = body.payload_length
        record.offset = self.next
        record.time_ms = self.ledger.node.now_ms
        record.expires_at = shifted(body.expires_at, self.line.shift_ms)
        record.not_before = shifted(not_before, self.line.shift_ms)
        record.properties_length = body.properties_length
        record.topic_length = <uint16_t>body.topic_length
        record.qos = qos | body.format << 4
        record.priority = priority
        at += HEAD_BYTES
        memcpy(at, body.topic, body.topic_length)
        at += body.topic_length
        if body.properties_length:
            memcpy(at, body.properties, body.properties_length)
            at += body.properties_length
        if body.payload_length:
            memcpy(at, body.payload, body.payload_length)
        memset(<uint8_t*>record + total, 0, size - total)
        chunk_index(chunk, chunk.used)
        if not self.volatile and self.ledger.keeps(self.line):
            self.journal(chunk, record)
        self.added(chunk, record)
        self.messages_in += 1
        self.bytes_in += size
        return record.offset

    cdef int journal(self, chunk_t* chunk, const record_t* record) except -1:
        cdef uint8_t* written
        try:
            spans_add(&self.spans, self.line, record.offset)
            written = self.ledger.reserve(self.line, RECORD_APPEND, 8 + record.size)
        except BaseException:
            chunk.count -= 1
            raise
        put_u64(written, self.number)
        memcpy(written + 8, record, record.size)
        return 0

    cdef void added(self, chunk_t* chunk, const record_t* record) noexcept:
        if chunk.count == 1:
            chunk.first = record.offset
        chunk.last = record.offset
        chunk.time_max = max(chunk.time_max, record.time_ms)
        chunk.covers = record.offset + 1
        chunk.used += record.size
        if chunk.count == 1:
            chunk.batch = self.ledger.batch()
        self.next = record.offset + 1
        self.unflushed_bytes += record.size
        self.keep(record.size)

    @property
    def lane(self) -> int:
        return lane_of(self.first)

    def append_message(self, bytes topic not None, bytes payload not None, *, bytes properties=b"", int qos=1,
                       int priority=0, int64_t expires_at=0, int64_t not_before=0, int format=0) -> int:
        """For the cold half: appends a message and returns its offset. Raises MemoryError, StorageError."""
        cdef body_t body
        body_borrow(&body, topic, properties, payload, expires_at, <uint8_t>format)
        return self.append(&body, <uint8_t>qos, <uint8_t>priority, not_before)

    cdef int replay_append(self, const uint8_t* message, size_t length) except -1:
        cdef record_t head
        memcpy(&head, message, min(length, sizeof(head)))       # a record of the journal is not aligned
        if length < HEAD_BYTES or not head_holds(&head, length) or head.size != length:
            raise CorruptError(f"log {self.number:016x}: an APPEND record holds what is no message of it")
        return self.take_back(&head, message)

    cdef int take_back(self, const record_t* head, const uint8_t* message) except -1:
        """The message that is next, unless the log has it already. head: its first bytes, aligned."""
        cdef chunk_t* chunk
        if head.offset >= self.next and self.positions_only:
            self.next = self.flushed = head.offset + 1
        elif head.offset >= self.next:
            chunk = self.tail_for(head.size)
            memcpy(chunk.data + chunk.used, message, head.size)
            chunk_index(chunk, chunk.used)
            self.added(chunk, head)
            # Older than all new batches: the next checkpoint must export it in any case, because the files that contain
            # it are deleted then.
            chunk.batch = 0
        return 0

    def replay(self, bytes messages not None, uint64_t next=0):
        """At recovery: applies the message of one APPEND, unless the log has it already. Or, with `next`, restores
        messages from the view (unflushed() in queue/export.pyx): all kept ones from `flushed` up to `next`, except
        those in segments.

        Raises CorruptError if the bytes are no messages, or not of this log.
        """
        cdef const uint8_t* at = <const uint8_t*><const char*>messages
        cdef const uint8_t* end = at + len(messages)
        cdef const record_t* record
        if not next:
            self.replay_append(at, len(messages))
            return
        if not self.room_hint and not self.chunks_count:
            self.room_hint = <uint32_t>min(len(messages), CHUNK_BYTES_MAX)  # small logs get no more than they need
        while at < end:
            record = <const record_t*>at
            if not record_holds(at, end - at) or record.offset >= next:
                raise CorruptError(f"log {self.number:016x}: the state holds what is no message of it")
            self.take_back(record, at)
            at += record.size
        self.room_hint = 0
        if next > self.next:
            self.next = next            # messages in between were settled by all groups; their offsets are not reused
            if self.unflushed_bytes:
                self.chunks[self.chunks_count - 1].covers = next
            else:
                self.flushed = next

    cdef int take_in(self, const uint8_t* message, size_t length, int64_t shift_ms) except -1:
        cdef record_t head
        cdef record_t* kept
        cdef chunk_t* chunk
        memcpy(&head, message, min(length, sizeof(head)))
        if (length < HEAD_BYTES or not head_holds(&head, length) or head.size != length
                or lane_of(head.offset) != lane_of(self.first)):
            raise CorruptError(f"log {self.number:016x}: another node sent what is no message of it")
        if head.offset < self.next:
            return 0
        chunk = self.tail_for(head.size)
        kept = <record_t*>(chunk.data + chunk.used)
        memcpy(kept, message, head.size)
        if kept.expires_at:
            kept.expires_at = max(kept.expires_at + shift_ms, <int64_t>1)
        if kept.not_before:
            kept.not_before = max(kept.not_before + shift_ms, <int64_t>1)
        chunk_index(chunk, chunk.used)
        if not self.volatile and self.ledger.keeps(self.line):
            self.journal(chunk, kept)
            self.ledger.recorded(self.line)
        self.added(chunk, kept)
        return 0

    def mirror(self, uint64_t first, uint64_t next):
        """Another node has this log, with this range by now. Its messages are found here after load(), as if that node
        were the disk."""
        if next > self.next:
            self.next = self.flushed = next
        self.trim(first)

    # ---------------------------------------------------------------- find

    cdef uint32_t chunk_of(self, uint64_t offset) noexcept:
        """Index of the first chunk that ends above offset."""
        cdef uint32_t low = 0
        cdef uint32_t high = self.chunks_count
        cdef uint32_t middle
        if self.found < self.chunks_count and self.chunks[self.found].covers > offset and (
                self.found == 0 or self.chunks[self.found - 1].covers <= offset):
            return self.found
        while low < high:
            middle = (low + high) // 2
            if self.chunks[middle].covers <= offset:
                low = middle + 1
            else:
                high = middle
        self.found = low
        return low

    cdef const record_t* find(self, uint64_t offset, chunk_t** chunk) noexcept:
        cdef uint32_t at, i
        cdef chunk_t* here
        if offset < self.first:
            offset = self.first
        while offset < self.next:
            at = self.chunk_of(offset)
            if at == self.chunks_count or (self.chunks[at].first > offset and offset < self.flushed):
                self.wanted = offset
                return NULL
            here = self.chunks[at]
            i = chunk_search(here, offset)
            if i < here.count:
                if here.cached and here.used_turn != self.ledger.node.turn:
                    cache_out(here)
                    cache_in(here)
                here.used_turn = self.ledger.node.turn
                chunk[0] = here
                return record_at(here, i)
            offset = here.covers            # the rest of its range has been removed
        return NULL

    cdef int64_t now(self) noexcept:
        return self.ledger.node.steady_ms + self.line.shift_ms

    cdef ticket_t waits_for(self, uint64_t offset) noexcept:
        return spans_wait(&self.spans, self.line, offset)

    cdef uint64_t committed_end(self) noexcept:
        return max(spans_end(&self.spans, self.line, self.next), self.first)

    cdef const record_t* following(self, chunk_t* chunk, const record_t* record) noexcept:
        cdef const uint8_t* at = <const uint8_t*>record + record.size
        return <const record_t*>at if at < chunk.data + chunk.used else NULL

    def get(self, uint64_t offset) -> Record | None:
        """The message at an offset, for the cold half. None: it is not kept, or not in memory (then `wanted` is
        set)."""
        cdef chunk_t* chunk = NULL
        cdef const record_t* record
        if not self.first <= offset < self.next:
            return None
        record = self.find(offset, &chunk)
        return record_value(record, self.line.shift_ms) if record != NULL and record.offset == offset else None

    def at_or_above(self, uint64_t offset) -> Record | None:
        """The first message at or above an offset; None as for get."""
        cdef chunk_t* chunk = NULL
        cdef const record_t* record = self.find(offset, &chunk)
        return record_value(record, self.line.shift_ms) if record != NULL else None

    def position_of_time(self, int64_t time_ms) -> int | None:
        """Offset of the first message in memory that was appended at or after a time. None: there is none."""
        cdef uint32_t i, j
        cdef chunk_t* chunk
        for i in range(self.chunks_count):
            chunk = self.chunks[i]
            if chunk.time_max >= time_ms:
                for j in range(chunk.count):
                    if record_at(chunk, j).time_ms >= time_ms and record_at(chunk, j).offset >= self.first:
                        return record_at(chunk, j).offset
        return None

    # ---------------------------------------------------------------- to segments and back

    def exported(self):
        """Called when segments have what the last Export (queue/export.pyx) gave, synced."""
        cdef uint32_t i
        cdef chunk_t* chunk
        cdef uint32_t at
        for i in range(self.retained_count):
            if self.retained[i].state == CHUNK_SEALED:
                self.retained[i].state = CHUNK_FLUSHED
        for i in range(self.chunks_count):
            chunk = self.chunks[i]
            if chunk.state == CHUNK_SEALED:
                at = chunk_search(chunk, self.first)
                self.keep(-<int64_t>chunk_bytes(chunk, at, chunk.count))
                chunk.state = CHUNK_FLUSHED
                self.keep(<int64_t>chunk_bytes(chunk, at, chunk.count))
                self.sizes.add(chunk.covers, chunk_bytes(chunk, at, chunk.count))
                self.flushed = chunk.covers
                self.unflushed_bytes -= chunk.used
                if chunk.refs == 1:
                    cache_in(chunk)
        self.trim(self.first)

    @property
    def exporting(self) -> int:
        """The offset below which everything is in segments once exported() is called."""
        cdef uint32_t i
        cdef uint64_t upto = self.flushed
        for i in range(self.retained_count):
            if self.retained[i].state == CHUNK_SEALED:
                upto = max(upto, self.retained[i].covers)
        for i in range(self.chunks_count):
            if self.chunks[i].state == CHUNK_SEALED:
                upto = self.chunks[i].covers
        return upto

    def load(self, uint64_t first, uint64_t covers, blocks):
        """Adds messages read from segments: the blocks have every kept message in [first, covers), and no others.

        Raises CorruptError if the bytes are no messages in order.
        """
        cdef chunk_t* chunk
        cdef uint32_t at
        cdef bytes block
        cdef Py_ssize_t size = sum(len(block) for block in blocks)
        self.loading = False
        if self.wanted != NOTHING_WANTED and self.wanted < covers:
            self.wanted = NOTHING_WANTED
        covers = min(covers, self.flushed)
        at = self.chunk_of(first)
        # Some of them may be in memory already, in other parts than batches of segments: fills the first gap.
        while first < covers and at < self.chunks_count and self.chunks[at].first <= first:
            first = self.chunks[at].covers
            at += 1
        if at < self.chunks_count and self.chunks[at].first < covers:
            covers = self.chunks[at].first
        if first >= covers:
            return
        chunk = chunk_new(fit_u32(max(size, 8)))
        try:
            for block in blocks:
                self.fill(chunk, block, first, covers)
            chunk.first = first             # of its range, whether or not a message is kept there
            chunk.covers = covers
            chunk.state = CHUNK_FLUSHED
            chunk.used_turn = self.ledger.node.turn
            self.insert(at, chunk)
        except BaseException:
            chunk_drop(chunk)
            raise
        cache_in(chunk)

    cdef int fill(self, chunk_t* chunk, bytes block, uint64_t first, uint64_t covers) except -1:
        cdef const uint8_t* at = <const uint8_t*><const char*>block
        cdef const uint8_t* end = at + len(block)
        cdef const record_t* record
        while at < end:
            record = <const record_t*>at
            if not record_holds(at, end - at) or (chunk.count and record.offset <= chunk.last):
                raise CorruptError(f"log {self.number:016x}: a segment holds what is no message")
            if first <= record.offset < covers:
                memcpy(chunk.data + chunk.used, at, record.size)
                chunk_index(chunk, chunk.used)
                chunk.last = record.offset
                chunk.time_max = max(chunk.time_max, record.time_ms)
                chunk.used += record.size
            at += record.size
        return 0

    # ---------------------------------------------------------------- how much is kept

    cdef void keep(self, int64_t bytes) noexcept:
        """Changes the number of kept bytes."""
        self.kept_bytes += <uint64_t>bytes
        if self.namespace is not None:
            self.namespace.bytes += bytes

    cpdef count_for(self, Namespace namespace):
        if self.namespace is None:
            self.namespace = namespace
            namespace.bytes += <int64_t>self.kept_bytes

    cdef uint64_t bytes_between(self, uint64_t start, uint64_t end, bint* whole) noexcept:
        """Size of kept messages that are in memory. whole: set if all of them are."""
        cdef uint64_t total = 0
        cdef uint32_t at = self.chunk_of(start)
        cdef chunk_t* chunk
        whole[0] = 1
        while start < end:
            if at == self.chunks_count or self.chunks[at].first > start:
                whole[0] = 0
            if at == self.chunks_count or self.chunks[at].first >= end:
                break
            chunk = self.chunks[at]
            total += chunk_bytes(chunk, chunk_search(chunk, start), chunk_search(chunk, end))
            start = chunk.covers
            at += 1
        return total

    cdef void uncount(self, uint64_t first) noexcept:
        """Subtracts from kept_bytes what is below `first`. If a part of a span that is not in memory is removed, its
        size is estimated until the disk is asked or the rest of the span is removed too."""
        cdef uint64_t start = self.first
        cdef uint64_t end, gone
        cdef bint whole = 1
        cdef span_t* span = self.sizes.front()
        while span != NULL and span.end <= first:
            self.keep(-<int64_t>span.bytes)
            start = max(start, span.end)
            self.uncertain = 0
            self.sizes.pop()
            span = self.sizes.front()
        end = min(first, self.flushed)
        if span != NULL and start < end:
            gone = self.bytes_between(start, end, &whole)
            if not whole:
                gone = <uint64_t>(<double>span.bytes / (span.end - start) * (end - start))
                self.uncertain = 1
            gone = min(gone, span.bytes)
            span.bytes -= gone
            self.keep(-<int64_t>gone)
        if first > self.flushed:
            self.keep(-<int64_t>self.bytes_between(max(start, self.flushed), first, &whole))

    def restore_sizes(self, uint64_t first, uint64_t end, list spans not None) -> bool:
        """Sets the sizes of what segments have from `first` up to `end`: (offset behind, bytes) of spans in order. At
        recovery, and when `uncertain`. False: the log has been trimmed meanwhile, so that the values do not apply."""
        cdef Sizes sizes = Sizes()
        cdef span_t* span = self.sizes.front()
        if first != self.first:
            return False
        for behind, size in spans:
            sizes.add(behind, size)
            self.keep(<int64_t>size)
        while span != NULL:
            if span.end <= end:
                self.keep(-<int64_t>span.bytes)
            else:
                sizes.add(span.end, span.bytes)
            self.sizes.pop()
            span = self.sizes.front()
        self.sizes = sizes
        self.uncertain = 0
        return True

    def first_within(self, uint64_t bytes_max) -> int:
        """The offset from which at most `bytes_max` are kept: the lowest one if it is in memory, otherwise the end of
        the span that contains it. If that span is more than a batch (a chunk, a file), its start is returned: the disk
        must be asked first (restore_sizes)."""
        cdef uint64_t kept = self.kept_bytes
        cdef uint64_t offset = self.first
        cdef uint64_t size
        cdef uint32_t i, at
        cdef bint whole = 1
        cdef const span_t* span
        cdef chunk_t* chunk
        for i in range(self.sizes.head, self.sizes.count):
            span = &self.sizes.spans[i]
            if kept <= bytes_max:
                return offset
            if kept - span.bytes < bytes_max:
                self.bytes_between(offset, span.end, &whole)
                if whole:
                    break
                if span.bytes > SPAN_BYTES_MAX and span.end - offset > 1:
                    return offset
            kept -= span.bytes
            offset = span.end
        for i in range(self.chunk_of(offset), self.chunks_count):
            chunk = self.chunks[i]
            for at in range(chunk_search(chunk, offset), chunk.count):
                if kept <= bytes_max:
                    return offset
                size = chunk_bytes(chunk, at, at + 1)
                kept -= min(size, kept)
                offset = record_at(chunk, at).offset + 1
        return offset

    # ---------------------------------------------------------------- letting go

    cpdef trim(self, uint64_t first):
        """Removes everything below `first`, which never decreases."""
        cdef uint32_t i
        cdef chunk_t* chunk
        if first > self.next:
            first = self.next
        if first > self.first:
            self.uncount(first)
            self.first = first
            if self.flushed < first:
                self.flushed = first
        while self.chunks_count and self.chunks[0].covers <= self.first:
            chunk = self.chunks[0]
            if self.retains:
                self.retain(self.retained_count, chunk)
                chunk.refs += 1
            if chunk.state != CHUNK_FLUSHED:
                self.unflushed_bytes -= chunk.used
            self.take_out(0)
        self.found = 0

    cdef int retain(self, uint32_t at, chunk_t* chunk) except -1:
        """A chunk stays until it is released, although the log does not have it any more."""
        cdef chunk_t** grown
        if self.retained_count == self.retained_room:
            grown = <chunk_t**>realloc(self.retained, (self.retained_room * 2 + 1) * sizeof(chunk_t*))
            if grown == NULL:
                raise MemoryError()
            self.retained = grown
            self.retained_room = self.retained_room * 2 + 1
        memmove(self.retained + at + 1, self.retained + at, (self.retained_count - at) * sizeof(chunk_t*))
        self.retained[at] = chunk
        self.retained_count += 1
        return 0

    def evict(self, uint64_t wanted_bytes) -> int:
        """Drops chunks that are in segments, least recently read first, until `wanted_bytes` are freed; returns the
        freed bytes."""
        cdef uint64_t freed = 0
        cdef uint32_t i, oldest
        while freed < wanted_bytes:
            oldest = self.chunks_count
            for i in range(self.chunks_count):
                if self.chunks[i].cached and (
                        oldest == self.chunks_count or self.chunks[i].used_turn < self.chunks[oldest].used_turn):
                    oldest = i
            if oldest == self.chunks_count:
                break
            freed += self.chunks[oldest].room
            self.take_out(oldest)
            self.found = 0
        return freed

    @property
    def cached(self) -> int:
        """Bytes of chunks that could be dropped."""
        cdef uint64_t total = 0
        cdef uint32_t i
        for i in range(self.chunks_count):
            if self.chunks[i].cached:
                total += self.chunks[i].room
        return total


cdef bint record_holds(const uint8_t* at, size_t n) noexcept:
    """Whether a whole message with consistent lengths is here, in a format that this version knows."""
    return n >= HEAD_BYTES and head_holds(<const record_t*>at, n)


cdef bint head_holds(const record_t* record, size_t n) noexcept:
    """As record_holds, of the first HEAD_BYTES."""
    cdef uint64_t inside
    if record.size < HEAD_BYTES or record.size > n or record.size & 7 or record.qos >> 4 > FORMAT_LAST:
        return 0
    inside = HEAD_BYTES + <uint64_t>record.topic_length + record.properties_length + record.payload_length
    return inside <= record.size
