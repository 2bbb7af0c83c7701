# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. Statistics of queues, computed without reading messages.

Of a classic queue the numbers are those of the group that is furthest behind:

    ready       messages that it can deliver now; all messages kept if there is no group, and in a stream
    unsettled   messages that its consumers hold
    delayed     messages that wait for their backoff, and those of the queue that are not due yet

QueueSums has totals of all queues. Only queues whose numbers may have changed are measured again, and the totals are
changed by the difference.
"""
cimport cython
from libc.stdint cimport uint64_t
from libc.string cimport memset

from fluxmq._core.memory.ledger cimport Ledger
from fluxmq._core.queue.claim cimport queue_counts_t
from fluxmq._core.queue.cursor cimport Cursor
from fluxmq._core.queue.group cimport Group
from fluxmq._core.queue.queue cimport GAUGES, QUEUE_STREAM, Queue
from fluxmq._core.queue.stream cimport StreamReader

__all__ = ["QueueSums", "group_numbers", "queue_counts", "queue_numbers"]

cdef enum:
    COUNTS = sizeof(queue_counts_t) // sizeof(uint64_t)


cdef void measure(Group group, uint64_t* waits, uint64_t* held):
    """waits: number of unclaimed messages of the group; held: of claimed ones."""
    cdef Cursor cursor
    held[0] = 0
    waits[0] = group.claims
    for cursor in group.cursors:
        held[0] += cursor.held
        if cursor.log.next > max(cursor.next, cursor.log.first):
            waits[0] += cursor.log.next - max(cursor.next, cursor.log.first)
    waits[0] -= min(held[0], waits[0])


def group_numbers(Group group not None) -> tuple:
    """(unclaimed messages, claimed messages) of a group of any type of queue."""
    cdef uint64_t waits, held
    measure(group, &waits, &held)
    return waits, held


cdef int measure_queue(Queue queue, groups, uint64_t* now) except -1:
    """Computes queue_numbers."""
    cdef Group group
    cdef uint64_t waits, held, later
    cdef uint64_t ready = 0
    cdef uint64_t unsettled = 0
    cdef uint64_t delayed = 0
    cdef uint64_t most = 0
    cdef uint64_t consumers = <uint64_t>len(queue.readers)
    cdef uint64_t count = 0
    for group in groups:
        consumers += <uint64_t>len(group.members)
        count += 1
        if queue.kind == QUEUE_STREAM:
            continue
        measure(group, &waits, &held)
        if waits + held > most:
            most = waits + held
            later = min(waits, <uint64_t>group.waiting.count)
            ready, unsettled, delayed = waits - later, held, later
    if not count or queue.kind == QUEUE_STREAM:
        ready = queue.kept()
    if queue.delays is not None:
        delayed += <uint64_t>len(queue.delays)
    now[0] = ready + unsettled + delayed
    now[1] = queue.kept_bytes()
    now[2] = ready
    now[3] = unsettled
    now[4] = consumers
    now[5] = count
    now[6] = delayed
    return 0


def queue_numbers(Queue queue not None, groups) -> tuple:
    """(messages, bytes, ready, unsettled, consumers, groups, delayed) of a queue. groups: all groups of the
    queue, also a stream's. messages: those that the group furthest behind has not settled, and delayed ones; each is
    ready, held by a consumer, or delayed. bytes: of all messages kept, which may be more, because a settled message is
    removed only after those before it. In a stream all messages kept are ready."""
    cdef uint64_t[GAUGES] now
    measure_queue(queue, groups, now)
    return now[0], now[1], now[2], now[3], now[4], now[5], now[6]


@cython.final
cdef class QueueSums:
    """Machine. Totals of all queues, each as of its last measurement.

    A queue that was pumped, or that refused something, is in the ledger's list: catch_up() measures those. Changes
    without a pump (a stream's readers) are measured by the caller that needs them.
    """
    cdef Ledger ledger
    cdef uint64_t[GAUGES] sums
    cdef queue_counts_t happened
    cdef readonly uint64_t measured     # number of measurements so far, for tests

    def __cinit__(self, Ledger ledger not None):
        self.ledger = ledger

    def measure(self, Queue queue not None, groups):
        """Measures a queue. groups: as queue_numbers. Of one whose messages another node has only what happened here
        counts."""
        cdef uint64_t[GAUGES] now
        cdef uint64_t* counts = <uint64_t*>&queue.counts
        cdef uint64_t* counted = <uint64_t*>&queue.measured.counts
        cdef uint64_t* happened = <uint64_t*>&self.happened
        cdef int i
        if queue.relay is None:
            measure_queue(queue, groups, now)
        else:
            memset(now, 0, sizeof(now))
        self.measured += 1
        for i in range(GAUGES):
            self.sums[i] += now[i] - queue.measured.gauges[i]
            queue.measured.gauges[i] = now[i]
        for i in range(COUNTS):
            happened[i] += counts[i] - counted[i]
            counted[i] = counts[i]

    def forget(self, Queue queue not None):
        """Removes a deleted queue; its counts stay."""
        cdef int i
        self.measure(queue, ())
        for i in range(GAUGES):
            self.sums[i] -= queue.measured.gauges[i]
            queue.measured.gauges[i] = 0

    def catch_up(self, dict states not None):
        """Measures changed queues that the clock has not processed yet. states: Queue -> object with its `groups`."""
        for queue in self.ledger.clock_dirty + self.ledger.unpumped:
            state = states.get(queue)
            if state is not None:
                self.measure(<Queue>queue, state.groups.values())

    def now(self) -> tuple:
        """As queue_numbers."""
        return (self.sums[0], self.sums[1], self.sums[2], self.sums[3], self.sums[4], self.sums[5], self.sums[6])

    def counts(self) -> dict:
        """As queue_counts, including deleted queues."""
        return self.happened


def queue_counts(Queue queue not None) -> dict:
    """Counts since the queue was made or the broker started, with the names of queue_counts_t."""
    cdef queue_counts_t counts = queue.counts
    return counts
