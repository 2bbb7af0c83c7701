# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. Delayed messages: see queue/delay.pxd.

A delayed message needs 12 bytes in the heap. Its bytes are stored as those of other messages: in the log's chunks until
the segments have them. Due messages are taken out in rounds, in order. For messages of a round that are on disk, the
storage ring reads only these, one batch of a segment after the other: due times may be scattered over the whole log,
and loading whole chunks would load each for a single message.
"""
cimport cython
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from fluxmq._core.queue.due cimport due_offset, due_time
from fluxmq._core.queue.log cimport NOTHING_WANTED, chunk_t, shifted

__all__ = ["Delays"]

cdef enum:
    PAIR_BYTES = 16             # in a segment's footer: i64 due, u64 offset, little-endian


@cython.final
cdef class Delays:
    """Machine. log: in memory or with messages in segments. group: without a cursor; it gets one of the log here."""

    def __cinit__(self, Log log not None, Group group not None):
        self.log = log
        self.group = group
        self.ledger = log.ledger
        group.add_cursor(log)
        self.cursor = <Cursor>group.cursors[0]
        self.heap = DueHeap()
        self.picked = {}

    def __dealloc__(self):
        free(self.round)

    def __len__(self) -> int:
        return self.heap.count + self.round_count - self.round_at

    # ---------------------------------------------------------------- in

    cdef int append(self, const body_t* body, uint8_t qos, uint8_t priority, int64_t not_before) except -1:
        self.heap.reserve(self.heap.count + 1)          # first, because every message in the log must be in the heap
        self.heap.push_due(shifted(not_before, self.log.line.shift_ms),
                           self.log.append(body, qos, priority, not_before))
        self.newest_due = not_before
        return 0

    def restore_pairs(self, const uint8_t[::1] pairs not None):
        """At recovery: adds due times of messages in segments, except settled ones and those not flushed."""
        cdef size_t at
        cdef int64_t due
        cdef uint64_t offset
        for at in range(0, <size_t>pairs.shape[0] // PAIR_BYTES * PAIR_BYTES, PAIR_BYTES):
            memcpy(&due, &pairs[at], 8)
            memcpy(&offset, &pairs[at + 8], 8)
            if self.log.first <= offset < self.log.flushed and not self.cursor.is_settled(offset):
                self.heap.add(due, offset)

    def restored(self):
        """At recovery: called after restore_pairs, and after the journal's replay. Trims what was settled, because
        move_due only does so once another message is due."""
        cdef chunk_t* chunk = NULL
        cdef const record_t* record = NULL
        cdef uint64_t next
        self.trim_settled()
        next = self.log.flushed
        while next < self.log.next:
            record = self.log.find(next, &chunk)
            if record == NULL:
                break
            while record != NULL:
                next = record.offset + 1
                if not self.cursor.is_settled(record.offset):
                    self.heap.add(record.not_before, record.offset)
                record = self.log.following(chunk, record)
        self.heap.heapify()

    def restart(self):
        """Clears the heap; restore_pairs and restored fill it again."""
        self.heap = DueHeap()
        self.round_at = self.round_count = 0
        self.picked = {}
        self.busy = False

    def forget(self):
        """Clears everything, because the log has been trimmed to its end."""
        self.restart()
        self.group.skip_to(self.cursor, self.log.first)

    # ---------------------------------------------------------------- out

    def first_due(self) -> int | None:
        """The next due time, steady clock, ms; None: there are no delayed messages."""
        due = due_time(self.round[self.round_at]) if self.round_at < self.round_count else self.heap.first()
        return None if due is None else due - self.log.line.shift_ms

    cdef bint is_due(self) noexcept:
        return self.round_at < self.round_count or self.is_due_in_heap()

    cdef bint is_due_in_heap(self) noexcept:
        return self.heap.count != 0 and due_time(self.heap.items[0]) <= self.log.now()

    cdef int begin_round(self) except -1:
        self.round_at = self.round_count = 0
        if not self.is_due():
            free(self.round)                            # most queues have nothing due most of the time
            self.round = NULL
            return 0
        if self.round == NULL:
            self.round = <due_t*>malloc(ROUND_MAX * sizeof(due_t))
            if self.round == NULL:
                raise MemoryError()
        while self.round_count < ROUND_MAX and self.is_due_in_heap():
            self.round[self.round_count] = self.heap.take_first()
            self.round_count += 1
        return 0

    cdef const record_t* in_memory(self, uint64_t offset) noexcept:
        cdef chunk_t* chunk = NULL
        cdef const record_t* record = self.log.find(offset, &chunk)
        self.log.wanted = NOTHING_WANTED                # chunks are not loaded for this
        return record if record != NULL and record.offset == offset else NULL

    cdef const record_t* head(self) except? NULL:
        cdef uint64_t offset
        cdef const record_t* record
        while True:
            if self.round_at == self.round_count:
                self.begin_round()
                if self.round_count == 0:
                    return NULL
            offset = due_offset(self.round[self.round_at])
            record = self.in_memory(offset)
            if record != NULL:
                return record
            found = self.picked.get(offset)
            if found:
                return <const record_t*><const char*><bytes>found
            if found is None and self.log.first <= offset < self.log.flushed:
                return NULL
            self.settle_head()                          # the message is not stored any more

    cdef int settle_head(self) except -1:
        cdef uint64_t offset = due_offset(self.round[self.round_at])
        self.round_at += 1
        if self.picked:
            self.picked.pop(offset, None)
        self.group.settle_offset(self.cursor, offset)
        return 0

    cdef int finish(self) except -1:
        self.group.write_records()
        return self.trim_settled()

    cdef int trim_settled(self) except -1:
        if self.cursor.floor > self.log.first:
            self.log.trim(self.cursor.floor)
        return 0

    def missing(self) -> list:
        """Offsets of this round's messages that must be read from disk before anything moves, in order."""
        cdef uint32_t i
        cdef uint64_t offset
        cdef list offsets = []
        for i in range(self.round_at, self.round_count):
            offset = due_offset(self.round[i])
            if offset < self.log.flushed and offset not in self.picked and self.in_memory(offset) == NULL:
                offsets.append(offset)
        return offsets

    def found(self, dict messages not None):
        """Passes messages read from disk: their bytes in segments, by offset; b"" for one that no file has."""
        self.picked.update(messages)
