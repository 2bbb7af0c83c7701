# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. A session between two nodes. See hub/moving.pxd."""
cimport cython
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from fluxmq._core.hub.targets cimport trie_of
from fluxmq._core.pubsub.routes cimport HOP_MOVING
from fluxmq._core.pubsub.trie cimport SUB_KIND_UNIT

__all__ = ["MovingSession"]


@cython.final
cdef class MovingSession:
    """Machine. Takes the place of a session in the index, under all of its plain filters, until restore().

    session: has its subscriptions in `subscriptions`, and they are in the index. filters: those of them that are not
    shared and not of queues. accepting: whether messages are taken from every source, or from none. lives: epochs of
    the dead nodes from which it was adopted.
    """

    def __cinit__(self, Session session not None, filters not None, bint accepting, lives=()):
        self.session = session
        self.filters = tuple(filters)
        self.lives = tuple(lives)
        memset(self.accepted, accepting, sizeof(self.accepted))
        for filter in self.filters:
            options, identifier = session.subscriptions[filter]
            self.index(filter, <void*>session, <void*>self, <uint8_t>options | HOP_MOVING * SUB_KIND_UNIT, identifier)

    cdef int index(self, bytes filter, void* former, void* target, uint8_t options, uint32_t identifier) except -1:
        cdef const uint8_t* at = <const uint8_t*><const char*>filter
        trie_of(self.session.namespace).remove(at, len(filter), former)
        trie_of(self.session.namespace).add(at, len(filter), target, identifier, options)
        return 0

    def restore(self):
        """The session is in the index itself again. May be called twice."""
        filters, self.filters = self.filters, ()
        for filter in filters:
            if filter in self.session.subscriptions:
                options, identifier = self.session.subscriptions[filter]
                self.index(filter, <void*>self, <void*>self.session, <uint8_t>options, identifier)
            else:                       # the session has ended
                trie_of(self.session.namespace).remove(<const uint8_t*><const char*>filter, len(filter), <void*>self)

    def accept(self, uint8_t source, bint accepting):
        """Whether messages of a source are for this node's session from now on."""
        self.accepted[source] = accepting

    def accepts(self, uint8_t source) -> bool:
        return self.accepted[source] != 0

    cdef bint came_from(self, uint64_t life) except -1:
        return life in self.lives

    cdef int deliver(self, pub_t* pub, const hop_t* hop) except -1:
        if not self.accepted[pub.from_peer]:
            return 0
        return self.session.deliver_hop(pub, hop)
