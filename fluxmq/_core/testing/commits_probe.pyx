# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Links without sockets that wait for commit lines: what leaves them, and what they are refused."""
cimport cython
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.hub.hub cimport Hub
from fluxmq._core.memory.commits cimport HELD_ACK, HELD_NOTIFY, Line, Waiter, must_wait, ticket_t
from fluxmq._core.memory.link cimport link_ack, link_close, link_drop, link_new, link_sent, link_t
from fluxmq._core.memory.tickets cimport Tickets
from fluxmq._core.mqtt.consts cimport PUBACK
from fluxmq._core.pubsub.session cimport Session

__all__ = ["WaitingLink", "end_turn", "release", "wait_rounds"]


@cython.final
cdef class LineWaiter(Waiter):
    cdef WaitingLink link
    cdef int number

    cdef int on_committed(self, uint32_t line, uint64_t position) except -1:
        self.link.left.append((self.number, None))
        return 0

    cdef int on_given_up(self, uint32_t line, uint64_t position, uint8_t packet_type, uint16_t packet_id,
                         str why) except -1:
        self.link.left.append((self.number, why))
        return 0


@cython.final
@cython.no_gc_clear
cdef class WaitingLink(Waiter):
    """One connection's outbound half. left: (number, why it was refused or None) of what left it, in order."""
    cdef readonly list left
    cdef Hub hub
    cdef link_t* link

    def __cinit__(self, Hub hub not None):
        self.hub = hub
        self.left = []
        self.link = link_new(hub.node, -1)
        self.link.open = 1
        self.link.version = 4
        self.link.owner = <void*>self

    def __dealloc__(self):
        if self.link != NULL:
            self.link.owner = NULL
            link_drop(self.link)

    @property
    def waiting(self) -> int:
        """Of its answers and deliveries, those that have not left."""
        return self.link.held

    def answer(self, int number, uint64_t since) -> bool:
        """Answers behind its elders and all since a mark. Whether it had to wait."""
        if (must_wait(self.hub.commits, self.link, since)
                and self.hub.commits.hold(HELD_ACK, self.link, None, PUBACK, <uint16_t>number, 0, since)):
            return True
        link_ack(self.link, PUBACK, <uint16_t>number, 0)
        self.look()
        return False

    def answer_all(self, int number, Tickets tickets not None):
        """Answers work of several turns, behind its elders. Whether it had to wait; None: it is refused."""
        if tickets.why is not None:
            self.left.append((number, tickets.why))
            return None
        tickets.collect()
        if self.hub.commits.hold_needed(HELD_ACK, self.link, None, PUBACK, <uint16_t>number, 0):
            return True
        link_ack(self.link, PUBACK, <uint16_t>number, 0)
        self.look()
        return False

    def notify_at(self, int number, Line line not None, uint64_t position):
        """As what a channel waits for: one ticket, behind nobody."""
        cdef LineWaiter waiter = LineWaiter.__new__(LineWaiter)
        waiter.link = self
        waiter.number = number
        self.hub.commits.hold_at(ticket_t(position, line.number, 1, 0), HELD_NOTIFY, self.link, waiter, 0, 0)

    def attach(self, Session session not None):
        """It is the connection of this session's client."""
        session.attach(self.link, 65535)

    def close(self):
        """The connection ends: nothing leaves it any more."""
        self.link.owner = NULL
        link_close(self.link)

    cdef int on_given_up(self, uint32_t line, uint64_t position, uint8_t packet_type, uint16_t packet_id,
                         str why) except -1:
        self.look()
        self.left.append((packet_id, why))
        return 0

    def look(self):
        """What was written becomes entries of `left`."""
        cdef bytes data
        while self.link.head != NULL:
            data = (<const char*>self.link.head.data)[self.link.head.start:self.link.head.end]
            link_sent(self.link, len(data))
            self.left.extend((data[at + 2] << 8 | data[at + 3], None) for at in range(0, len(data), 4))


def release(Hub hub not None):
    """What the end of a turn does for commit lines; links that have something to send are for `look`."""
    cdef link_t* link
    hub.release()
    while hub.node.dirty != NULL:
        link = <link_t*>hub.node.dirty
        hub.node.dirty = <void*>link.next_dirty
        link.next_dirty = NULL
        link.dirty = 0
        link_drop(link)


def end_turn(Hub hub not None):
    """Who was given tickets until now has its waits; marks that are older ask for all of each line since."""
    hub.commits.end_turn()


def wait_rounds(Hub hub not None, list links not None, Line first not None, Line second not None,
                uint32_t rounds) -> int:
    """In each round every link answers once, for which something was given to two lines (or twice to one); they commit
    one after the other. How many answers left."""
    cdef WaitingLink waiting
    cdef uint64_t since, left = 0
    cdef uint32_t i
    for i in range(rounds):
        for waiting in links:
            since = hub.commits.mark
            hub.commits.give(first)
            hub.commits.give(second)
            if must_wait(hub.commits, waiting.link, since):
                hub.commits.hold(HELD_ACK, waiting.link, None, PUBACK, <uint16_t>i, 0, since)
        hub.commits.end_turn()
        for line in (first, second):
            if line.submit()[0]:
                line.commit(line.at - 1)
            release(hub)
        for waiting in links:
            while waiting.link.head != NULL:
                left += (waiting.link.head.end - waiting.link.head.start) // 4
                link_sent(waiting.link, waiting.link.head.end - waiting.link.head.start)
    return left
