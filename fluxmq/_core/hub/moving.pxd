"""A session between two nodes: it takes messages only from those sources that have not switched to the other node (old
owner) or have switched to this one (new owner).

    source 0            clients of this node
    source 1 to 255     another node: PeerInbox.slot

Every message is routed to the old owner before its source's cut, and to the new one behind it, whatever interest the
source knew of; so the session gets it once. docs/internals/cluster.md, "Takeover". What its client gets with QoS 0 it
gets from everybody: only the node that the client is connected to delivers that.

But a copy of a message of QoS 2 that its publisher has sent again, at another node, may come before the cut of one
source and the first one behind the cut of another, or the reverse. So both nodes note the origins of what comes while
the session moves: the old owner says them with the tail, and the new one leaves out of that what it has itself.

The same for a session that was adopted from a dead node: what others kept for that node is directed to the sessions
adopted from that life of it (Hub.publish_to_life), whatever sources they accept.
"""
from libc.stdint cimport uint8_t, uint64_t

from fluxmq._core.memory.message cimport origin_t, pub_t
from fluxmq._core.pubsub.routes cimport hop_t
from fluxmq._core.pubsub.session cimport Session

cdef class MovingSession:
    cdef readonly Session session
    cdef uint8_t[256] accepted          # by source
    cdef readonly tuple lives           # epochs of the nodes from which it was adopted

    cdef bint notes
    cdef dict came                      # sequence -> origin of what has come since: (name, packet identifier, use)
    cdef set origins                    # of these

    cdef bint came_from(self, uint64_t life) except -1
    cdef int note(self, uint64_t sequence, const origin_t* origin) except -1
    cdef bint takes(self, const pub_t* pub, const hop_t* hop) noexcept
