# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Handle. The part of a log that a checkpoint exports: the messages are selected in one instant, their bytes copied
later.

A checkpoint may have hundreds of megabytes. So an export refers to the log's chunks, which are sealed and reference
counted, and has one bit for each message; a block of at most 64 KiB is made on request, in the thread that writes it to
a segment.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from fluxmq._core.errors import CorruptError
from fluxmq._core.queue.log cimport (
    CHUNK_FLUSHED, CHUNK_OPEN, CHUNK_SEALED, NOTHING_WANTED, Log, Needed, chunk_drop, chunk_hold, chunk_t, record_t,
)

__all__ = ["Export", "restore_unflushed", "stored_upto", "unflushed", "unflushed_bytes"]

cdef enum:
    BLOCK_BYTES_MAX = 65536         # of one batch in a segment

cdef struct part_t:
    chunk_t* chunk                  # counted; sealed, so that its contents do not change
    uint8_t* taken                  # a bit for each record of the chunk; NULL: all


cdef inline const record_t* record_of(const part_t* part, uint32_t i) noexcept:
    return <const record_t*>(part.chunk.data + part.chunk.at[i])


cdef inline bint is_taken(const part_t* part, uint32_t i) noexcept:
    return part.taken == NULL or part.taken[i >> 3] >> (i & 7) & 1


cdef inline chunk_t* chunk_at(Log log, uint32_t i) noexcept:
    """Of those that are retained, and those behind them."""
    return log.retained[i] if i < log.retained_count else log.chunks[i - log.retained_count]


def unflushed(Log log not None, Needed needed=None, first=None, uint64_t end=NOTHING_WANTED) -> bytes:
    """Copies the present messages of a log that are needed and not in segments. Nothing is sealed: it is for logs with
    so few of them that they stay in the view (engine/queues/recovery/store.py). The others: as for an Export."""
    cdef uint64_t begin = log.first if first is None else <uint64_t>first
    cdef uint32_t i, j
    cdef chunk_t* chunk
    cdef const record_t* record
    cdef bytearray found = bytearray()
    for i in range(log.retained_count + log.chunks_count):
        chunk = chunk_at(log, i)
        if chunk.state == CHUNK_FLUSHED:
            continue
        for j in range(chunk.count):
            record = <const record_t*>(chunk.data + chunk.at[j])
            if record.offset >= end:
                return bytes(found)
            if record.offset >= begin and (needed is None or needed.is_needed(record.offset)):
                found += (<const char*>record)[:record.size]
    return bytes(found)


def unflushed_bytes(Log log not None, uint64_t first, uint64_t end) -> int:
    """About how many bytes of messages are in this range, and not in segments."""
    cdef uint64_t total = 0
    cdef uint32_t i
    cdef chunk_t* chunk
    for i in range(log.retained_count + log.chunks_count):
        chunk = chunk_at(log, i)
        if chunk.state != CHUNK_FLUSHED and chunk.covers > first and chunk.first < end:
            total += chunk.used
    return total


def stored_upto(Log log not None, uint64_t first, uint64_t end, bint exporting) -> int:
    """Of this range, the offset below which segments have everything; exporting: once exported() is called."""
    cdef uint32_t i
    cdef chunk_t* chunk
    for i in range(log.retained_count + log.chunks_count):
        chunk = chunk_at(log, i)
        if chunk.covers > first and (chunk.state == CHUNK_OPEN or (chunk.state == CHUNK_SEALED and not exporting)):
            return min(max(chunk.first, first), end)
    return end


def restore_unflushed(Log log not None, bytes kept not None):
    """At recovery: restores messages from the view, which has the offset after them (u64, big-endian) and the result of
    unflushed(). Raises CorruptError."""
    if len(kept) < 8:
        raise CorruptError(f"log {log.number:016x}: the state has {len(kept)} bytes where an offset should be")
    log.kept_upto = int.from_bytes(kept[:8], "big")
    log.replay(kept[8:], log.kept_upto)


@cython.final
cdef class Export:
    """Handle. The messages of a log that must be in segments before journal files up to a batch are deleted.

    A chunk with any of them is exported as a whole and sealed, so some messages may be newer than the batch and must be
    durable before segments are written (Keeper waits for that). needed: selects the messages still needed at present;
    None = all. first, end: of what is committed of the log, where it is not what the log has (queue/lend.pyx: divide).
    Log.exported() must follow, or the same messages are exported again.

    Iterating gives (first, last, count, time_min, time_max, due_min, due_max, bytes) for each block of messages (one
    that is larger alone). It may be repeated, in any one thread, whatever happens to the log meanwhile.
    """

    cdef readonly uint64_t messages
    cdef readonly bint left             # the log has more, from later batches
    cdef uint64_t first
    cdef part_t* parts
    cdef uint32_t count

    def __init__(self, Log log not None, uint64_t upto_batch, Needed needed=None, first=None,
                 uint64_t end=NOTHING_WANTED):
        cdef uint32_t i
        cdef chunk_t* chunk
        if self.parts != NULL:
            return
        self.first = log.first if first is None else <uint64_t>first
        self.parts = <part_t*>calloc(log.retained_count + log.chunks_count + 1, sizeof(part_t))
        if self.parts == NULL:
            raise MemoryError()
        for i in range(log.retained_count + log.chunks_count):
            chunk = chunk_at(log, i)
            if chunk.state == CHUNK_FLUSHED:
                continue
            if chunk.batch > upto_batch or chunk.covers > end:
                self.left = True
                break
            self.take(chunk, needed)
            chunk.state = CHUNK_SEALED

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self.count):
            chunk_drop(self.parts[i].chunk)
        free(self.parts)

    cdef int take(self, chunk_t* chunk, Needed needed) except -1:
        cdef part_t* part = &self.parts[self.count]
        cdef uint64_t offset
        cdef uint64_t before = self.messages
        cdef uint32_t i
        part.taken = <uint8_t*>calloc((chunk.count >> 3) + 1, 1)
        if part.taken == NULL:
            raise MemoryError()
        free(chunk.taken)               # of an export that failed
        chunk.taken = part.taken        # exported() needs to know what was kept
        part.chunk = chunk
        chunk_hold(chunk)
        self.count += 1
        for i in range(chunk.count):
            offset = record_of(part, i).offset
            if offset >= self.first and (needed is None or needed.is_needed(offset)):
                part.taken[i >> 3] |= <uint8_t>(1 << (i & 7))
                self.messages += 1
        if self.messages - before == chunk.count:
            free(chunk.taken)
            chunk.taken = part.taken = NULL
        return 0

    def __iter__(self):
        cdef Blocks blocks = Blocks.__new__(Blocks)
        blocks.source = self
        return blocks


@cython.final
cdef class Blocks:
    """Machine. One pass over an Export."""
    cdef Export source
    cdef uint32_t part
    cdef uint32_t at

    def __iter__(self):
        return self

    def __next__(self):
        cdef uint32_t part = self.part
        cdef uint32_t at = self.at
        cdef uint32_t count = 0
        cdef uint64_t size = 0
        cdef uint64_t first = 0
        cdef uint64_t last = 0
        cdef int64_t time_min = 0
        cdef int64_t time_max = 0
        cdef int64_t due_min = 0
        cdef int64_t due_max = 0
        cdef const part_t* here
        cdef const record_t* record
        while part < self.source.count:
            here = &self.source.parts[part]
            while at < here.chunk.count:
                if is_taken(here, at):
                    record = record_of(here, at)
                    if count and size + record.size > BLOCK_BYTES_MAX:
                        break
                    if count == 0:
                        first = record.offset
                        time_min = time_max = record.time_ms
                        due_min = due_max = record.not_before
                    last = record.offset
                    time_min = min(time_min, record.time_ms)
                    time_max = max(time_max, record.time_ms)
                    due_min = min(due_min, record.not_before)
                    due_max = max(due_max, record.not_before)
                    size += record.size
                    count += 1
                at += 1
            if at < here.chunk.count:
                break
            part += 1
            at = 0
        if count == 0:
            raise StopIteration
        raw = self.copied(part, at, size)
        return first, last, count, time_min, time_max, due_min, due_max, raw

    cdef bytes copied(self, uint32_t part, uint32_t at, uint64_t size):
        """Copies the messages from the current position up to a given one, and advances to it."""
        cdef bytes raw = PyBytes_FromStringAndSize(NULL, size)
        cdef char* to = PyBytes_AS_STRING(raw)
        cdef const part_t* here
        cdef const record_t* record
        while self.part < part or (self.part == part and self.at < at):
            here = &self.source.parts[self.part]
            if self.at == here.chunk.count:
                self.part += 1
                self.at = 0
                continue
            if is_taken(here, self.at):
                record = record_of(here, self.at)
                memcpy(to, record, record.size)
                to += record.size
            self.at += 1
        return raw
