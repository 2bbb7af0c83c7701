# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. What is recorded of one connection; see net/recorded.pxd."""
cimport cython
from libc.stdint cimport int64_t, uint8_t, uint16_t

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

    def record_event(self, int kind, bytes data not None, int flags=0, int reader=-1):
        """Records an event of this connection (OPENED, ACCEPTED: memory/tap.pxd) for everybody who records, or for one
        reader (READER_*). OPENED starts the recording of its bytes."""
        cdef tap_t* tap = <tap_t*>self.hub.node.tap
        self.tap_read(self.parsed)      # first the bytes of the client that caused the event
        while tap != NULL:
            if reader < 0 or tap.reader == reader:
                if kind == TAP_OPENED:
                    link_tap_begin(self.link, tap)
                self.tap_event(tap, kind, data, flags)
            tap = tap.next

    cdef void tap_event(self, tap_t* tap, int kind, bytes data, int flags) noexcept:
        if self.tapped(tap):
            tap_write(tap, <uint8_t>kind, self.link.protocol, <uint16_t>flags, self.link.number, tap_now(),
                      <const uint8_t*><const char*>data, len(data))

    cdef bint tapped(self, const tap_t* tap) noexcept:
        """Whether its bytes are recorded there."""
        return self.link.recording[tap.reader] == tap.number

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
        if self.untapped == NULL or end <= self.untapped:
            return
        while tap != NULL:
            if self.tapped(tap):
                tap_write(tap, TAP_IN, self.link.protocol, 0, self.link.number, self.read_ns, self.untapped,
                          end - self.untapped)
            tap = tap.next
        self.untapped = end

    cdef void tap_big(self, const blob_t* blob) noexcept:
        """Records a packet received into memory of its own as one entry."""
        cdef tap_t* tap = <tap_t*>self.hub.node.tap
        cdef int64_t now = tap_now()
        while tap != NULL:
            if self.big_recorded[tap.reader] != tap.number:     # else it is handled again
                self.big_recorded[tap.reader] = tap.number
                if self.tapped(tap):
                    tap_write(tap, TAP_IN, self.link.protocol, 0, self.link.number, now, blob.data, blob.size)
            tap = tap.next

    cdef int record_closed(self) except -1:
        """Writes the connection's last entry. unsent: bytes at the end of the recorded output that were not sent."""
        cdef tap_t* tap = <tap_t*>self.hub.node.tap
        why = self.end_why or "lost"
        self.tap_read(self.parsed)
        while tap != NULL:
            self.tap_event(tap, TAP_CLOSED, dumps({
                "by": "client" if why in ("client", "lost") else "broker", "reason": why, "code": self.end_code,
                "unsent": link_tap_unsent(self.link, tap.reader)}).encode(), 0)
            tap = tap.next
        return 0

    cdef ssize_t parse(self, uint8_t* data, size_t n) except -1:
        """Handles every complete packet in data[0:n], stops when paused or ended; returns the bytes used."""
        raise NotImplementedError
