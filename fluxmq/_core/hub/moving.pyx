# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. A session between two nodes. See hub/moving.pxd."""
cimport cython
from libc.string cimport memset

from fluxmq._core.pubsub.trie cimport SUB_QOS_MASK

__all__ = ["MovingSession"]

CAME_MAX = 1 << 14          # origins that are remembered; of more a copy may come twice, and nothing is lost


@cython.final
cdef class MovingSession:
    """Machine. Says from which sources a session takes messages, until restore().

    session: those by its shared subscriptions, and of queues, are no concern of this. accepting: whether it takes them
    from every source, or from none. lives: epochs of the dead nodes from which it was adopted. notes: origins of what
    comes are remembered.
    """

    def __cinit__(self, Session session not None, bint accepting, lives=(), bint notes=False):
        self.session = session
        if notes:           # a hundred thousand may be adopted at once, of which nothing is asked
            self.came = {}
            self.origins = set()
        self.notes = notes
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

    def origins_behind(self, uint64_t after, uint64_t upto) -> list:
        """Of messages of QoS 2 that have come to the session since it moves, in the order of their sequences, which are
        behind `after`, up to `upto`: [(sequence, (name, packet identifier, use))]."""
        return [(sequence, origin) for sequence, origin in self.came.items() if after < sequence <= upto] if (
            self.notes) else []

    def has_come(self, tuple origin not None) -> bool:
        """Whether a message with this origin has come to the session since it moves."""
        return self.notes and origin in self.origins

    cdef int note(self, uint64_t sequence, const origin_t* origin) except -1:
        """The session has a message with an origin."""
        if not self.notes or origin.use == 0:       # an unknown use would stand for every one
            return 0
        cdef tuple key = (origin.name, origin.packet_id, origin.use)
        self.came[sequence] = key
        self.origins.add(key)
        if len(self.came) > CAME_MAX:
            self.origins.discard(self.came.pop(next(iter(self.came))))
        return 0

    cdef bint came_from(self, uint64_t life) except -1:
        return life in self.lives

    cdef bint takes(self, const pub_t* pub, const hop_t* hop) noexcept:
        return self.accepted[pub.from_peer] or pub.qos == 0 or hop.options & SUB_QOS_MASK == 0
