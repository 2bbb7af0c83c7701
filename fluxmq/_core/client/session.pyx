# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""The session of a client. client/session.pxd draws its transitions; the machine performs them."""
cimport cython
from collections import deque

from fluxmq._core.debug cimport is_transition
from fluxmq._core.errors import WindowFull

__all__ = ["TRANSITIONS", "Session"]

STATES = ("FREE", "SENT_1", "SENT_2", "RELEASED", "WAITING", "SUBSCRIBING", "UNSUBSCRIBING")     # by number
TRANSITIONS = {
    ("FREE", "publish, QoS 1"): "SENT_1",
    ("FREE", "publish, QoS 2"): "SENT_2",
    ("FREE", "subscribe"): "SUBSCRIBING",
    ("FREE", "unsubscribe"): "UNSUBSCRIBING",
    ("SENT_1", "PUBACK"): "FREE",
    ("SENT_1", "resume"): "WAITING",
    ("SENT_1", "session lost"): "FREE",
    ("SENT_2", "PUBREC"): "RELEASED",
    ("SENT_2", "PUBREC with an error"): "FREE",
    ("SENT_2", "resume"): "WAITING",
    ("SENT_2", "session lost"): "FREE",
    ("RELEASED", "PUBCOMP"): "FREE",
    ("RELEASED", "session lost"): "FREE",
    ("WAITING", "window, QoS 1"): "SENT_1",
    ("WAITING", "window, QoS 2"): "SENT_2",
    ("WAITING", "resume"): "WAITING",
    ("WAITING", "session lost"): "FREE",
    ("WAITING", "more than it takes"): "FREE",
    ("SUBSCRIBING", "SUBACK"): "FREE",
    ("SUBSCRIBING", "end"): "FREE",
    ("UNSUBSCRIBING", "UNSUBACK"): "FREE",
    ("UNSUBSCRIBING", "end"): "FREE",
}

cdef bint may_follow(int state, int after) noexcept:
    return is_transition(STATES, TRANSITIONS, state, after)

cdef enum:
    IDENTIFIER_MAX = 65535


@cython.final
cdef class Slot:
    """Value. One packet identifier. Slots are reused, so a publish allocates none."""


cdef object sequence_of(Slot slot):
    return slot.sequence


@cython.final
cdef class Session:
    """Machine. State of a session, for one machine at a time."""

    def __cinit__(self):
        self.slots = [None]
        self.received = set()
        self.waiting = deque()

    @property
    def waiting_count(self) -> int:
        """Publishes that wait to be sent again."""
        return len(self.waiting)

    cdef Slot take(self):
        """A free slot, whose state the caller sets. Raises WindowFull if all 65535 are in use."""
        cdef Slot slot
        if self.free:
            slot = <Slot>self.slots[self.free]
            self.free = slot.next_free
        else:
            if len(self.slots) > IDENTIFIER_MAX:
                raise WindowFull("all 65535 packet identifiers are in use")
            slot = Slot()
            slot.packet_id = <int>len(self.slots)
            self.slots.append(slot)
        self.sequence += 1
        slot.sequence = self.sequence
        return slot

    cdef void give_back(self, Slot slot):
        slot.state = FREE
        slot.topic = None
        slot.payload = None
        slot.properties = None
        slot.done = None
        slot.next_free = self.free
        self.free = slot.packet_id

    cdef Slot at(self, int packet_id):
        """The slot with this identifier; None: it was never used."""
        if packet_id >= len(self.slots):
            return None
        return <Slot>self.slots[packet_id]

    cdef list in_order(self):
        """The slots in use, in the order in which they were sent."""
        return sorted([slot for slot in self.slots[1:] if (<Slot>slot).state != FREE], key=sequence_of)

    def abandon(self) -> list:
        """Clears the session. Returns the `done` of all unacknowledged publishes, in order."""
        cdef Slot slot
        cdef list found = []
        for slot in self.in_order():
            if slot.done is not None:
                found.append(slot.done)
            self.give_back(slot)
        self.outstanding = 0
        self.received.clear()
        self.waiting.clear()
        return found
