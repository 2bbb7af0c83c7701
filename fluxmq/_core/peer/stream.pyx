# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. Frames to another node: gathered, numbered, kept until they are acknowledged. See peer/stream.pxd."""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from fluxmq._core.debug cimport count_live, is_transition
from fluxmq._core.errors import ProtocolError, UsageError
from fluxmq._core.memory.message cimport live
from fluxmq._core.memory.node cimport is_fenced
from fluxmq._core.peer.frames cimport (
    FRAME_AGAIN, FRAME_AWAITED, FRAME_BEGIN, FRAME_HEADER_BYTES, FRAME_VERSION, namespace_bytes, put_header,
    put_namespace, read_header,
)
from fluxmq._core.wire.sizes cimport fit_u16

__all__ = ["STATES", "TRANSITIONS", "FrameStream"]

STATES = ("DETACHED", "BUSY", "IDLE", "LOST", "PARKED", "ABANDONED")    # by stream_state
TRANSITIONS = {
    ("DETACHED", "attach"): "BUSY",
    ("BUSY", "attach"): "BUSY",
    ("IDLE", "attach"): "BUSY",
    ("BUSY", "a frame"): "BUSY",
    ("IDLE", "a frame"): "BUSY",
    ("BUSY", "on_idle"): "IDLE",
    ("BUSY", "detach"): "DETACHED",
    ("IDLE", "detach"): "DETACHED",
    ("DETACHED", "give_up_queues"): "LOST",
    ("DETACHED", "park"): "PARKED",
    ("LOST", "park"): "PARKED",
    ("DETACHED", "abandon"): "ABANDONED",
    ("LOST", "abandon"): "ABANDONED",
}

cdef bint may_follow(int state, int after) noexcept:
    return is_transition(STATES, TRANSITIONS, state, after)


cdef enum:
    AGE_MAX_S = 65535
    VERSION_AWAITED = 6         # of streams, from which on frames have AWAITED


cdef class FrameStream(PeerHop):
    """Machine. A base class: the sending end of the stream to a node, in this life of this node, without what the
    records mean.

    node: the other node's name. epoch: this node's. window_bytes: see peer/stream.pxd.
    """

    def __cinit__(self, Hub hub not None, str node not None, uint64_t epoch, uint64_t window_bytes=16 << 20):
        self.hub = hub
        self.node = node
        self.epoch = epoch
        self.window_bytes = window_bytes
        self.state = STREAM_DETACHED
        self.numbers = {}
        # An earlier stream of this life may have sent frames to that node, which has their position on disk.
        self.acknowledged_upto = self.handed = self.handed_ever = hub.sequences.get(node, 0)
        self.line = hub.commits.open_behind(f"node {node}", self.acknowledged_upto)
        self.interest_line = hub.commits.open_behind(f"interest of node {node}", self.acknowledged_upto)
        self.queue_line = hub.commits.open_line(f"queues of node {node}")

    def __dealloc__(self):
        self.drop_kept(self.acknowledged_upto + self.kept_count)
        free(self.kept)
        free(self.gather)

    # ---------------------------------------------------------------- connection

    @property
    def attached(self) -> bool:
        return self.is_attached()

    @property
    def parked(self) -> bool:
        return self.state == STREAM_PARKED

    @property
    def state_name(self) -> str:
        """One of STATES: see peer/stream.pxd."""
        return STATES[<int>self.state]

    cdef bint takes_queues(self) noexcept:
        return self.state < STREAM_LOST

    cdef bint is_attached(self) noexcept:
        return self.state == STREAM_BUSY or self.state == STREAM_IDLE

    def attach(self, send not None, uint64_t to_epoch, uint64_t position, int version=VERSION_AWAITED):
        """The stream is connected. send(frame: bytes): hands a frame to the transport, and returns whether it has left,
        so that on_idle() will not be called. to_epoch: of the other node. position: the last frame of this node's life
        that it has applied; those behind it are sent again. version: of streams, on which both have agreed. Raises
        ProtocolError if it names a frame that was never sent; UsageError if this node was told that the other one has
        died: its next life has a stream of its own."""
        if self.state >= STREAM_LOST:
            raise UsageError(f"the stream to {self.node} has ended: {self.gone or 'the node has died'}")
        if position > self.handed_ever:
            raise ProtocolError(WRONG, f"{self.node} says that it has frame {position}, but the last one that it was "
                                       f"sent is {self.handed_ever}")
        if to_epoch != self.to_epoch:
            if self.to_epoch:
                self.again_upto = self.handed_ever
                self.lose_channels(max(position, self.acknowledged_upto), f"node {self.node} was started again")
            self.on_disk = position
        self.to_epoch = to_epoch
        self.known_flags = FRAME_BEGIN | FRAME_AGAIN | (FRAME_AWAITED if version >= VERSION_AWAITED else 0)
        self.send = send
        self.enter(STREAM_BUSY)
        self.handed = max(position, self.acknowledged_upto)
        self.send_unnumbered(FRAME_BEGIN, self.handed)
        self.hand_over()

    def detach(self):
        """The connection is gone: nothing is sent until attach()."""
        self.send = None
        if self.is_attached():
            self.enter(STREAM_DETACHED)

    def on_idle(self):
        """Everything handed to `send` has left: what has gathered becomes a frame."""
        if self.state == STREAM_BUSY:
            self.enter(STREAM_IDLE)
        self.hand_over()

    def halt(self):
        """What comes from now on waits here until resume(): the other node must not get it before it knows that it owns
        a queue. For a short time only: everything to that node waits. It may be called several times, by
        queues that move there at the same time."""
        if self.halts == 0:
            self.cut()
            self.halted_at = self.newest()
        self.halts += 1

    def resume(self):
        """Ends one halt()."""
        self.halts -= 1
        self.mark_dirty()
        self.hub.touch()

    def go_on(self):
        """This node may serve again (Hub.serve_until): frames that were held back leave."""
        self.mark_dirty()
        self.hub.touch()

    cdef int end_turn(self) except -1:
        self.dirty = False
        if self.state == STREAM_ABANDONED:
            self.gather_length = self.gather_records = 0
            self.line.give_up(self.gone)
            self.interest_line.give_up(self.gone)
            self.queue_line.give_up(self.gone)
            self.give_up_channels(0, self.gone)
            return 0
        return self.hand_over()

    cdef int hand_over(self) except -1:
        """Hands frames to the transport, as far as it is time to."""
        cdef bint halted
        if self.handing:
            return 0                # `send` has called on_idle: the loop below goes on
        self.handing = True
        try:
            while self.is_attached() and not is_fenced(self.hub.node):
                halted = self.halts and self.handed >= self.halted_at
                if not halted and self.handed < self.newest():
                    self.handed += 1
                    self.handed_ever = max(self.handed_ever, self.handed)
                    self.send_one(self.addressed(self.handed))
                elif self.state != STREAM_IDLE:
                    return 0
                elif self.ack_soon and self.ack_epoch == self.to_epoch and (halted or not self.has_more()):
                    self.send_unnumbered(0, 0)
                elif halted or not self.seal_if_any():
                    return 0
        finally:
            self.handing = False
        return 0

    cdef int send_one(self, bytes frame) except -1:
        self.enter(STREAM_BUSY)
        self.frames_sent += 1
        self.bytes_sent += len(frame)
        if self.send(frame):
            if self.state == STREAM_BUSY:
                self.enter(STREAM_IDLE)
        else:
            self.hub.cold = True        # ends a lingering turn, so that the event loop writes the frame
        return 0

    cdef int send_unnumbered(self, uint8_t flags, uint64_t sequence) except -1:
        """A frame that is not kept: an acknowledgement, or the first one of a connection."""
        cdef bint begin = flags & FRAME_BEGIN
        cdef size_t size = 0
        cdef uint32_t number = 0
        cdef frame_t header
        cdef bytes frame, name
        cdef uint8_t* at
        if begin:
            for name in self.numbers:
                size += namespace_bytes(len(name))
        frame = PyBytes_FromStringAndSize(NULL, FRAME_HEADER_BYTES + size)
        self.fill_header(&header)
        header.flags = flags
        header.sequence = sequence
        header.records = <uint32_t>len(self.numbers) if begin else 0
        at = put_header(<uint8_t*>PyBytes_AS_STRING(frame), &header)
        if begin:
            for name in self.numbers:
                number += 1
                at = put_namespace(at, number, <const uint8_t*><const char*>name, <uint32_t>len(name))
        self.ack_waits = self.ack_soon = False
        return self.send_one(frame)

    cdef void fill_header(self, frame_t* frame) noexcept:
        memset(frame, 0, sizeof(frame_t))
        frame.version = FRAME_VERSION
        frame.epoch = self.epoch
        frame.to_epoch = self.to_epoch
        frame.acknowledged = self.ack_sequence if self.ack_epoch == self.to_epoch else 0

    cdef bytes addressed(self, uint64_t sequence):
        """A kept frame as it must be sent now: to the present life of the other node, with its age."""
        cdef kept_t* kept = &self.kept[(self.kept_head + sequence - self.acknowledged_upto - 1) & (self.kept_room - 1)]
        cdef bytes frame = <bytes>kept.frame
        cdef int64_t age_s = (self.hub.node.steady_ms - kept.since_ms) // 1000
        cdef uint8_t flags = FRAME_AGAIN if sequence <= self.again_upto else 0
        cdef frame_t header
        cdef bytes changed
        read_header(<const uint8_t*>PyBytes_AS_STRING(frame), &header)
        flags |= header.flags & FRAME_AWAITED & self.known_flags
        age_s = min(max(age_s, <int64_t>0), <int64_t>AGE_MAX_S)
        if header.to_epoch == self.to_epoch and header.flags == flags and header.age_s == age_s:
            return frame
        changed = PyBytes_FromStringAndSize(PyBytes_AS_STRING(frame), len(frame))
        if header.to_epoch != self.to_epoch:
            header.acknowledged = self.ack_sequence if self.ack_epoch == self.to_epoch else 0
        header.to_epoch = self.to_epoch
        header.flags = flags
        header.age_s = fit_u16(age_s)
        put_header(<uint8_t*>PyBytes_AS_STRING(changed), &header)
        Py_INCREF(changed)
        kept.frame = <PyObject*>changed
        Py_DECREF(frame)
        return changed

    # ---------------------------------------------------------------- gathering

    cdef uint8_t* grow(self, size_t n) except NULL:
        """Room for n bytes more than there is."""
        cdef size_t room = max(self.gather_room, <size_t>GATHER_BYTES_MIN)
        cdef uint8_t* grown
        while room < self.gather_length + n:
            room *= 2
        grown = <uint8_t*>realloc(self.gather, room)
        if grown == NULL:
            raise MemoryError()
        self.gather = grown
        self.gather_room = room
        return self.gather + self.gather_length

    cdef int mark_dirty(self) except -1:
        """Asks for end_turn, ahead of streams that were made later: a publish comes to its peers in the order of
        their addresses, and a history of the simulator must not depend on these."""
        cdef list waiting = self.hub.unsealed
        cdef Py_ssize_t at
        cdef object other
        if not self.dirty:
            at = len(waiting)
            while at:
                other = waiting[at - 1]
                if not isinstance(other, FrameStream) or (<FrameStream>other).line.number < self.line.number:
                    break
                at -= 1
            waiting.insert(at, self)
            self.dirty = True
        return 0

    cdef int ticket(self, Line line) except -1:
        """Gives the frame that gathers a ticket."""
        self.hub.commits.give(line)
        return self.mark_dirty()

    cdef uint32_t number_of(self, bytes name) except 0:
        """The number of a namespace; the first use defines it."""
        cdef uint8_t* at
        found = self.numbers.get(name)
        if found is not None:
            return found
        at = self.room(namespace_bytes(len(name)))
        self.numbers[name] = len(self.numbers) + 1
        self.put(put_namespace(at, <uint32_t>len(self.numbers), <const uint8_t*><const char*>name,
                               <uint32_t>len(name)), 1)
        return <uint32_t>len(self.numbers)

    cdef int asked(self) except -1:
        self.mark_dirty()
        self.hub.touch()
        if self.gather_length >= SEAL_BYTES and not self.hub.whole:
            self.seal()
        return 0

    def barrier(self):
        """Gives a ticket of the next frame, which is made even if nothing else is in it: what the other node was sent
        before has been applied there when it is committed."""
        self.ticket(self.interest_line)
        self.hub.touch()

    def cut(self) -> int:
        """What has gathered becomes a frame, whether or not it can be sent. Returns the number of the next frame: all
        tickets given until now are of frames before it (give_up_before)."""
        if self.seal_if_any():
            self.mark_dirty()
            self.hub.touch()
        return self.newest() + 1

    # ---------------------------------------------------------------- frames

    cdef bint has_more(self) noexcept:
        """Whether something has gathered, or is waited for, that no frame has."""
        return self.gather_records != 0 or self.line.given or self.interest_line.given

    cdef int seal_if_any(self) except -1:
        """Makes a frame unless it would be empty and nothing waits for it. Returns whether it did."""
        if not self.has_more():
            return 0
        self.seal()
        return 1

    cdef int seal(self) except -1:
        cdef frame_t header
        cdef bytes frame = PyBytes_FromStringAndSize(NULL, FRAME_HEADER_BYTES + self.gather_length)
        cdef uint8_t* at
        if self.state == STREAM_ABANDONED:
            self.gather_length = self.gather_records = 0
            self.settle_end = 0
            return 0
        self.fill_header(&header)
        header.flags = FRAME_AWAITED if self.line.given or self.interest_line.given else 0
        header.sequence = self.newest() + 1
        header.records = self.gather_records
        at = put_header(<uint8_t*>PyBytes_AS_STRING(frame), &header)
        if self.gather_length:
            memcpy(at, self.gather, self.gather_length)
        self.keep(frame)
        self.line.given = True          # the lines' positions move with every frame
        self.line.submit()
        if self.state < STREAM_PARKED:  # else the frame is never sent, and the node's next life has an outbox already
            self.interest_line.given = True
            self.interest_line.submit()
            self.hub.sequences[self.node] = header.sequence
        self.records += self.gather_records
        self.gather_length = 0
        self.gather_records = 0
        self.settle_end = 0
        if self.is_attached() and not self.halts:       # else the frame may leave much later than what it acknowledges
            self.ack_waits = self.ack_soon = False
        if self.gather_room > 4 * SEAL_BYTES:       # of a large message
            free(self.gather)
            self.gather = NULL
            self.gather_room = 0
        return 0

    cdef int keep(self, bytes frame) except -1:
        cdef uint64_t room = self.kept_room * 2 if self.kept_room else 16
        cdef kept_t* grown
        cdef uint64_t i
        if self.kept_count == self.kept_room:
            grown = <kept_t*>malloc(room * sizeof(kept_t))
            if grown == NULL:
                raise MemoryError()
            for i in range(self.kept_count):
                grown[i] = self.kept[(self.kept_head + i) & (self.kept_room - 1)]
            free(self.kept)
            self.kept = grown
            self.kept_head = 0
            self.kept_room = room
        Py_INCREF(frame)
        self.kept[(self.kept_head + self.kept_count) & (self.kept_room - 1)] = kept_t(
            <PyObject*>frame, self.queue_line.at - 1,
            self.gather_since_ms if self.gather_records else self.hub.node.steady_ms)
        self.kept_count += 1
        self.kept_bytes += len(frame)
        count_live(live.frames, 1)
        return 0

    cdef void drop_kept(self, uint64_t upto) noexcept:
        cdef bytes frame
        while self.acknowledged_upto < upto:
            frame = <bytes>self.kept[self.kept_head].frame
            self.kept_bytes -= len(frame)
            self.kept_head = (self.kept_head + 1) & (self.kept_room - 1)
            self.kept_count -= 1
            self.acknowledged_upto += 1
            count_live(live.frames, -1)
            Py_DECREF(frame)

    @property
    def unacknowledged_bytes(self) -> int:
        """Of frames that are kept, and of what gathers."""
        return self.kept_bytes + self.gather_length

    @property
    def newest_sequence(self) -> int:
        """Of the last frame that was made; 0: none was."""
        return self.newest()

    def unacknowledged(self) -> list:
        """The frames that are kept, oldest first."""
        return [<object>self.kept[(self.kept_head + i) & (self.kept_room - 1)].frame for i in range(self.kept_count)]

    # ---------------------------------------------------------------- acknowledgements

    def acknowledged(self, uint64_t sequence):
        """The other node has committed everything up to this frame (PeerInbox.apply returns it): commits the line.
        Raises ProtocolError if there is no such frame yet."""
        if sequence > self.handed_ever:
            raise ProtocolError(WRONG, f"{self.node} acknowledges frame {sequence}, but the last one that it was sent "
                                       f"is {self.handed_ever}")
        if sequence <= self.acknowledged_upto:
            return
        self.drop_kept(sequence)
        self.line.commit(sequence)
        self.interest_line.commit(sequence)
        if (self.paused or self.starved) and self.kept_bytes + self.gather_length <= self.window_bytes // 2:
            self.ease()

    def ack(self, uint64_t epoch, uint64_t sequence, bint soon=False):
        """Acknowledges the other node's frames up to this one, of its life `epoch`: the next frame says so. If none
        leaves (needs_ack), send_ack() does. soon: somebody waits there, so it leaves by itself when the turn ends, or
        the stream is idle, unless there is a frame to ride on then."""
        self.ack_epoch = epoch
        self.ack_sequence = sequence
        self.ack_waits = True
        if soon:
            self.ack_soon = True
            self.mark_dirty()
            self.hub.touch()

    @property
    def needs_ack(self) -> bool:
        """Whether send_ack() would send something."""
        return self.ack_waits and self.is_attached() and self.ack_epoch == self.to_epoch

    def send_ack(self):
        """Sends an acknowledgement without a frame, if none has left with one since ack()."""
        if self.needs_ack and not is_fenced(self.hub.node):
            self.send_unnumbered(0, 0)

    # ---------------------------------------------------------------- giving up

    def give_up_before(self, uint64_t sequence, str why not None):
        """Gives up the tickets of frames before this one (see `cut`) that are not decided. The frames themselves stay:
        the other node may still get them. why: shown to clients. Raises UsageError for a frame behind the next one."""
        cdef uint64_t at
        if sequence > self.newest() + 1:
            raise UsageError(f"frame {sequence - 1} was not made yet")
        if sequence > self.acknowledged_upto + 1:
            self.line.give_up(why, sequence - 1)
            at = self.kept[(self.kept_head + sequence - self.acknowledged_upto - 2) & (self.kept_room - 1)].queues_upto
            if at > self.queue_line.decided:
                self.queue_line.give_up(why, at)
            if self.state < STREAM_PARKED:
                self.interest_line.give_up(why, sequence - 1)
        self.give_up_channels(sequence, why)

    def abandon(self, str why not None):
        """The other node will not come back: gives up all tickets, also of what is forwarded from now on, and drops the
        frames. why: shown to clients. Raises UsageError for a stream that has ended already."""
        self.end_as(STREAM_ABANDONED)
        self.gone = why
        self.drop_kept(self.newest())
        self.line.give_up(why)
        self.interest_line.give_up(why)
        self.queue_line.give_up(why)
        self.give_up_channels(0, why)
        self.drop_late()
        self.ease()

    cdef int mark_lost(self) except -1:
        """This node was told that the other one has died: no connection to that life comes any more."""
        self.detach()
        if self.state < STREAM_LOST:
            self.enter(STREAM_LOST)
        return 0

    cdef int end_as(self, stream_state state) except -1:
        if self.state > STREAM_LOST:
            raise UsageError(f"the stream to {self.node} is {self.state_name} already: it cannot become "
                             f"{STATES[<int>state]}")
        self.detach()
        self.seal_if_any()
        self.enter(state)
        return 0

    def park(self):
        """The other node has died, and others adopt its sessions: messages for these are kept until direct(). Raises
        UsageError for a stream that has ended already."""
        self.end_as(STREAM_PARKED)
        self.interest_line.commit(self.newest())
        self.interest_line.close("the node has died")
        self.queue_line.close(f"node {self.node} has died")
        self.give_up_channels(0, f"node {self.node} has died")
        self.drop_late()

    cdef int feed(self) except -1:
        self.starved = False
        return 0

    cdef int drop_late(self) except -1:
        return 0

    cdef int give_up_channels(self, uint64_t before, str why) except -1:
        return 0

    cdef int lose_channels(self, uint64_t upto, str why) except -1:
        return 0

    cdef int ease(self) except -1:
        """The connections that were paused because of this stream are read again."""
        if self.hub.crowded is self:
            self.hub.crowded = None
        if self.paused:
            self.hub.eased.extend(self.paused)
            self.paused.clear()
            self.mark_dirty()
            self.hub.touch()
        if self.starved:
            self.feed()
        return 0
