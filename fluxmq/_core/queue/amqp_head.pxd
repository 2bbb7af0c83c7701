"""The head of a queue as AMQP defines it: pulling one message, expiry and drop-head without a consumer, and purge.
Works on the groups of queue/group.pxd.

The head of a cursor is its lowest ready offset: returned, or never claimed. The head of a group is that of its highest
lane with any.
"""
from libc.stdint cimport int64_t, uint64_t

from fluxmq._core.queue.claim cimport Member
from fluxmq._core.queue.group cimport Group

cdef enum:
    PULL_EMPTY = 0
    PULL_GIVEN = 1              # member.deliver has been called
    PULL_LIMITED = 3            # the member has as many claims as it may have
    PULL_STALLED = 2            # there may be one: it must be read from disk first, then pull again

# Delivers one message to this member, which is in the group (join or attach), whatever its credit. The owner is pumped
# in this turn, so the claim is recorded. After PULL_STALLED, that pump starts the read from disk.
cdef int pull_one(Group group, Member member) except -1
# Unclaimed messages: never claimed, ready again, or waiting for their backoff.
cdef uint64_t ready_count(Group group)
# Drops the oldest messages ("maxlen") until the number and body bytes of ready ones are within the limits; -1: none.
cdef int drop_heads(Group group, int64_t ready_max, int64_t bytes_max) except -1
# Drops expired messages at the head. Returns when the next one expires, wall clock ms; 0: unknown or never.
cdef int64_t expire_heads(Group group) except? -1
# After a start: counts the bodies of messages in memory, and estimates those only in segments from their size there.
# Never above `most`, because a start must not drop messages.
cdef int estimate_ready_bytes(Group group, int64_t most) except -1
