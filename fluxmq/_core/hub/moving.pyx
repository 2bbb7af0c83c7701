# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. A session between two nodes. See hub/moving.pxd."""
cimport cython
from libc.string cimport memset

from fluxmq._core.pubsub.trie cimport SUB_QOS_MASK

__all__ = ["MovingSession"]


@cython.final
cdef class MovingSession:
    """Machine. Says from which sources a session takes messages, until restore().

    session: those by its shared subscriptions, and of queues, are no concern of this. accepting: whether it takes them
    from every source, or from none. lives: epochs of the dead nodes from which it was adopted.
    """

    def __cinit__(self, Session session not None, bint accepting, lives=()):
        self.session = session
        self.lives = tuple(lives)
        memset(self.accepted, accepting, sizeof(self.accepted))
        session.moving = self

    def restore(self):
        """The session takes messages from every source again. May be called twice."""
        if self.session.moving is self:
            self.session.moving = None

    def accept(self, uint8_t source, bint accepting):
        """Whether messages of a source are for this node's session from now on."""
        self.accepted[source] = accepting

    def accepts(self, uint8_t source) -> bool:
        return self.accepted[source] != 0

    cdef bint came_from(self, uint64_t life) except -1:
        return life in self.lives

    cdef bint takes(self, const pub_t* pub, const hop_t* hop) noexcept:
        return self.accepted[pub.from_peer] or pub.qos == 0 or hop.options & SUB_QOS_MASK == 0
