"""What is retained under a session's new subscriptions, sent as the client takes it.

    SUBSCRIBE ─► add(filter) ─► pending, in order ─► Hub.due ─► run(): a slice in each round of the poller
                                                       ▲            │
                                 on_room, on_attach ───┘            └─ no room, or the client is away: out of the list

Nothing of it is in the line: a message goes from the tree straight into the link (QoS 0) or a free place of the window.
So a client that does not read costs a walk that stands still, and what is in the line or in the window is the session's
as any message is. A pending filter is some hundred bytes whatever it matches; the walk itself is there for the first
only, since the filters of one session are sent one after the other.

Which values: those that were set before the filter was added. A newer one has come to the client as what it was, a
publish, since the subscription stands; so none comes twice, and no older value behind a newer one. While the client is
away, what is published with QoS 0 does not wait for it: such a value is sent when it is back.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from fluxmq._core.memory.ledger cimport Ledger
from fluxmq._core.memory.message cimport ids_t
from fluxmq._core.pubsub.retained cimport RetainedCursor, RetainedNode, RetainedTree
from fluxmq._core.pubsub.session cimport Replay, Session


cdef class Pending:
    """One subscription."""
    cdef bytes filter
    cdef RetainedCursor cursor      # None: not begun
    cdef uint64_t before            # values with a higher stamp were set after it was added
    cdef uint8_t qos                # granted
    cdef ids_t* ids                 # counted; the subscription identifier, or NULL


cdef class RetainedReplay(Replay):
    cdef RetainedTree tree
    cdef Ledger ledger
    cdef list due                   # Hub.due
    cdef bint is_due                # in there
    cdef dict pending               # filter -> Pending, in the order in which they are sent
    cdef uint64_t returned          # stamp of the tree when the client came back last, 0: it was never away

    cdef int add(self, bytes filter, uint8_t qos, uint32_t identifier) except -1
    # The subscription has other options now; it is sent no second time for that.
    cdef int change(self, bytes filter, uint8_t qos, uint32_t identifier) except -1
    cdef int forget(self, bytes filter) except -1
    # Sends until `steps` (nodes looked at) are used up. 1: there is more, and room for it.
    cdef bint run(self, Session session, int* steps) except -1
    cdef int send(self, Session session, Pending pending, RetainedNode node) except -1
