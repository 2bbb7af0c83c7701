# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""What a link tells a recording and a view (memory/link.pxd), for tests: it needs no socket and no hub, so that it is
among the modules that are compiled with sanitizers."""
cimport cython
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport calloc, free

from fluxmq._core.memory.link cimport (
    link_close, link_control_frame, link_drop, link_new, link_sent, link_t, link_tap, link_tap_begin,
    link_tap_unsent, link_write)
from fluxmq._core.memory.node cimport node_t
from fluxmq._core.memory.tap cimport READERS, Tap, tap_t

__all__ = ["TappedLink"]


@cython.final
cdef class TappedLink:
    """A connection's output and who records it. The methods do what the poller and the transport do. reader: 0 the
    recording, 1 the view."""
    cdef node_t* node
    cdef link_t* link
    cdef list taps

    def __cinit__(self, bint websocket=False):
        self.node = <node_t*>calloc(1, sizeof(node_t))
        if self.node == NULL:
            raise MemoryError
        self.link = link_new(self.node, -1)
        self.link.websocket = websocket
        self.taps = [None] * READERS

    def __dealloc__(self):
        if self.link != NULL:
            if self.link.dirty:
                link_drop(self.link)        # the list of dirty links has a share of it
            link_close(self.link)
            link_drop(self.link)
        free(self.node)

    cdef void enlist(self) noexcept:
        """As Poller.record."""
        cdef Tap tap
        self.node.tap = NULL
        for tap in reversed(self.taps):
            if tap is not None:
                tap.tap.next = <tap_t*>self.node.tap
                self.node.tap = <void*>&tap.tap

    def begin(self, int reader, Tap tap not None) -> None:
        """A reader comes: what is pending is not for it."""
        self.taps[reader] = tap
        self.node.recording += 1
        tap.begin(reader, self.node.recording)
        self.enlist()
        link_tap_begin(self.link, &tap.tap)

    def end(self, int reader) -> None:
        self.taps[reader] = None
        self.enlist()

    def write(self, bytes packet not None) -> None:
        if link_write(self.link, <const uint8_t*><const char*>packet, <uint32_t>len(packet)) < 0:
            raise MemoryError

    def ping(self) -> None:
        """A control frame of WebSocket."""
        if link_control_frame(self.link, 9, <const uint8_t*>b"ping", 4) < 0:
            raise MemoryError

    def flush(self, size_t taken) -> int:
        """The socket takes so many bytes, if there are; returns how many."""
        if self.node.tap != NULL:
            link_tap(self.link)
        taken = min(taken, self.link.pending)
        link_sent(self.link, taken)
        return taken

    def unsent(self, int reader) -> int:
        """As CLOSED says it."""
        return link_tap_unsent(self.link, reader)
