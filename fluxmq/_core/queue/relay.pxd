"""A queue whose messages another node has: what its Queue and Groups ask of the way to that node.

Such a Queue keeps no messages. Its groups have members, and claims of what these hold, and nothing else: who gets which
message is decided by the queue's owner (docs/internals/cluster-queues.md). _core/peer/queue_relay.pyx implements it.
"""
from libc.stdint cimport int64_t, uint8_t

from fluxmq._core.memory.message cimport body_t, pub_t
from fluxmq._core.queue.claim cimport Member, claim_t

cdef enum:                  # what becomes of a message that a member holds
    VERB_ACK = 0
    VERB_NACK = 1           # ready again, at once or after a delay
    VERB_REJECT = 2         # dead
    VERB_EXTEND = 3         # it is held on, with a new lease
    VERB_LAST = 3

cdef enum:
    BACKOFF_DEFAULT = -1    # as delay of VERB_NACK: what the group's retry policy says

cdef enum:                  # whether a message's publisher waits for the owner
    RELAY_UNAWAITED = 0
    RELAY_AWAITED = 1       # this gives a ticket, which the owner may refuse
    RELAY_TAKEN = 2         # the same, but a refusal is counted only
    RELAY_FORCED = 3        # as RELAY_AWAITED, of a dead letter: what it asks for in its properties was done before,
                            # and limits do not count

cdef class Relay:
    # Takes a message. awaited: RELAY_*. pub: the publish that it is, which may have an origin, or NULL. Returns 0, or
    # the MQTT 5 reason code of the refusal.
    cdef int publish(self, const body_t* body, uint8_t qos, int awaited, const pub_t* pub) except -1
    # A member's claim ends (all but VERB_EXTEND): the claim is gone when this returns. ms: delay of VERB_NACK, lease of
    # VERB_EXTEND. counts: the delivery counts.
    cdef int settle(self, object group, claim_t* claim, uint8_t verb, int64_t ms, bint counts, str reason) except -1
    # What was settled so far is committed when the ticket is that this gives.
    cdef int barrier(self) except -1
    # A member has joined a group, or only pulls; leaves it, with all that it holds; or gets nothing more.
    cdef int joined(self, object group, Member member, bint pulls) except -1
    cdef int left(self, object group, Member member) except -1
    cdef int rests(self, Member member) except -1
    # Once per turn in which members may have more room, or less.
    cdef int pump(self) except -1
