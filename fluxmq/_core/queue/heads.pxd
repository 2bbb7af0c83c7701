"""The head of a queue as AMQP knows it: who asks for one message, what dies there without a consumer, and purge. Works
on the groups of queue/group.pxd.

The head of a cursor is the lowest offset that nobody has: of what is ready again, else of what was never claimed. The
head of a group is that of its highest lane that has anything.
"""
from libc.stdint cimport int64_t, uint64_t

from fluxmq._core.queue.claim cimport Member
from fluxmq._core.queue.group cimport Group

cdef enum:
    PULL_EMPTY = 0
    PULL_GIVEN = 1              # member.deliver has been called
    PULL_LIMITED = 3            # who asks has as many claims as it may have
    PULL_STALLED = 2            # there may be one: it must be read from disk first, then ask again

# One message to exactly this member, which is in the group (join or attach), whatever its credit; the owner is pumped
# in this turn, so it is recorded. Where the result is PULL_STALLED, that pump sees to it that the disk is read.
cdef int pull_one(Group group, Member member) except -1
# Messages that nobody has: never claimed, ready again, or waiting for their backoff.
cdef uint64_t ready_count(Group group)
# The oldest die ("maxlen") until no more are ready than that, in number and bytes of bodies; -1: any.
cdef int drop_heads(Group group, int64_t ready_max, int64_t bytes_max) except -1
# What has expired at the head dies. Returns when the next one does, wall clock ms; 0: none that is known.
cdef int64_t expire_heads(Group group) except? -1
