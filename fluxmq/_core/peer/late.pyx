# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. Records to another node that wait for commits here. See peer/late.pxd."""
cimport cython
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uint16_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove

from fluxmq._core.disk.journal_format cimport peek_u32_le
from fluxmq._core.memory.commits cimport HELD_NOTIFY
from fluxmq._core.peer.frames cimport PEER_RESULT, SMALL_BYTES, put_result
from fluxmq._core.peer.stream cimport GATHER_BYTES_MIN, SEAL_BYTES

__all__ = ["LateStream"]

cdef enum:
    RESULT_NUMBER = 8               # where a RESULT has it
    LINE_PART = 4                   # of the window: what one line may have waiting


@cython.final
cdef class Late(Waiter):
    """Machine. See peer/late.pxd."""

    def __dealloc__(self):
        free(self.data)
        free(self.blocks)

    cdef uint8_t* room(self, size_t n, uint64_t position) except NULL:
        """Room for one record behind the others, which leaves with this commit, or with that of the one in front."""
        cdef size_t space = max(self.space, <size_t>GATHER_BYTES_MIN)
        cdef late_t* grown
        cdef uint8_t* made
        cdef uint32_t i
        if self.blocks_count:
            position = max(position, self.blocks[self.blocks_first + self.blocks_count - 1].position)
        if self.length + n > self.space:
            if self.first:
                self.length -= self.first
                memmove(self.data, self.data + self.first, self.length)
                for i in range(self.blocks_count):
                    self.blocks[self.blocks_first + i].end -= self.first
                self.first = 0
            while space < self.length + n:
                space *= 2
            if space > self.space:
                made = <uint8_t*>realloc(self.data, space)
                if made == NULL:
                    raise MemoryError()
                self.data = made
                self.space = space
        if (self.blocks_count == 0
                or self.blocks[self.blocks_first + self.blocks_count - 1].position != position):
            if self.blocks_first + self.blocks_count == self.blocks_room:
                memmove(self.blocks, self.blocks + self.blocks_first, self.blocks_count * sizeof(late_t))
                self.blocks_first = 0
                if self.blocks_count == self.blocks_room:
                    grown = <late_t*>realloc(self.blocks, (self.blocks_room * 2 + 16) * sizeof(late_t))
                    if grown == NULL:
                        raise MemoryError()
                    self.blocks = grown
                    self.blocks_room = self.blocks_room * 2 + 16
            (<LateStream>self.stream).hub.commits.hold_at(ticket_t(position, self.line, 1, 0), HELD_NOTIFY, NULL, self,
                                                          0, 0)
            self.blocks[self.blocks_first + self.blocks_count] = late_t(position, self.length)
            self.blocks_count += 1
        return self.data + self.length

    cdef int put(self, const uint8_t* end) except -1:
        (<LateStream>self.stream).count_late(self, <Py_ssize_t>(end - self.data) - <Py_ssize_t>self.length)
        self.length = end - self.data
        self.blocks[self.blocks_first + self.blocks_count - 1].end = self.length
        return 0

    cdef size_t upto(self, uint64_t position) noexcept:
        """Where the records end that wait for this position at most."""
        cdef size_t end = self.first
        cdef uint32_t i
        for i in range(self.blocks_count):
            if self.blocks[self.blocks_first + i].position > position:
                break
            end = self.blocks[self.blocks_first + i].end
        return end

    cdef int decided(self, uint64_t position, size_t end) except -1:
        """What waited for this position is not here any more."""
        if self.stream != NULL:
            (<LateStream>self.stream).count_late(self, -<Py_ssize_t>(end - self.first))
        self.first = end
        while self.blocks_count and self.blocks[self.blocks_first].position <= position:
            self.blocks_first += 1
            self.blocks_count -= 1
        if self.blocks_count == 0:
            self.blocks_first = 0
            self.first = self.length = 0
            if self.space > 4 * SEAL_BYTES:
                free(self.data)
                self.data = NULL
                self.space = 0
        return 0

    cdef void drop(self) noexcept:
        self.blocks_first = self.blocks_count = 0
        self.first = self.length = 0

    cdef int on_committed(self, uint32_t line, uint64_t position) except -1:
        cdef size_t end = self.upto(position)
        if self.stream != NULL and (<LateStream>self.stream).takes_queues():
            (<LateStream>self.stream).gather_late(self, end)
            self.decided(position, end)
            (<LateStream>self.stream).relieve(self.line)
            return (<LateStream>self.stream).asked()
        return 0

    cdef int on_given_up(self, uint32_t line, uint64_t position, uint8_t packet_type, uint16_t packet_id,
                         str why) except -1:
        """This node does not lead the line any more: the claims are undone, so their deliveries go nowhere, and who has
        asked is to ask again."""
        cdef size_t end = self.upto(position)
        if self.stream != NULL and (<LateStream>self.stream).takes_queues():
            (<LateStream>self.stream).refuse_late(self, end)
        self.decided(position, end)
        return (<LateStream>self.stream).relieve(self.line) if self.stream != NULL else 0


cdef class LateStream(FrameStream):
    """Machine. A stream some of whose records wait for commits of this node before they gather. A base class."""

    def __dealloc__(self):
        cdef Late one
        while self.late != NULL:
            one = <Late>self.late
            self.late = one.next
            one.next = NULL
            one.stream = NULL
            Py_DECREF(one)

    cdef bint line_full(self, uint32_t line):
        cdef Late late = self.late_of(line, False) if line else None
        return late is not None and late.length - late.first >= self.window_bytes // LINE_PART

    cdef int relieve(self, uint32_t line) except -1:
        """Less waits for a line than before."""
        if line and self.starved and not self.full():
            return self.feed()
        return 0

    cdef void count_late(self, Late late, Py_ssize_t change) noexcept:
        self.late_bytes += change
        if late.line == 0:
            self.journal_bytes += change

    cdef uint8_t* late_space(self, size_t n, ticket_t ticket) except NULL:
        """Room for one record that waits for a commit; one of position 0 only waits for what is before it in that
        line."""
        cdef Late late = self.late_of(ticket.line, ticket.position != 0)
        if late is None or (late.blocks_count == 0 and ticket.position == 0):
            self.late_writing = NULL
            return self.room(n)
        self.late_writing = <PyObject*>late
        return late.room(n, ticket.position)

    cdef Late late_of(self, uint32_t line, bint make):
        """Of this line; None: nothing of it has waited yet. Moves it to the front of the list."""
        cdef PyObject** link = &self.late
        cdef Late one
        while link[0] != NULL:
            one = <Late>link[0]
            if one.line == line:
                link[0] = one.next
                break
            link = &one.next
        else:
            if not make:
                return None
            one = Late.__new__(Late)
            one.stream = <void*>self
            one.line = line
            Py_INCREF(one)
        one.next = self.late
        self.late = <PyObject*>one
        return one

    cdef int late_put(self, const uint8_t* end) except -1:
        if self.late_writing == NULL:
            self.put(end, 1)
            return self.asked()
        return (<Late>self.late_writing).put(end)

    cdef int refuse_late(self, Late late, size_t end) except -1:
        """Of what was given up only answers are sent: refusals."""
        cdef size_t at = late.first
        cdef const uint8_t* record
        while at < end and self.given_up_answer is not None:
            record = late.data + at
            at += 8 + <size_t>peek_u32_le(record + 4)
            if record[0] == PEER_RESULT:
                self.put(put_result(self.room(SMALL_BYTES + <size_t>len(self.given_up_answer)),
                                    peek_u32_le(record + RESULT_NUMBER),
                                    <const uint8_t*><const char*>self.given_up_answer,
                                    <uint32_t>len(self.given_up_answer)), 1)
        return self.asked()

    cdef int gather_late(self, Late late, size_t end) except -1:
        """What is committed leaves with the next frames."""
        cdef const uint8_t* at
        cdef size_t size
        cdef uint8_t* out
        while late.first < end:
            at = late.data + late.first
            size = 8 + <size_t>peek_u32_le(at + 4)
            out = self.room(size)
            memcpy(out, at, size)
            self.put(out + size, 1)
            late.first += size
            self.count_late(late, -<Py_ssize_t>size)
            if self.gather_length >= SEAL_BYTES:
                self.seal()
        return 0

    cdef int drop_late(self) except -1:
        cdef PyObject* at = self.late
        while at != NULL:
            (<Late>at).drop()
            at = (<Late>at).next
        self.late_bytes = self.journal_bytes = 0
        return 0
