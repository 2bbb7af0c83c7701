# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. Queues in numbers, for who looks at them: no message is touched, whatever their number.

    kept        messages in the queue
    ready       of a classic queue: what the group that is furthest behind has still to hand out, what waits for its
                backoff included; without a group all. Of a stream: what the group furthest behind has still to read
    unsettled   in the hands of consumers now, of all groups together
"""
from libc.stdint cimport uint64_t

from fluxmq._core.queue cimport QUEUE_STREAM, Queue
from fluxmq._core.queue_claim cimport queue_counts_t
from fluxmq._core.queue_cursor cimport Cursor
from fluxmq._core.queue_group cimport Group
from fluxmq._core.queue_stream cimport StreamReader

__all__ = ["group_numbers", "queue_counts", "queue_numbers"]


cdef void measure(Group group, uint64_t* waits, uint64_t* held):
    """waits: messages of the group that nobody has in hand; held: those that somebody has."""
    cdef Cursor cursor
    held[0] = 0
    waits[0] = group.claims
    for cursor in group.cursors:
        held[0] += cursor.held
        if cursor.log.next > max(cursor.next, cursor.log.first):
            waits[0] += cursor.log.next - max(cursor.next, cursor.log.first)
    waits[0] -= min(held[0], waits[0])


def group_numbers(Group group not None) -> tuple:
    """(messages that nobody has in hand, messages in hands) of a group of any type of queue."""
    cdef uint64_t waits, held
    measure(group, &waits, &held)
    return waits, held


def queue_numbers(Queue queue not None, groups) -> tuple:
    """(kept, bytes, ready, unsettled, consumers) of a queue. groups: all that it has, also a stream's."""
    cdef Group group
    cdef StreamReader reader
    cdef uint64_t waits, held
    cdef uint64_t ready = 0
    cdef uint64_t unsettled = 0
    cdef uint64_t kept = queue.kept()
    cdef uint64_t consumers = <uint64_t>len(queue.readers)
    cdef bint alone = queue.kind != QUEUE_STREAM
    for group in groups:
        measure(group, &waits, &held)
        ready = max(ready, waits)
        unsettled += held
        consumers += <uint64_t>len(group.members)
        alone = False
    for reader in queue.readers:
        unsettled += reader.held
    return kept, queue.kept_bytes(), kept if alone else ready, unsettled, consumers


def queue_counts(Queue queue not None) -> dict:
    """What has been counted since the queue was made or the broker started, by the names of queue_counts_t."""
    cdef queue_counts_t counts = queue.counts
    return counts
