"""A session between two nodes: in the index of topics this stands for it, and takes messages only from those sources
that have not switched to the other node (old owner) or have switched to this one (new owner).

    source 0            clients of this node
    source 1 to 255     another node: PeerInbox.slot

Every message is routed to the old owner before its source's cut, and to the new one behind it, whatever interest the
source knew of; so the session gets it once. docs/internals/cluster.md, "Takeover".

The same for a session that was adopted from a dead node: what others kept for that node is directed to the sessions
adopted from that life of it (Hub.publish_to_life), whatever sources they accept.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from fluxmq._core.memory.message cimport pub_t
from fluxmq._core.pubsub.routes cimport hop_t
from fluxmq._core.pubsub.session cimport Session

cdef class MovingSession:
    cdef readonly Session session
    cdef readonly tuple filters         # under which it is indexed
    cdef uint8_t[256] accepted          # by source
    cdef readonly tuple lives           # epochs of the nodes from which it was adopted

    cdef bint came_from(self, uint64_t life) except -1
    cdef int index(self, bytes filter, void* former, void* target, uint8_t options, uint32_t identifier) except -1
    cdef int deliver(self, pub_t* pub, const hop_t* hop) except -1
