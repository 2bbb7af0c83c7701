# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. Sends retained messages to one session; see pubsub/retained_replay.pxd. MQTT 5.0 section 3.3.1.3."""
cimport cython
from libc.string cimport memset

from fluxmq._core.memory.message cimport ids_drop, ids_new, pub_own, pub_t
from fluxmq._core.memory.node cimport WORK_HOP
from fluxmq._core.pubsub.retained cimport Retained

__all__ = ["RetainedReplay"]

cdef enum:
    LINK_BYTES_MAX = 65536      # bytes in the link's buffer up to which a message is added: the size of one send


@cython.final
cdef class Pending:

    def __dealloc__(self):
        ids_drop(self.ids)

    def set_options(self, int qos, uint32_t identifier):
        ids_drop(self.ids)
        self.ids = ids_new(&identifier, 1) if identifier else NULL
        self.qos = <uint8_t>qos


@cython.final
cdef class RetainedReplay(Replay):
    """Machine. For one session. due: the list of sessions whose replay has messages and room for them."""

    def __cinit__(self, RetainedTree tree not None, Ledger ledger not None, list due not None):
        self.tree = tree
        self.ledger = ledger
        self.due = due
        self.pending = {}

    cdef int add(self, bytes filter, uint8_t qos, uint32_t identifier, uint64_t before) except -1:
        """Starts the replay of a subscription, or starts it again, [MQTT-3.8.4-3]."""
        cdef Pending pending = self.pending.get(filter)
        if pending is not None and pending.before > before:
            # Begun since the subscription was made, for a topic that was set since (Hub.replay_topic): that is all.
            pending.set_options(qos, identifier)
            return 0
        pending = Pending.__new__(Pending)
        pending.filter = filter
        pending.before = before
        pending.set_options(qos, identifier)
        self.pending.pop(filter, None)
        self.pending[filter] = pending
        return 0

    cdef int change(self, bytes filter, uint8_t qos, uint32_t identifier) except -1:
        cdef Pending pending = self.pending.get(filter)
        if pending is not None:
            pending.set_options(qos, identifier)
        return 0

    cdef int forget(self, bytes filter) except -1:
        self.pending.pop(filter, None)
        return 0

    cdef int on_room(self, Session session) except -1:
        if not self.is_due:
            self.is_due = True
            self.due.append(session)
        return 0

    cdef int on_attach(self, Session session) except -1:
        self.returned = self.tree.stamp
        return self.on_room(session)

    def resume(self, Session session not None):
        """What RetainedTree.fetch was asked for is there, or nobody has it."""
        if session.replay is self:
            self.on_room(session)

    cdef bint run(self, Session session, int* steps) except -1:
        cdef Pending pending
        cdef RetainedNode node
        cdef bint in_window
        self.is_due = False
        session.sharing = 0
        while self.pending:
            pending = next(iter(self.pending.values()))
            if pending.cursor is None:
                pending.cursor = RetainedCursor(self.tree, pending.filter)
            in_window = pending.qos != 0
            while True:
                if not session.takes_retained(in_window, min(<size_t>LINK_BYTES_MAX, session.link.low)
                                              if session.link != NULL else 0):
                    session.sharing = in_window
                    return 0
                node = pending.awaited
                if node is None:
                    node = pending.cursor.next(steps)
                    if node is None:
                        break
                elif node.value is None:
                    pending.awaited = None          # cleared meanwhile
                    continue
                if (<Retained>node.value).absent:
                    if self.tree.fetch((<Retained>node.value).topic, self, session):
                        pending.awaited = node
                        session.sharing = in_window
                        return 0
                else:
                    self.send(session, pending, node)
                pending.awaited = None
            if pending.cursor.frames:
                session.sharing = in_window
                return 1                    # the steps are used up
            if self.pending.get(pending.filter) is pending:
                del self.pending[pending.filter]
        session.replay = None
        session.pump()                      # the window is available to the queue again
        return 0

    cdef int send(self, Session session, Pending pending, RetainedNode node) except -1:
        cdef Retained kept = <Retained>node.value
        cdef pub_t pub
        if kept.msg.body.expires_at and kept.msg.body.expires_at <= session.node.steady_ms:
            return 0
        if node.stamp > pending.before and (
                node.stamp > self.returned or min(pending.qos, <uint8_t>kept.msg.qos) != 0):
            return 0                        # it was published to the session, or is in its queue
        memset(&pub, 0, sizeof(pub))
        pub.body = kept.msg.body
        pub.qos = kept.msg.qos
        pub.retain = 1
        session.node.work += WORK_HOP
        try:
            session.deliver_retained(&pub, pending.qos, pending.ids)
            if self.ledger.targets_count:
                self.ledger.write_message(pub_own(&pub))
        finally:
            self.ledger.targets_count = 0
            if pub.owned != NULL:
                self.ledger.forget(pub.owned)
        return 0
