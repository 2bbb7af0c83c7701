# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. The recording of one connection; see net/recorded.pxd."""
cimport cython
from libc.stdint cimport uint16_t

from json import dumps

from fluxmq._core.memory.link cimport link_tap_begin, link_tap_unsent
from fluxmq._core.memory.tap cimport TAP_CLOSED, TAP_IN, TAP_OPENED, tap_now, tap_t, tap_write

__all__ = ["Recorded"]


@cython.no_gc_clear     # as Transport
cdef class Recorded(Waiter):
    """Machine. Base class of Transport."""

    @property
    def number(self) -> int:
        """Number of this connection, from 1, unique in a run of the broker."""
        return self.link.number

    @property
    def protocol(self) -> int:
        """Code of the protocol in a recording: 1 MQTT, 2 AMQP 0-9-1."""
        return self.link.protocol

    def record_event(self, int kind, bytes data not None, int flags=0):
        """Records an event of this connection (OPENED, ACCEPTED: memory/tap.pxd) if a recording runs. OPENED starts the
        recording of its bytes."""
        cdef tap_t* tap = <tap_t*>self.hub.node.tap
        if tap == NULL:
            return
        if kind == TAP_OPENED:
            link_tap_begin(self.link)
        elif self.link.recording != self.hub.node.recording:
            return
        self.tap_read(self.parsed)      # first the bytes of the client that caused the event
        tap_write(tap, <uint8_t>kind, self.link.protocol, <uint16_t>flags, self.link.number, tap_now(),
                  <const uint8_t*><const char*>data, len(data))

    cdef ssize_t parse_tapped(self, uint8_t* data, size_t n) except -1:
        """As parse, and records the bytes parsed."""
        cdef ssize_t used
        self.untapped = data
        self.parsed = NULL
        self.read_ns = tap_now()
        try:
            used = self.parse(data, n)
            self.parsed = data + used
        except BaseException:
            # Record up to the packet that raised the error; if no packet was recognised, everything received.
            if self.parsed == NULL:
                self.parsed = data + n
            raise
        finally:
            self.tap_read(self.parsed)
            self.untapped = NULL
        return used

    cdef void tap_read(self, const uint8_t* end) noexcept:
        """Records the bytes parsed up to `end` as one entry."""
        cdef tap_t* tap = <tap_t*>self.hub.node.tap
        if tap == NULL or self.untapped == NULL or end <= self.untapped:
            return
        if self.link.recording == self.hub.node.recording:
            tap_write(tap, TAP_IN, self.link.protocol, 0, self.link.number, self.read_ns, self.untapped,
                      end - self.untapped)
        self.untapped = end

    cdef void tap_big(self, const blob_t* blob) noexcept:
        """Records a packet received into memory of its own as one entry."""
        if self.big_recorded == self.hub.node.recording:
            return                      # it is handled again
        self.big_recorded = self.hub.node.recording
        if self.link.recording == self.hub.node.recording:
            tap_write(<tap_t*>self.hub.node.tap, TAP_IN, self.link.protocol, 0, self.link.number, tap_now(), blob.data,
                      blob.size)

    cdef int record_closed(self) except -1:
        """Writes the connection's last entry. unsent: bytes at the end of the recorded output that were not sent."""
        why = self.end_why or "lost"
        self.record_event(TAP_CLOSED, dumps({
            "by": "client" if why in ("client", "lost") else "broker", "reason": why, "code": self.end_code,
            "unsent": link_tap_unsent(self.link)}).encode())
        return 0

    cdef ssize_t parse(self, uint8_t* data, size_t n) except -1:
        """Handles every complete packet in data[0:n], stops when paused or ended; returns the bytes used."""
        raise NotImplementedError
