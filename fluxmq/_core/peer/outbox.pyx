# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. The sending end of a stream to another node. See peer/outbox.pxd. It is one file because whatever is sent is
gathered in one buffer, and kept in one ring."""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove, memset

from fluxmq._core.debug cimport count_live
from fluxmq._core.errors import ProtocolError, UsageError
from fluxmq._core.disk.journal_format cimport peek_u32_le, peek_u64_le, put_u32_le
from fluxmq._core.memory.commits cimport HELD_NOTIFY
from fluxmq._core.memory.message cimport FORMAT_MQTT, body_borrow, body_t, live, once_of, once_t, origin_of, origin_t
from fluxmq._core.memory.node cimport is_fenced
from fluxmq._core.mqtt.consts cimport REASON_NO_MATCHING_SUBSCRIBERS
from fluxmq._core.peer.frames cimport (
    CALL_BYTES, DELIVERY_BYTES, FRAME_AGAIN, FRAME_BEGIN, FRAME_HEADER_BYTES, FRAME_VERSION, LIFE_BYTES, ORIGIN_BYTES,
    PEER_ABSENT, PEER_BARRIER, PEER_CALL, PEER_COMMITTED, PEER_CONTROL, PEER_DIRECTED, PEER_DURABLE, PEER_FORCED,
    PEER_GROUP_MESSAGE, PEER_INTEREST_END, PEER_MESSAGE, PEER_QOS, PEER_QUIET, PEER_RESULT, PEER_RETAIN, PEER_SETTLE,
    PEER_STATE, PEER_VERB, RELEASE_BYTES, SETTLE_BYTES, SETTLE_COUNT_AT, SIZE_BYTES, SMALL_BYTES, VERSION_BYTES,
    control_bytes, group_bytes, interest_bytes, message_bytes, namespace_bytes, next_record, open_frame,
    peer_record_t, publish_bytes, put_call, put_control, put_credit, put_delivery, put_detach, put_directed,
    put_group_message, put_header,
    put_interest, put_message, put_namespace, put_position, put_publish, put_refused, put_release, put_result,
    put_retained, put_settle, put_withdraw, read_header, span_t, version_t,
)
from fluxmq._core.pubsub.retained cimport Retained
from fluxmq._core.pubsub.routes cimport route_t
from fluxmq._core.pubsub.topics cimport topics_of
from fluxmq._core.queue.group cimport RUN_MAX
from fluxmq._core.queue.queue cimport Queue
from fluxmq._core.queue.relay cimport RELAY_AWAITED, RELAY_FORCED, RELAY_TAKEN, RELAY_UNAWAITED, VERB_EXTEND
from fluxmq._core.wire.primitives cimport Cursor
from fluxmq._core.wire.sizes cimport fit_u16

__all__ = ["PeerOutbox"]

cdef enum:
    GATHER_BYTES_MIN = 4096
    SEAL_BYTES = 262144             # when so many have gathered, a frame is made also if the stream is not idle
    WRONG = 0x82                    # MQTT 5.0 section 2.4: Protocol Error; the cold half shows the text only
    AGE_MAX_S = 65535
    RESULT_NUMBER = 8               # where a RESULT has it
    LINE_PART = 4                   # of the window: what one line may have waiting


cdef inline bytes taken(const span_t* span):
    return PyBytes_FromStringAndSize(<const char*>span.at, span.length)


@cython.final
cdef class Late(Waiter):
    """Machine. See peer/outbox.pxd."""

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
            (<PeerOutbox>self.outbox).hub.commits.hold_at(ticket_t(position, self.line, 1, 0), HELD_NOTIFY, NULL, self,
                                                          0, 0)
            self.blocks[self.blocks_first + self.blocks_count] = late_t(position, self.length)
            self.blocks_count += 1
        return self.data + self.length

    cdef int put(self, const uint8_t* end) except -1:
        (<PeerOutbox>self.outbox).count_late(self, <Py_ssize_t>(end - self.data) - <Py_ssize_t>self.length)
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
        if self.outbox != NULL:
            (<PeerOutbox>self.outbox).count_late(self, -<Py_ssize_t>(end - self.first))
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
        if self.outbox != NULL and (<PeerOutbox>self.outbox).takes_queues():
            (<PeerOutbox>self.outbox).gather_late(self, end)
            self.decided(position, end)
            (<PeerOutbox>self.outbox).relieve(self.line)
            return (<PeerOutbox>self.outbox).asked()
        return 0

    cdef int on_given_up(self, uint32_t line, uint64_t position, uint8_t packet_type, uint16_t packet_id,
                         str why) except -1:
        """This node does not lead the line any more: the claims are undone, so their deliveries go nowhere, and who has
        asked is to ask again."""
        cdef size_t end = self.upto(position)
        if self.outbox != NULL and (<PeerOutbox>self.outbox).takes_queues():
            (<PeerOutbox>self.outbox).refuse_late(self, end)
        self.decided(position, end)
        return (<PeerOutbox>self.outbox).relieve(self.line) if self.outbox != NULL else 0


@cython.final
cdef class PeerOutbox(PeerHop):
    """Machine. The sending end of the stream to a node, in this life of this node.

    node: the other node's name. epoch: this node's. window_bytes: see peer/outbox.pxd.
    """

    def __cinit__(self, Hub hub not None, str node not None, uint64_t epoch, uint64_t window_bytes=16 << 20):
        self.hub = hub
        self.node = node
        self.epoch = epoch
        self.window_bytes = window_bytes
        self.line = hub.commits.open_line(f"node {node}")
        self.numbers = {}
        # An earlier outbox of this life may have sent frames to that node, which has their position on disk.
        self.acknowledged_upto = self.handed = self.handed_ever = hub.sequences.get(node, 0)
        self.interest_line = hub.commits.open_line(f"interest of node {node}")
        self.queue_line = hub.commits.open_line(f"queues of node {node}")
        self.unrouted = {}
        self.members = {}
        self.waited = []
        self.hosted = {}
        self.feeds = {}
        self.line.at = self.interest_line.at = self.acknowledged_upto + 1
        self.line.decided = self.interest_line.decided = self.acknowledged_upto

    def __dealloc__(self):
        self.drop_kept(self.acknowledged_upto + self.kept_count)
        free(self.kept)
        free(self.gather)
        cdef Late one
        while self.late != NULL:
            one = <Late>self.late
            self.late = one.next
            one.next = NULL
            one.outbox = NULL
            Py_DECREF(one)

    # ---------------------------------------------------------------- connection

    @property
    def attached(self) -> bool:
        return self.send is not None

    def attach(self, send not None, uint64_t to_epoch, uint64_t position):
        """The stream is connected. send(frame: bytes): hands a frame to the transport. to_epoch: of the other node.
        position: the last frame of this node's life that it has applied; those behind it are sent again. Raises
        ProtocolError if it names a frame that was never sent; UsageError if the outbox was abandoned."""
        if self.gone is not None:
            raise UsageError(f"the stream to {self.node} was abandoned: {self.gone}")
        if position > self.handed_ever:
            raise ProtocolError(WRONG, f"{self.node} says that it has frame {position}, but the last one that it was "
                                       f"sent is {self.handed_ever}")
        if to_epoch != self.to_epoch:
            if self.to_epoch:
                self.again_upto = self.handed_ever
            self.on_disk = position
        self.to_epoch = to_epoch
        self.send = send
        self.handed = max(position, self.acknowledged_upto)
        self.send_unnumbered(FRAME_BEGIN, self.handed)
        self.hand_over()

    def detach(self):
        """The connection is gone: nothing is sent until attach()."""
        self.send = None
        self.idle = False

    def on_idle(self):
        """Everything handed to `send` has left: what has gathered becomes a frame."""
        self.idle = True
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
        if self.gone is not None:
            self.gather_length = self.gather_records = 0
            self.line.give_up(self.gone)
            self.interest_line.give_up(self.gone)
            self.queue_line.give_up(self.gone)
            return 0
        return self.hand_over()

    cdef int hand_over(self) except -1:
        """Hands frames to the transport, as far as it is time to."""
        if self.handing:
            return 0                # `send` has called on_idle: the loop below goes on
        self.handing = True
        try:
            while self.send is not None and not is_fenced(self.hub.node):
                if self.halts and self.handed >= self.halted_at:
                    return 0
                if self.handed < self.newest():
                    self.handed += 1
                    self.handed_ever = max(self.handed_ever, self.handed)
                    self.send_one(self.addressed(self.handed))
                elif not self.idle or not self.seal_if_any():
                    return 0
        finally:
            self.handing = False
        return 0

    cdef int send_one(self, bytes frame) except -1:
        self.idle = False
        self.hub.cold = True        # ends a lingering turn, so that the event loop writes the frame
        self.frames_sent += 1
        self.bytes_sent += len(frame)
        self.send(frame)
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
        self.ack_waits = False
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

    cdef uint64_t newest(self) noexcept:
        return self.acknowledged_upto + self.kept_count

    cdef bint full(self) noexcept:
        return self.kept_bytes + self.gather_length + self.journal_bytes >= self.window_bytes

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

    cdef uint8_t* room(self, size_t n) except NULL:
        """Room for n bytes behind what was gathered; `put` adds what was written."""
        cdef size_t room = max(self.gather_room, <size_t>GATHER_BYTES_MIN)
        cdef uint8_t* grown
        if self.gather_length + n > self.gather_room:
            while room < self.gather_length + n:
                room *= 2
            grown = <uint8_t*>realloc(self.gather, room)
            if grown == NULL:
                raise MemoryError()
            self.gather = grown
            self.gather_room = room
        return self.gather + self.gather_length

    cdef void put(self, const uint8_t* end, uint32_t records) noexcept:
        if self.gather_records == 0:
            self.gather_since_ms = self.hub.node.steady_ms
        self.gather_length = end - self.gather
        self.gather_records += records

    cdef int mark_dirty(self) except -1:
        """Asks for end_turn, ahead of outboxes that were made later: a publish comes to its peers in the order of
        their addresses, and a history of the simulator must not depend on these."""
        cdef list waiting = self.hub.unsealed
        cdef Py_ssize_t at
        cdef object other
        if not self.dirty:
            at = len(waiting)
            while at:
                other = waiting[at - 1]
                if not isinstance(other, PeerOutbox) or (<PeerOutbox>other).line.number < self.line.number:
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

    cdef int forward(self, pub_t* pub) except -1:
        return self.take_message(pub, None, None)

    cdef int forward_group(self, pub_t* pub, bytes group, bytes filter) except -1:
        return self.take_message(pub, group, filter)

    cdef int take_message(self, pub_t* pub, bytes group, bytes filter) except -1:
        cdef const body_t* body = &pub.body
        cdef bint full = self.full()
        cdef origin_t* origin = origin_of(pub)
        cdef int64_t left_ms = -1
        cdef uint8_t flags = pub.qos | (PEER_RETAIN if pub.retain else 0)
        cdef version_t version = version_t(0, 0)
        cdef size_t size
        cdef uint8_t* at
        if pub.qos == 0 and self.parked:
            return 0
        if pub.qos == 0 and (full or self.gone is not None):
            self.dropped += 1
            self.hub.node.counters.dropped_peer_full += 1
            return 0
        if self.gone is not None:
            return self.ticket(self.line)       # end_turn gives it up
        if <void*>self.topics != pub.topics:
            self.number = self.number_of((<Topics>pub.topics).namespace.name)
            self.topics = <Topics>pub.topics
        if body.expires_at:
            left_ms = max(body.expires_at - self.hub.node.steady_ms, <int64_t>0)
        size = message_bytes(body)
        if group is not None:
            size += group_bytes(len(group), len(filter))
        elif pub.retain and self.hub.retained.spreading == pub:
            version = version_t(self.hub.retained.version, self.hub.retained.life)
            size += VERSION_BYTES
        if origin != NULL:
            origin.spread = True
            size += ORIGIN_BYTES
        at = self.room(size)
        if pub.qos:
            self.hub.commits.give(self.line)
            if full:
                self.hub.crowded = self
                self.hub.crowded_mark = self.hub.commits.mark
        if group is None:
            at = put_message(at, self.number, body, flags, left_ms, origin, &version if version.number else NULL)
        else:
            self.group_frame = self.newest() + 1
            at = put_group_message(at, self.number, <const uint8_t*><const char*>group, fit_u16(len(group)),
                                   <const uint8_t*><const char*>filter, fit_u16(len(filter)), body, flags, left_ms,
                                   origin)
        self.put(at, 1)
        if not self.dirty:
            self.mark_dirty()
        if self.gather_length >= SEAL_BYTES and not self.hub.whole:
            self.seal()
        return 0

    cdef int retain(self, pub_t* pub) except -1:
        cdef bint full = self.full()
        cdef origin_t* origin = origin_of(pub)
        if pub.qos == 0 and (full or self.gone is not None):
            self.dropped += 1               # it gets it from the store
            return 0
        if self.gone is not None:
            return self.ticket(self.line)   # end_turn gives it up
        if origin != NULL:
            origin.spread = True
        if pub.qos:
            self.hub.commits.give(self.line)
            if full:
                self.hub.crowded = self
                self.hub.crowded_mark = self.hub.commits.mark
        return self.take_retained((<Topics>pub.topics).namespace.name, &pub.body, pub.qos, origin,
                                  version_t(self.hub.retained.version, self.hub.retained.life),
                                  self.hub.retained.is_spread_whole(&pub.body), pub.body.payload_length)

    cdef int take_retained(self, bytes namespace, const body_t* body, uint8_t flags, const origin_t* origin,
                           version_t version, bint whole, uint32_t size) except -1:
        cdef uint32_t number = self.number_of(namespace)
        cdef int64_t left_ms = -1
        cdef body_t shown = body[0]
        cdef uint8_t* at
        if not whole:
            flags |= PEER_ABSENT
            shown.payload_length = shown.properties_length = 0
        if body.expires_at:
            left_ms = max(body.expires_at - self.hub.node.steady_ms, <int64_t>0)
        at = self.room(message_bytes(&shown) + ORIGIN_BYTES + VERSION_BYTES + SIZE_BYTES)
        self.put(put_retained(at, number, &shown, flags | PEER_RETAIN, left_ms, origin, &version, size), 1)
        self.mark_dirty()
        if self.gather_length >= SEAL_BYTES and not self.hub.whole:
            self.seal()
        return 0

    def retained(self, bytes namespace not None, bytes topic not None, Retained kept, uint64_t version, uint64_t life,
                 uint32_t size=0):
        """What this node has of a topic, for a node that has come: a retained message, or (None) that it was cleared,
        with its version. size: of a payload that is at another node still. Nobody waits for it."""
        cdef body_t body
        if self.gone is not None:
            return
        if kept is None:
            body_borrow(&body, topic, b"", b"", 0, FORMAT_MQTT)
        else:
            body = kept.msg.body
        self.take_retained(namespace, &body, PEER_STATE | (0 if kept is None else kept.msg.qos), NULL,
                           version_t(version, life), kept is None or (
                               not kept.unstored and self.hub.retained.is_spread_whole(&body)),
                           size if kept is not None and kept.absent else body.payload_length)
        self.hub.touch()

    cdef int release(self, uint64_t name, uint16_t packet_id, uint64_t use) except -1:
        cdef uint8_t* at
        if self.gone is None:
            at = self.room(RELEASE_BYTES)
            self.ticket(self.line)
            self.put(put_release(at, name, packet_id, use), 1)
        return 0

    # ---------------------------------------------------------------- queues

    cdef bint takes_queues(self) noexcept:
        return not self.deaf and self.gone is None and not self.parked

    cdef int take_publish(self, uint64_t queue, const body_t* body, uint8_t qos, int awaited,
                          const pub_t* pub) except -1:
        """A message for a queue of the other node."""
        cdef origin_t* origin = origin_of(pub)
        cdef int64_t left_ms = -1
        cdef uint64_t position = 0
        cdef bint full = self.full()
        cdef uint8_t* at
        if body.topic_length > 65535:
            raise UsageError(f"a message with an address of {body.topic_length} bytes")
        if body.expires_at:
            left_ms = max(body.expires_at - self.hub.node.steady_ms, <int64_t>0)
        if origin != NULL:
            origin.spread = True
        at = self.room(publish_bytes(body) + ORIGIN_BYTES)
        if full and awaited == RELAY_UNAWAITED:
            awaited = RELAY_TAKEN           # so that its publisher waits, and is not read
        if awaited:
            position = self.queue_line.give_one()
        if full:
            self.hub.crowded = self
            self.hub.crowded_mark = self.hub.commits.mark
        self.put(put_publish(at, queue, position, body,
                             qos | (PEER_QUIET if awaited == RELAY_TAKEN else 0)
                             | (PEER_FORCED if awaited == RELAY_FORCED else 0), left_ms, origin), 1)
        if not self.dirty:
            self.mark_dirty()
        if self.gather_length >= SEAL_BYTES and not self.hub.whole:
            self.seal()
        return 0

    cdef int take_settlement(self, uint32_t member, uint8_t flags, uint16_t deliveries, uint32_t log, uint64_t offset,
                             int64_t ms, bytes reason) except -1:
        """What becomes of a message that one of this node's consumers holds. Adjacent ones are one record."""
        cdef uint32_t length = 0 if reason is None else <uint32_t>len(reason)
        cdef uint8_t* at
        cdef uint32_t count
        if self.settle_end and self.settle_end == self.gather_length and ms == 0 and length == 0:
            at = self.gather + self.settle_at
            count = peek_u32_le(at + SETTLE_COUNT_AT)
            if (at[1] == flags and at[2] == <uint8_t>deliveries and at[3] == <uint8_t>(deliveries >> 8)
                    and peek_u32_le(at + 8) == member and peek_u32_le(at + 12) == log
                    and peek_u64_le(at + 16) + count == offset and count < RUN_MAX):
                put_u32_le(at + SETTLE_COUNT_AT, count + 1)
                return 0
        at = self.room(SETTLE_BYTES + length)
        self.settle_at = self.gather_length
        self.put(put_settle(at, member, flags, deliveries, log, offset, 1, ms,
                            NULL if length == 0 else <const uint8_t*><const char*>reason, length), 1)
        self.settle_end = self.gather_length if ms == 0 and length == 0 else 0
        if not self.dirty:
            self.mark_dirty()
            self.hub.touch()
        if self.gather_length >= SEAL_BYTES and not self.hub.whole:
            self.seal()
        return 0

    cdef int take_barrier(self) except -1:
        cdef uint8_t* at = self.room(SMALL_BYTES)
        self.put(put_position(at, PEER_BARRIER, self.queue_line.give_one()), 1)
        return self.asked()

    cdef int take_credit(self, uint32_t member, uint32_t limit) except -1:
        self.put(put_credit(self.room(SMALL_BYTES), member, limit), 1)
        return self.asked()

    cdef int take_detach(self, uint32_t member, bint rests) except -1:
        self.put(put_detach(self.room(SMALL_BYTES), member, rests), 1)
        return self.asked()

    cdef int take_call(self, uint8_t kind, uint32_t number, uint64_t queue, bytes data) except -1:
        self.put(put_call(self.room(CALL_BYTES + <size_t>len(data)), kind, number, queue,
                          <const uint8_t*><const char*>data, <uint32_t>len(data)), 1)
        return self.asked()

    cdef int asked(self) except -1:
        self.mark_dirty()
        self.hub.touch()
        if self.gather_length >= SEAL_BYTES and not self.hub.whole:
            self.seal()
        return 0

    cdef uint32_t next_number(self) except 0:
        self.number_last += 1
        if self.number_last == 0:
            raise UsageError(f"all numbers for consumers of queues at node {self.node} are used")
        return self.number_last

    cdef int take_delivery(self, uint32_t member, uint16_t deliveries, uint32_t log, const record_t* record,
                           int64_t now, ticket_t ticket) except -1:
        """A message for one of the other node's consumers."""
        cdef int64_t left_ms = 0
        if record.expires_at:
            left_ms = max(record.expires_at - now, <int64_t>1)
        return self.late_put(put_delivery(self.late_space(DELIVERY_BYTES + record.size, ticket), member, deliveries,
                                          log, <const uint8_t*>record, record.size, left_ms))

    cdef int take_withdrawal(self, uint32_t member, uint32_t log, uint64_t offset, uint32_t line) except -1:
        return self.late_put(put_withdraw(self.late_space(SMALL_BYTES, ticket_t(0, line, 0, 0)), member, log, offset))

    cdef int take_committed(self, uint64_t position) except -1:
        self.put(put_position(self.room(SMALL_BYTES), PEER_COMMITTED, position), 1)
        return self.asked()

    cdef int take_refusal(self, uint64_t position, uint16_t reason, bytes text) except -1:
        self.put(put_refused(self.room(SMALL_BYTES + <size_t>len(text)), position, reason,
                             <const uint8_t*><const char*>text, <uint32_t>len(text)), 1)
        return self.asked()

    def publish_to(self, uint64_t queue, bytes topic not None, bytes properties not None, bytes payload not None, *,
                   int format, object unrouted=None) -> bool:
        """A direct reply, for a queue of the other node that this one knows by its identity only; gives a ticket.
        topic, properties: valid, encoded as `format` (FORMAT_*). unrouted: called, ahead of that ticket, if there is no
        such queue any more. False: the node has died."""
        cdef body_t body
        if not self.takes_queues():
            return False
        body_borrow(&body, topic, properties, payload, 0, <uint8_t>format)
        self.take_publish(queue, &body, 1, RELAY_AWAITED, NULL)
        if unrouted is not None:
            self.unrouted[self.queue_line.at - 1] = unrouted
        return True

    def ask(self, uint64_t queue, bytes data not None) -> int:
        """A question about a queue of the other node that this one knows by its identity only. Returns the number under
        which the answer comes; 0: the node is away."""
        cdef uint32_t number
        if not self.takes_queues():
            return 0
        number = self.next_number()
        self.take_call(PEER_CALL, number, queue, data)
        return number

    def refuse(self, uint64_t position, int reason, str text not None):
        """Refuses what the other node waits for at this position (PeerInbox.asked). reason: of MQTT 5."""
        if self.takes_queues():
            self.take_refusal(position, <uint16_t>reason, text.encode())

    def result(self, uint32_t number, bytes data not None, Line line=None):
        """The answer to a call, or to a member that was attached: it leaves when what was given to a line so far is
        committed, behind the deliveries of that line that were given before. line: of the queue that it is about; None:
        the journal."""
        if line is None:
            line = self.hub.commits.local
        self.take_result(number, data, ticket_t(line.newest() if line.newest() > line.done() else 0, line.number, 1, 0))
        self.hub.touch()

    cdef int take_result(self, uint32_t number, bytes data, ticket_t ticket) except -1:
        """The answer to a call, which leaves when the ticket is committed."""
        return self.late_put(put_result(self.late_space(SMALL_BYTES + <size_t>len(data), ticket), number,
                                        <const uint8_t*><const char*>data, <uint32_t>len(data)))

    cdef int queues_committed(self, uint64_t position) except -1:
        if position >= self.queue_line.at:
            raise ProtocolError(WRONG, f"{self.node} says that position {position} is committed, but the next one is "
                                       f"{self.queue_line.at}")
        self.queue_line.decide(position)
        if self.unrouted:
            self.forget_unrouted()
        return 0

    cdef int forget_unrouted(self) except -1:
        """The direct replies that are decided have found their requesters, or nobody knows."""
        for position in [position for position in self.unrouted if position <= self.queue_line.decided]:
            del self.unrouted[position]
        return 0

    cdef int queues_refused(self, uint64_t position, uint16_t reason, str text) except -1:
        if position >= self.queue_line.at or reason == 0:
            raise ProtocolError(WRONG, f"{self.node} refuses position {position}, but the next one is "
                                       f"{self.queue_line.at}")
        if position <= self.queue_line.decided:     # it was given up meanwhile
            return 0
        if reason == REASON_NO_MATCHING_SUBSCRIBERS:
            unrouted = self.unrouted.pop(position, None)
            if unrouted is not None:
                unrouted()
            return 0
        self.queue_line.refuse(position, reason, text)
        return 0

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
            one.outbox = <void*>self
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

    def give_up_queues(self, str why not None):
        """The other node has died: nobody has, for certain, what queues there were sent. What consumers have settled
        they keep, until they are attached anew. Called before their relays hear that they have no owner."""
        self.keep_settlements(self.members)
        self.deaf = True
        self.unrouted.clear()
        self.queue_line.give_up(why)
        self.drop_late()

    cdef int keep_settlements(self, dict members) except -1:
        """What these consumers (RelayMember by number) have told the other node, and is perhaps not on its disk, they
        keep until an owner has attached them anew."""
        cdef dict kept = {}
        self.seal_if_any()
        for number, settled in self.settlements():
            member = members.get(number)
            if member is not None:
                kept.setdefault(member, []).append(settled)
        for member, sent in kept.items():
            member.keep_sent(sent)
        return 0

    def end_member(self, uint32_t number):
        """A consumer that was attached under this number is not there any more: the owner may give what it has to
        others."""
        if self.takes_queues():
            self.take_detach(number, False)

    def return_stalled(self):
        """Gives back what waits here for consumers that get nothing. Called once a second."""
        cdef list waited = self.waited
        if waited:
            self.waited = []
            # Those of another owner by now are in the list of the way there, if anything waits for them.
            self.waited += [one for one in waited if one.relay.outbox is self and one.return_stalled()]

    cdef int drop_late(self) except -1:
        cdef PyObject* at = self.late
        while at != NULL:
            (<Late>at).drop()
            at = (<Late>at).next
        self.late_bytes = self.journal_bytes = 0
        return 0

    cdef int feed(self) except -1:
        """There is room again: the queues of the other node's consumers go on."""
        self.starved = False
        for member in self.hosted.values():
            (<Queue>member.queue).touch()
        for queue in self.feeds:
            (<Queue>queue).touch()
        return 0

    # ---------------------------------------------------------------- for the cold half

    def interest(self, bytes namespace not None, bytes filter not None, bytes group not None, uint32_t count,
                 bint ticket=True, bint durable=False):
        """This node has so many subscriptions with a filter (without `$share/…/`), in a share group or none (b"");
        0: it wants the topics no more. durable: one of them is of a session that outlives its node. Gives a ticket of
        the interest line, unless told not to. namespace: its name."""
        cdef uint32_t number
        cdef uint8_t* at
        if len(group) > 65535:
            raise UsageError("the name of a share group has at most 65535 bytes")
        number = self.number_of(namespace)
        at = self.room(interest_bytes(len(group), len(filter)))
        if ticket:
            self.ticket(self.interest_line)
        else:
            self.mark_dirty()
        self.put(put_interest(at, number, count, PEER_DURABLE if durable else 0, <const uint8_t*><const char*>group,
                              fit_u16(len(group)), <const uint8_t*><const char*>filter, <uint32_t>len(filter)), 1)
        self.hub.touch()

    def interest_end(self):
        """This node's interest is whole: the other node has all of it when it has applied this."""
        self.mark_dirty()
        self.put(put_control(self.room(control_bytes(0)), PEER_INTEREST_END, NULL, 0), 1)
        self.hub.touch()

    def control(self, bytes data not None, bint ticket=False):
        """A message of the cold half. ticket: gives one."""
        cdef uint8_t* at = self.room(control_bytes(len(data)))
        if ticket:
            self.hub.commits.give(self.line)
        self.mark_dirty()
        self.put(put_control(at, PEER_CONTROL, <const uint8_t*><const char*>data, <uint32_t>len(data)), 1)
        self.hub.touch()

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

    cdef int seal_if_any(self) except -1:
        """Makes a frame unless it would be empty and nothing waits for it. Returns whether it did."""
        if self.gather_records == 0 and not self.line.given and not self.interest_line.given:
            return 0
        self.seal()
        return 1

    cdef int seal(self) except -1:
        cdef frame_t header
        cdef bytes frame = PyBytes_FromStringAndSize(NULL, FRAME_HEADER_BYTES + self.gather_length)
        cdef uint8_t* at
        self.fill_header(&header)
        header.sequence = self.newest() + 1
        header.records = self.gather_records
        at = put_header(<uint8_t*>PyBytes_AS_STRING(frame), &header)
        if self.gather_length:
            memcpy(at, self.gather, self.gather_length)
        self.keep(frame)
        self.line.given = True          # the lines' positions move with every frame
        self.line.submit()
        if not self.parked:             # else the frame is never sent, and the node's next life has an outbox already
            self.interest_line.given = True
            self.interest_line.submit()
            self.hub.sequences[self.node] = header.sequence
        self.records += self.gather_records
        self.gather_length = 0
        self.gather_records = 0
        self.settle_end = 0
        if self.send is not None:
            self.ack_waits = False
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

    def group_messages(self) -> list:
        """What the other node may not have, of QoS 1 and 2 for share groups, for members on other nodes: [(namespace,
        group, filter, (topic, payload, properties, QoS, retain, expires_at), doubt)]. doubt: 0, or the number of the
        frame with which a message of QoS 2 was handed to a connection: a client may have got it, and whether that node
        has recorded the frame is known when it is back (on_disk of its next outbox). What gathers is not among them:
        see cut()."""
        cdef list names = list(self.numbers)
        cdef list found = []
        cdef bytes frame
        cdef frame_t header
        cdef Cursor records
        cdef peer_record_t record
        cdef kept_t* kept
        cdef int64_t expires_at
        cdef uint8_t qos
        cdef uint64_t i, sequence
        for i in range(self.kept_count):
            kept = &self.kept[(self.kept_head + i) & (self.kept_room - 1)]
            sequence = self.acknowledged_upto + 1 + i
            frame = <bytes>kept.frame
            open_frame(<const uint8_t*>PyBytes_AS_STRING(frame), <size_t>len(frame), &header, &records)
            while next_record(&records, &record, NULL):
                qos = record.flags & PEER_QOS
                if record.kind != PEER_GROUP_MESSAGE or qos == 0:
                    continue
                expires_at = 0
                if record.left_ms >= 0:
                    expires_at = max(kept.since_ms + record.left_ms, <int64_t>1)
                    if expires_at <= self.hub.node.steady_ms:
                        continue
                found.append((names[record.namespace - 1], taken(&record.name), taken(&record.filter),
                              (taken(&record.topic), taken(&record.payload), taken(&record.properties), qos,
                               record.flags & PEER_RETAIN != 0, expires_at),
                              sequence if qos == 2 and sequence <= self.handed_ever else 0))
        return found

    def settlements(self) -> list:
        """What the other node may not have of what consumers did, oldest first: (number of the consumer, as
        RelayMember.settled)."""
        cdef list found = []
        cdef bytes frame, reason
        cdef frame_t header
        cdef Cursor records
        cdef peer_record_t record
        cdef uint32_t i
        for frame in self.unacknowledged():
            open_frame(<const uint8_t*>PyBytes_AS_STRING(frame), <size_t>len(frame), &header, &records)
            while next_record(&records, &record, NULL):
                if record.kind != PEER_SETTLE or record.flags & PEER_VERB == VERB_EXTEND:
                    continue
                reason = taken(&record.payload) if record.payload.length else None
                for i in range(record.count):
                    found.append((record.member, (record.flags, record.deliveries, record.log, record.offset + i,
                                                  record.ms, reason)))
        return found

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

    def ack(self, uint64_t epoch, uint64_t sequence):
        """Acknowledges the other node's frames up to this one, of its life `epoch`: the next frame says so. If none
        leaves (needs_ack), send_ack() does."""
        self.ack_epoch = epoch
        self.ack_sequence = sequence
        self.ack_waits = True

    @property
    def needs_ack(self) -> bool:
        """Whether send_ack() would send something."""
        return self.ack_waits and self.send is not None and self.ack_epoch == self.to_epoch

    def send_ack(self):
        """Sends an acknowledgement without a frame, if none has left with one since ack()."""
        if self.needs_ack and not is_fenced(self.hub.node):
            self.send_unnumbered(0, 0)

    # ---------------------------------------------------------------- giving up

    def give_up_before(self, uint64_t sequence, str why not None):
        """Gives up the tickets of frames before this one (see `cut`) that are not acknowledged. The frames themselves
        stay: the other node may still get them. why: shown to clients."""
        cdef uint64_t at
        if sequence > self.newest() + 1:
            raise UsageError(f"frame {sequence - 1} was not made yet")
        if sequence > self.acknowledged_upto + 1:
            self.line.give_up(why, sequence - 1)
            at = self.kept[(self.kept_head + sequence - self.acknowledged_upto - 2) & (self.kept_room - 1)].queues_upto
            if at > self.queue_line.decided:
                self.queue_line.give_up(why, at)
            if not self.parked:
                self.interest_line.give_up(why, sequence - 1)

    def abandon(self, str why not None):
        """The other node will not come back: gives up all tickets, also of what is forwarded from now on, and drops the
        frames. why: shown to clients."""
        self.detach()
        self.gone = why
        self.seal_if_any()
        self.drop_kept(self.newest())
        self.line.give_up(why)
        self.interest_line.give_up(why)
        self.queue_line.give_up(why)
        self.drop_late()
        self.ease()

    # ---------------------------------------------------------------- a node that has died

    def park(self):
        """The other node has died, and others adopt its sessions: see the top of outbox.pxd."""
        self.detach()
        self.seal_if_any()
        self.parked = True
        self.interest_line.commit(self.newest())
        self.interest_line.close("the node has died")
        self.queue_line.close(f"node {self.node} has died")
        self.drop_late()

    def direct(self, uint64_t life, list outboxes not None, bint here, PeerOutbox back=None):
        """Gives what a parked outbox has to the sessions that were adopted from this life of its node: to those of the
        other nodes through their outboxes, and to those of this node (here). The frames are dropped; the tickets stay
        undecided. Their messages are committed when the tickets that this gives are. back: the one of these outboxes
        that is to the next life of that node, which has the sessions from its disk, and does not get again what is
        there already."""
        cdef list names = list(self.numbers)
        cdef kept_t* kept
        cdef uint64_t i
        self.seal_if_any()
        for i in range(self.kept_count):
            kept = &self.kept[(self.kept_head + i) & (self.kept_room - 1)]
            self.direct_frame(<bytes>kept.frame, kept.since_ms, life, outboxes, here, back, names)
        self.drop_kept(self.newest())
        self.ease()
        self.hub.touch()

    cdef int direct_frame(self, bytes frame, int64_t since_ms, uint64_t life, list outboxes, bint here,
                          PeerOutbox back, list names) except -1:
        cdef frame_t header
        cdef Cursor records
        cdef peer_record_t record
        cdef PeerOutbox outbox
        cdef pub_t pub
        cdef origin_t origin
        cdef once_t once
        cdef route_t* route
        cdef int64_t left
        open_frame(<const uint8_t*><const char*>frame, <size_t>len(frame), &header, &records)
        if back is not None and header.sequence <= back.on_disk:
            outboxes = [outbox for outbox in outboxes if outbox is not back]
        while next_record(&records, &record, NULL):
            if record.kind != PEER_MESSAGE and record.kind != PEER_DIRECTED or not record.flags & PEER_QOS:
                continue
            namespace = self.hub.namespaces.get(names[record.namespace - 1])
            if namespace is None:
                continue                        # it has ended, and its sessions
            memset(&pub, 0, sizeof(pub))
            pub.body.topic = record.topic.at
            pub.body.topic_length = fit_u16(record.topic.length)
            pub.body.properties = record.properties.at
            pub.body.properties_length = record.properties.length
            pub.body.payload = record.payload.at
            pub.body.payload_length = record.payload.length
            if record.left_ms >= 0:
                left = record.left_ms - max(self.hub.node.steady_ms - since_ms, <int64_t>0)
                if left < 0:
                    self.hub.node.counters.dropped_expired += 1
                    continue
                pub.body.expires_at = max(self.hub.node.steady_ms + left, <int64_t>1)
            pub.topics = topics_of(namespace)
            pub.qos = record.flags & PEER_QOS
            pub.retain = record.flags & PEER_RETAIN != 0
            pub.from_peer = 1                   # it is neither retained again nor sent to other nodes
            if record.kind == PEER_MESSAGE:
                record.life = life
            origin = origin_t(name=record.origin, use=record.use, packet_id=record.packet_id, spread=False,
                              doubtful=False)
            once = once_of(&origin)
            if record.origin == 0:
                once.origin = NULL
            pub.once = &once
            for outbox in outboxes:
                outbox.direct_one(&pub, record.life)
            if here:
                route = (<Topics>pub.topics).routes.find(pub.body.topic, pub.body.topic_length)
                self.hub.publish_to_life(&pub, route, record.life,
                                         self.hub.origins.find(&origin) if record.origin else None, once.origin)
        return 0

    cdef int direct_one(self, pub_t* pub, uint64_t life) except -1:
        """A message for the sessions of the other node that were adopted from a life."""
        cdef int64_t left_ms = -1
        cdef uint32_t number
        cdef uint8_t* at
        if self.gone is not None:
            return self.ticket(self.line)       # end_turn gives it up
        number = self.number_of((<Topics>pub.topics).namespace.name)
        if pub.body.expires_at:
            left_ms = max(pub.body.expires_at - self.hub.node.steady_ms, <int64_t>0)
        at = self.room(message_bytes(&pub.body) + LIFE_BYTES + ORIGIN_BYTES)
        self.ticket(self.line)
        self.put(put_directed(at, life, number, &pub.body, pub.qos | (PEER_RETAIN if pub.retain else 0), left_ms,
                              origin_of(pub)), 1)
        if self.gather_length >= SEAL_BYTES:
            self.seal()
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
