# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. Blocks of a stream's messages for other nodes. See peer/feed.pxd.

A block has messages as a log has them, one after another, but that each says in how many ms it expires instead of when
(-1: it has expired): clocks of nodes differ.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.string cimport memcpy

from fluxmq._core.queue.log cimport NOTHING_WANTED, Log, chunk_t, record_t

__all__ = ["PeerFeed", "with_expiry"]

cdef enum:
    PIECES_MAX = 64                 # chunks of which a block has messages
    BURST_BYTES_MAX = 1048576       # in one pump, about: a millisecond of the loop, however many logs are read
    RECORD_HEAD_BYTES = 48          # queue/log.pxd

cdef struct piece_t:
    const uint8_t* at
    size_t length


def with_expiry(bytes block not None, int64_t steady_ms) -> bytes:
    """A block of another node with the times of this one's steady clock (ms)."""
    cdef Py_ssize_t length = len(block)
    cdef Py_ssize_t at = 0
    cdef const uint8_t* found = <const uint8_t*>PyBytes_AS_STRING(block)
    cdef record_t* record
    cdef bytes made = None
    while at + RECORD_HEAD_BYTES <= length:
        record = <record_t*>(found + at)
        if record.expires_at:
            if made is None:
                made = PyBytes_FromStringAndSize(<const char*>found, length)
                found = <const uint8_t*>PyBytes_AS_STRING(made)
                record = <record_t*>(found + at)
            record.expires_at = max(record.expires_at + steady_ms, <int64_t>1)     # 0: never
        if record.size < RECORD_HEAD_BYTES:
            break                   # Log.load says what is wrong
        at += record.size
    return block if made is None else made


@cython.final
cdef class PeerFeed(Feed):
    """Machine. outbox: to the node that reads. encode: (first, end, start, covers, block) -> the answer as bytes:
    range of the log, and the block, which has every message kept in [start, covers)."""

    def __init__(self, PeerOutbox outbox not None, Queue queue not None, encode not None):
        self.outbox = outbox
        self.queue = queue
        self.encode = encode
        self.asked = []

    def ask(self, uint32_t number, uint32_t at, uint64_t offset, uint64_t bytes_max):
        """A question, which is answered when there is a message at or above the offset: bytes_max at most, but at
        least one message. at: index of the log in the queue; the caller has checked it."""
        self.asked.append((number, at, offset, bytes_max))
        self.queue.touch()

    def end(self) -> list:
        """Answers nothing more. Returns the numbers of the questions."""
        numbers = [number for number, *_ in self.asked]
        self.asked = []
        return numbers

    cdef int pump(self) except -1:
        cdef list left = None
        cdef int64_t given = 0
        cdef int64_t size
        self.stalled = False
        for question in self.asked:
            size = self.answer(question[0], question[1], question[2], question[3]) if given < BURST_BYTES_MAX else 0
            given += size
            if size == 0:
                if left is None:
                    left = []
                left.append(question)
        if left is not None and given >= BURST_BYTES_MAX:
            self.queue.touch()          # the others go on with the next turn
        if self.asked:
            self.asked = [] if left is None else left
        return 0

    cdef int64_t answer(self, uint32_t number, uint32_t at, uint64_t offset, uint64_t bytes_max) except -1:
        cdef Log log = <Log>self.queue.logs[at]
        cdef piece_t[PIECES_MAX] pieces
        cdef uint32_t count = 0
        cdef uint64_t total = 0
        cdef uint64_t here = max(offset, log.first)
        cdef uint64_t end
        cdef bint expires = 0
        cdef chunk_t* chunk = NULL
        cdef const record_t* record = NULL
        cdef const record_t* last = NULL
        cdef bytes block
        cdef uint8_t* out
        if not self.outbox.takes_queues():
            return 0
        if self.outbox.full():
            self.outbox.starved = True
            return 0
        while count < PIECES_MAX:
            record = log.find(here, &chunk)
            if record == NULL or (total and total + record.size > bytes_max):
                break
            pieces[count].at = <const uint8_t*>record
            # With what a block has, a large message might be more than a frame takes: it has the next one for itself.
            while record != NULL and (total == 0 or total + record.size <= bytes_max):
                total += record.size
                expires = expires or record.expires_at != 0
                last = record
                record = log.following(chunk, record)
            pieces[count].length = <const uint8_t*>last + last.size - pieces[count].at
            count += 1
            here = last.offset + 1
        if count == 0:
            self.stalled = self.stalled or log.wanted != NOTHING_WANTED     # of any of its questions
            return 0
        block = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>total)
        out = <uint8_t*>PyBytes_AS_STRING(block)
        for i in range(count):
            memcpy(out, pieces[i].at, pieces[i].length)
            out += pieces[i].length
        if expires:
            self.tell_rest(<uint8_t*>PyBytes_AS_STRING(block), out)
        end = max(here, log.committed_end())
        self.outbox.take_result(number, self.encode(log.first, end, offset, here, block), log.waits_for(here - 1))
        return <int64_t>total

    cdef void tell_rest(self, uint8_t* at, const uint8_t* end) noexcept:
        """Replaces the times at which messages expire by what is left until then. 0 would mean that one never does."""
        cdef int64_t now = self.queue.ledger.node.steady_ms + self.queue.line.shift_ms
        cdef record_t* record
        while at < end:
            record = <record_t*>at
            if record.expires_at:
                record.expires_at -= now
                if record.expires_at <= 0:
                    record.expires_at = -1
            at += record.size
