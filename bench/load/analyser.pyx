# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""The rules of sequence.pxd as a Python object, so that they can be fed by hand; the engine uses the structs."""
cimport cython
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from bench.load.sequence cimport (
    LAYOUT_ALL, LAYOUT_PAIRS, LAYOUT_SHARED, RING_WORDS_MIN, Layout, Sequences, ring_lost, sequences_take, track_lost)
from bench.load.sequence_alloc cimport sequences_free, sequences_init

__all__ = ["Analyser"]


@cython.final
cdef class Analyser:
    """Loss, duplicates and order of the messages that subscribers receive from publishers.

    layout: "all" (each subscriber receives from each publisher), "pairs" (subscriber i from publisher i) or "shared"
    (subscriber i is a member of group i % groups, and each message goes to one member of each group).
    Raises ValueError for another layout or for numbers that do not fit together, MemoryError.
    """
    cdef Sequences s

    def __cinit__(self, uint32_t publishers, uint32_t subscribers, str layout = "all", uint32_t groups = 1):
        memset(&self.s, 0, sizeof(Sequences))
        cdef dict layouts = {"all": LAYOUT_ALL, "pairs": LAYOUT_PAIRS, "shared": LAYOUT_SHARED}
        if layout not in layouts:
            raise ValueError(f"layout is one of all, pairs, shared; not {layout!r}")
        if layout == "pairs" and publishers != subscribers:
            raise ValueError(f"pairs need as many publishers ({publishers}) as subscribers ({subscribers})")
        if groups < 1:
            raise ValueError("there is at least one group")
        cdef int kind = layouts[layout]
        if sequences_init(&self.s, <Layout>kind, publishers, subscribers, groups, RING_WORDS_MIN) != 0:
            raise MemoryError

    def __dealloc__(self):
        sequences_free(&self.s)

    def take(self, uint32_t subscriber, uint32_t publisher, uint64_t number) -> bool:
        """Count the delivery of message `number` (from 0) of a publisher; True when it is not a repetition.

        Raises IndexError when there is no such subscriber or publisher.
        """
        if subscriber >= self.s.subscribers or publisher >= self.s.publishers:
            raise IndexError(f"no subscriber {subscriber} or no publisher {publisher}")
        return bool(sequences_take(&self.s, subscriber, publisher, number))

    def lost(self, sent: list[int]) -> int:
        """Deliveries that never came, when publisher i has sent the numbers below sent[i].

        Raises IndexError when sent is shorter than the number of publishers.
        """
        cdef uint64_t lost = 0
        cdef uint32_t receiver, publisher
        cdef uint32_t receivers = self.s.groups if self.s.layout == LAYOUT_SHARED else self.s.subscribers
        if len(sent) < <Py_ssize_t>self.s.publishers:
            raise IndexError(f"{self.s.publishers} publishers, but {len(sent)} counts")
        for receiver in range(receivers):
            if self.s.layout == LAYOUT_PAIRS:
                lost += track_lost(self.s.tracks + receiver, sent[receiver])
                continue
            for publisher in range(self.s.publishers):
                if self.s.layout == LAYOUT_SHARED:
                    lost += ring_lost(self.s.rings + receiver * self.s.publishers + publisher, sent[publisher])
                else:
                    lost += track_lost(self.s.tracks + receiver * self.s.publishers + publisher, sent[publisher])
        return lost

    @property
    def delivered(self) -> int:
        """Deliveries without repetitions."""
        return self.s.first

    @property
    def duplicates(self) -> int:
        """Repetitions."""
        return self.s.again

    @property
    def reordered(self) -> int:
        """Deliveries, first of their message, that came after a later message of the same publisher."""
        return self.s.late

    @property
    def foreign(self) -> int:
        """Deliveries to a subscriber that the publisher's messages must not reach."""
        return self.s.foreign
