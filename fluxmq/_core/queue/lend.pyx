# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. Two views of one log, at a node that leads the log's line: what it has decided, and what is committed.

    decided     the queue that is served    messages; what is trimmed stays until release()
    committed   its copy                    first and next only

    copy ── lend() ──► served: appends, trims ── undo(): as the copy begins and ends ── give_back() ──► copy

So nothing that is not committed frees what it has settled, and a node that does not lead any more has what its
followers have. engine/queues/recovery/line.py.
"""
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fluxmq._core.errors import UsageError
from fluxmq._core.queue.cache cimport cache_in
from fluxmq._core.queue.lanes cimport lane_of
from fluxmq._core.queue.log cimport (
    CHUNK_FLUSHED, CHUNK_SEALED, NOTHING_WANTED, Log, chunk_bytes, chunk_drop, chunk_index, chunk_new, chunk_search,
    chunk_t, record_at,
)
from fluxmq._core.queue.sizes cimport Sizes
from fluxmq._core.wire.sizes cimport fit_u32

__all__ = ["divide", "give_back", "lend", "mirror_of", "release", "retain", "undo"]


def lend(Log log not None) -> Log:
    """A log of the same number that has the messages from now on; `log` knows positions only until give_back()."""
    cdef Log lent = Log(log.ledger, log.number, lane=log.lane, first=log.first, next=log.next, volatile=log.volatile,
                        line=log.line)
    if log.namespace is not None:
        lent.count_for(log.namespace)
    lent.disk = log.disk
    move(log, lent)
    retain(lent)
    log.positions_only = True
    return lent


def mirror_of(Log log not None):
    """Another log of this number has the messages that come to this empty one: it knows positions only."""
    if log.chunks_count:
        raise UsageError(f"log {log.number:016x} has messages of its own")
    log.positions_only = True


def retain(Log log not None):
    """What is trimmed from now on stays until release(). Line.retaining has the log."""
    log.retains = True
    log.line.retaining[log.number] = log


def release(Log log not None, uint64_t first):
    """Frees what was trimmed, below `first`."""
    cdef uint32_t i = 0
    cdef uint32_t left
    while i < log.retained_count and log.retained[i].covers <= first:
        chunk_drop(log.retained[i])
        i += 1
    if i:
        left = log.retained_count - i
        for at in range(left):
            log.retained[at] = log.retained[at + i]
        log.retained_count = left


def divide(Log log not None, uint64_t end):
    """No chunk goes beyond this offset and begins below it any more: what is below is committed, and an Export takes
    whole chunks."""
    cdef uint32_t at = 0
    cdef chunk_t* made
    while at < log.retained_count and log.retained[at].covers <= end:
        at += 1
    if at < log.retained_count:
        made = behind(log.retained[at], end)
        if made != NULL:
            try:
                log.retain(at + 1, made)
            except BaseException:
                chunk_drop(made)
                raise
            leave(log.retained[at], end)
        return
    at = log.chunk_of(end)
    made = behind(log.chunks[at], end) if at < log.chunks_count else NULL
    if made != NULL:
        try:
            log.insert(at + 1, made)
        except BaseException:
            chunk_drop(made)
            raise
        leave(log.chunks[at], end)


cdef chunk_t* behind(chunk_t* chunk, uint64_t end) except? NULL:
    """A copy of what a chunk has from this offset on; NULL: it has nothing there, or nothing below."""
    cdef uint32_t kept = chunk_search(chunk, end)
    cdef uint32_t i
    cdef chunk_t* made
    if chunk.first >= end or chunk.state == CHUNK_FLUSHED:
        return NULL
    if kept == chunk.count:
        chunk.covers = min(chunk.covers, end)
        return NULL
    made = chunk_new(max(chunk.room - chunk.at[kept], <uint32_t>8))
    try:
        made.used = chunk.used - chunk.at[kept]
        memcpy(made.data, chunk.data + chunk.at[kept], made.used)
        for i in range(kept, chunk.count):
            chunk_index(made, chunk.at[i] - chunk.at[kept])
    except BaseException:
        chunk_drop(made)
        raise
    made.first, made.last, made.covers = record_at(made, 0).offset, chunk.last, chunk.covers
    made.batch, made.time_max = chunk.batch, chunk.time_max
    return made


cdef void leave(chunk_t* chunk, uint64_t end) noexcept:
    """The chunk has only what is below this offset. Whoever has claimed one of the others reads on in its bytes, which
    stay: it takes no more messages, also when it is the last one again."""
    cdef uint32_t kept = chunk_search(chunk, end)
    chunk.state = CHUNK_SEALED
    chunk.used = chunk.at[kept]
    chunk.count = kept
    chunk.last, chunk.covers = record_at(chunk, kept - 1).offset, end


def undo(Log log not None, uint64_t first, uint64_t next):
    """Takes back what was appended from `next` on, and what was trimmed from `first` on and not released."""
    cdef uint32_t at
    cdef uint64_t stored = 0
    if lane_of(first) != lane_of(log.first) or not first <= next <= log.next:
        raise UsageError(f"log {log.number:016x} from {log.first} to {log.next} cannot go back to {first} to {next}")
    release(log, first)
    while log.retained_count:
        log.insert(0, log.retained[log.retained_count - 1])
        log.retained_count -= 1
    while log.chunks_count and log.chunks[log.chunks_count - 1].first >= next:
        log.take_out(log.chunks_count - 1)
    if log.chunks_count:
        cut(log, log.chunks_count - 1, next)
    log.first = first
    log.next = next
    log.flushed = next if log.disk else first
    log.found = 0
    log.wanted = NOTHING_WANTED
    log.keep(-<int64_t>log.kept_bytes)
    log.sizes = Sizes()
    log.unflushed_bytes = 0
    for at in range(log.chunks_count):
        if log.chunks[at].state == CHUNK_FLUSHED:
            stored += chunk_bytes(log.chunks[at], chunk_search(log.chunks[at], first), log.chunks[at].count)
            if log.chunks[at].refs == 1:
                cache_in(log.chunks[at])
            continue
        if log.disk and log.unflushed_bytes == 0:
            log.flushed = max(log.chunks[at].first, first)
        log.unflushed_bytes += log.chunks[at].used
        log.keep(<int64_t>chunk_bytes(log.chunks[at], chunk_search(log.chunks[at], first), log.chunks[at].count))
    if log.flushed > first:             # segments may have more of it than memory: the disk is to be asked
        log.sizes.add(log.flushed, stored)
        log.keep(<int64_t>stored)
        log.uncertain = 1


def give_back(Log log not None, Log lent not None):
    """`log`, which has lent its messages, has them again. Raises UsageError if the two do not begin and end alike."""
    if not log.positions_only or log.number != lent.number or log.first != lent.first or log.next != lent.next:
        raise UsageError(f"log {log.number:016x} from {log.first} to {log.next} has not lent what is from {lent.first} "
                         f"to {lent.next}")
    log.positions_only = lent.retains = False
    move(lent, log)


cdef int move(Log source, Log target) except -1:
    """All messages go from one log to another, which has none."""
    cdef uint32_t at
    cdef int64_t kept = <int64_t>source.kept_bytes
    target.chunks, source.chunks = source.chunks, target.chunks
    target.chunks_count, source.chunks_count = source.chunks_count, 0
    target.chunks_room, source.chunks_room = source.chunks_room, target.chunks_room
    target.sizes, source.sizes = source.sizes, Sizes()
    for at in range(target.chunks_count):
        target.chunks[at].log = <void*>target
    target.flushed, source.flushed = source.flushed, source.next
    target.unflushed_bytes, source.unflushed_bytes = source.unflushed_bytes, 0
    target.memory, source.memory = source.memory, 0
    target.uncertain, source.uncertain = source.uncertain, 0
    target.room_hint = source.room_hint
    target.found = source.found = 0
    source.wanted = NOTHING_WANTED
    source.keep(-kept)
    target.keep(kept)
    return 0


cdef int cut(Log log, uint32_t at, uint64_t next) except -1:
    """The chunk keeps only what is below `next`. It is copied: who has claimed a message of it may read on in the old
    one."""
    cdef chunk_t* chunk = log.chunks[at]
    cdef uint32_t kept = chunk_search(chunk, next)
    cdef chunk_t* made
    cdef uint32_t i
    if kept == chunk.count:
        chunk.covers = min(chunk.covers, next)
        return 0
    made = chunk_new(chunk.room)
    try:
        made.used = chunk.at[kept]
        memcpy(made.data, chunk.data, made.used)
        for i in range(kept):
            chunk_index(made, chunk.at[i])
        made.first, made.last, made.covers = chunk.first, record_at(chunk, kept - 1).offset, next
        made.batch, made.time_max = chunk.batch, chunk.time_max
        log.insert(at, made)
    except BaseException:
        chunk_drop(made)
        raise
    log.take_out(at + 1)
    return 0
