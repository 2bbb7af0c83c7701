"""Sends retained messages for a session's new subscriptions, as fast as the client takes them.

    SUBSCRIBE ─► add(filter) ─► pending, in order ─► Hub.due ─► run(): a slice in each round of the poller
                                                       ▲            │
                                 on_room, on_attach ───┘            └─ no room, or the client is away: out of the list

The session's queue is not used: a message goes from the tree directly into the link (QoS 0) or into a free place of the
window, where it is a message like any other. So a client that does not read costs only a paused walk. A pending filter
takes some hundred bytes whatever it matches; only the first one has a walk, since the filters of a session are sent one
after the other.

A message whose payload is on another node (RetainedTree.fetch) makes this session's replay wait, and no other.

Sent are the values that were set before the subscription was made. The client gets newer ones as normal publishes
through it; so no value is sent twice, and no older one after a newer one. Exceptions: QoS 0 publishes are not queued
for a disconnected client, so such values are sent when it is back; and a value that came from the metadata store of a
cluster was not published here (its stamp is 0).
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from fluxmq._core.memory.ledger cimport Ledger
from fluxmq._core.memory.message cimport ids_t
from fluxmq._core.pubsub.retained cimport RetainedCursor, RetainedNode, RetainedTree
from fluxmq._core.pubsub.session cimport Replay, Session


cdef class Pending:
    """One subscription."""
    cdef bytes filter
    cdef RetainedCursor cursor      # None: not started
    cdef RetainedNode awaited       # its payload is being fetched from another node; None: no such node
    cdef uint64_t before            # values with a higher stamp were set after the subscription was made
    cdef uint8_t qos                # granted
    cdef ids_t* ids                 # counted; the subscription identifier, or NULL


cdef class RetainedReplay(Replay):
    cdef RetainedTree tree
    cdef Ledger ledger
    cdef list due                   # Hub.due
    cdef bint is_due                # whether it is in `due`
    cdef dict pending               # filter -> Pending, in the order in which they are sent
    cdef uint64_t returned          # stamp of the tree at the client's last reconnect; 0: it was never disconnected

    # before: the tree's stamp when the subscription was made.
    cdef int add(self, bytes filter, uint8_t qos, uint32_t identifier, uint64_t before) except -1
    # The subscription's options changed, which sends nothing again.
    cdef int change(self, bytes filter, uint8_t qos, uint32_t identifier) except -1
    cdef int forget(self, bytes filter) except -1
    # Sends until `steps` (nodes visited) are used up. 1: there are more messages, and room for them.
    cdef bint run(self, Session session, int* steps) except -1
    cdef int send(self, Session session, Pending pending, RetainedNode node) except -1
