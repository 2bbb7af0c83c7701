"""The sending end of a stream to another node, below its records: gathers them into frames, numbers these, and keeps
them until they are acknowledged.

    records ─► gather ──end of the turn, stream idle──► frame ─► send ─┐
                   │                                      ▲            ▼
                   └───────256 KiB, or on_idle────────────┘    kept ring, until `acknowledged`

A frame's sequence number is its position in two commit lines: of messages, and of interest. So what was given to a line
in a turn (a message of QoS 1 or 2, an interest) is committed when its frame is acknowledged. The third line, of queues,
has positions of its own (queue_stream.pxd); a frame knows how far it went. So have the lines of other channels
(channel.pxd), which know that themselves.

Frames outlive a connection: attach() sends those that the other node does not have again. If that node has a new epoch
(it restarted, or was fenced) they are addressed anew, and marked if they may have reached the former life
(frames.pxd, AGAIN). A new life of this node has a new stream, whose numbers begin at 1. Within a life numbers are used
once: a stream that follows an abandoned one continues them (Hub.sequences).

Bytes that are not acknowledged are bounded by `window_bytes`. Beyond it messages of QoS 0 are dropped. Others are
taken, but their publisher's connection is not read until half is acknowledged (Hub.crowded, Transport.yield_to_peer).

Its states, which test_drawings holds against TRANSITIONS (stream.pyx); what is not drawn changes nothing, or is a
UsageError:

    DETACHED ──attach──► BUSY ──on_idle──► IDLE ──a frame──► BUSY ──a frame──► BUSY
    BUSY, IDLE ──attach──► BUSY
    BUSY, IDLE ──detach──► DETACHED
    DETACHED ──give_up_queues──► LOST                       the other node has died; each of these detaches first
    DETACHED, LOST ──park──► PARKED                         others adopt its sessions
    DETACHED, LOST ──abandon──► ABANDONED                   nobody does

What becomes of what it is given:

    state       records of queues   messages of QoS 1, 2; interest      frames
    DETACHED    taken               taken                               kept
    BUSY        taken               taken                               those made leave when the turn ends
    IDLE        taken               taken                               so too, with what has gathered
    LOST        refused             taken                               kept; no connection comes
    PARKED      refused             taken; no ticket of interest        kept for direct()
    ABANDONED   refused             given up when the turn ends         dropped

A frame is made of what has gathered when the stream is idle, at 256 KiB, and by cut(). Two things hold frames back in
whatever state: halt(), which is counted, those behind it; and a fence of this node, all.
"""
from cpython.ref cimport PyObject
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fluxmq._core.debug cimport check
from fluxmq._core.hub.hub cimport Hub
from fluxmq._core.hub.targets cimport PeerHop
from fluxmq._core.memory.commits cimport Line
from fluxmq._core.peer.frames cimport frame_t

cdef enum stream_state:         # see above
    STREAM_DETACHED
    STREAM_BUSY
    STREAM_IDLE
    STREAM_LOST
    STREAM_PARKED
    STREAM_ABANDONED

cdef enum:
    GATHER_BYTES_MIN = 4096
    SEAL_BYTES = 262144         # when so many have gathered, a frame is made also if the stream is not idle
    WRONG = 0x82                # MQTT 5.0 section 2.4: Protocol Error; the cold half shows the text only

cdef struct kept_t:
    PyObject* frame             # bytes, owned
    uint64_t queues_upto        # position of the line of queues at its end
    int64_t since_ms            # steady clock: when its first record was gathered

cdef bint may_follow(int state, int after) noexcept

cdef class FrameStream(PeerHop):
    """A base class."""
    cdef readonly Hub hub
    cdef readonly str node
    cdef readonly Line line             # positions are sequence numbers of frames
    cdef readonly Line interest_line    # the same, for what waits until the other node knows an interest
    cdef readonly Line queue_line       # positions: see queue_stream.pxd
    cdef stream_state state
    cdef readonly str gone              # why it was abandoned; None: it was not
    cdef readonly uint64_t epoch        # of this node
    cdef readonly uint64_t to_epoch     # of the other node; 0: it was not connected yet
    cdef readonly uint64_t on_disk      # the last frame that former lives of the other node have on their disk
    cdef readonly uint64_t window_bytes
    # connection
    cdef object send                    # takes one frame; None: not connected
    cdef uint8_t known_flags            # of frames, to the other node
    cdef bint handing                   # hand_over is running
    cdef uint32_t halts                 # halt() without resume(): frames behind `halted_at` wait
    cdef uint64_t halted_at
    cdef uint64_t handed                # last frame handed to the present `send`
    cdef uint64_t handed_ever           # last frame handed to any
    cdef uint64_t again_upto            # frames up to this one may have reached a former life of the other node
    # what gathers
    cdef bint dirty                     # in Hub.unsealed
    cdef uint8_t* gather                # records
    cdef size_t gather_length
    cdef size_t gather_room
    cdef uint32_t gather_records
    cdef int64_t gather_since_ms
    cdef size_t settle_end              # `gather` ends with a settlement, which may grow; 0: it does not
    # frames that are not acknowledged: a ring; the first one's number is acknowledged_upto + 1
    cdef kept_t* kept
    cdef uint64_t kept_head
    cdef uint64_t kept_count
    cdef uint64_t kept_room             # a power of two
    cdef uint64_t kept_bytes
    cdef readonly uint64_t acknowledged_upto
    cdef readonly size_t journal_bytes  # of records that gather when the journal has committed: they fill the window
    cdef bint starved                   # somebody who delivers found no room: feed() when there is some
    # numbers of namespaces in this stream
    cdef dict numbers                   # name -> number, in the order of the numbers
    # acknowledgements of what the other node sends
    cdef uint64_t ack_epoch
    cdef uint64_t ack_sequence
    cdef bint ack_waits                 # no frame has carried it
    cdef bint ack_soon                  # nor need it wait for one
    # for the cold half
    cdef readonly uint64_t records      # of frames made so far
    cdef readonly uint64_t frames_sent  # also those sent again and those without a number
    cdef readonly uint64_t bytes_sent

    cdef inline void enter(self, stream_state state) noexcept:
        check(may_follow(self.state, state))
        self.state = state

    cdef bint is_attached(self) noexcept
    cdef bint takes_queues(self) noexcept       # whether there is somebody who may get records of queues
    # Room for n bytes behind what was gathered; `put` adds what was written. They are here so that each record does not
    # cost four calls by the table of the class.
    cdef inline uint8_t* room(self, size_t n) except NULL:
        if self.gather_length + n <= self.gather_room:
            return self.gather + self.gather_length
        return self.grow(n)

    cdef inline void put(self, const uint8_t* end, uint32_t records) noexcept:
        if self.gather_records == 0:
            self.gather_since_ms = self.hub.node.steady_ms
        self.gather_length = end - self.gather
        self.gather_records += records

    cdef inline bint full(self) noexcept:
        return self.kept_bytes + self.gather_length + self.journal_bytes >= self.window_bytes

    # The last frame that was made.
    cdef inline uint64_t newest(self) noexcept:
        return self.acknowledged_upto + self.kept_count

    cdef uint8_t* grow(self, size_t n) except NULL
    # After a put that belongs to no publish: a frame is made when the turn ends, or now if enough has gathered.
    cdef int asked(self) except -1
    cdef int mark_dirty(self) except -1
    cdef int ticket(self, Line line) except -1
    cdef uint32_t number_of(self, bytes name) except 0
    cdef int seal(self) except -1
    cdef bint has_more(self) noexcept
    cdef int seal_if_any(self) except -1
    # What the layers above do when there is room again, and when the other node has died.
    cdef int feed(self) except -1
    cdef int drop_late(self) except -1
    # Lines of other channels: what is given up of frames before this one (0: everything); what became of the frames up
    # to this one nobody will say.
    cdef int give_up_channels(self, uint64_t before, str why) except -1
    cdef int lose_channels(self, uint64_t upto, str why) except -1

    cdef int mark_lost(self) except -1
    cdef int end_as(self, stream_state state) except -1
    cdef int ease(self) except -1
    cdef int hand_over(self) except -1
    cdef int send_one(self, bytes frame) except -1
    cdef int send_unnumbered(self, uint8_t flags, uint64_t sequence) except -1
    cdef void fill_header(self, frame_t* frame) noexcept
    cdef bytes addressed(self, uint64_t sequence)
    cdef int keep(self, bytes frame) except -1
    cdef void drop_kept(self, uint64_t upto) noexcept
