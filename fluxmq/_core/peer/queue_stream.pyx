# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. Records of queues to another node. See peer/queue_stream.pxd."""
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stddef cimport size_t

from fluxmq._core.disk.journal_format cimport peek_u32_le, peek_u64_le, put_u32_le
from fluxmq._core.errors import ProtocolError, UsageError
from fluxmq._core.memory.commits cimport Line
from fluxmq._core.memory.message cimport body_borrow, origin_of, origin_t
from fluxmq._core.mqtt.consts cimport REASON_NO_MATCHING_SUBSCRIBERS
from fluxmq._core.peer.frames cimport (
    CALL_BYTES, DELIVERY_BYTES, ORIGIN_BYTES, PEER_BARRIER, PEER_CALL, PEER_COMMITTED, PEER_FORCED, PEER_QUIET,
    PEER_SETTLE, PEER_VERB, SETTLE_BYTES, SETTLE_COUNT_AT, SMALL_BYTES, frame_t, next_record, open_frame,
    peer_record_t, publish_bytes, put_call, put_credit, put_delivery, put_detach, put_position, put_publish,
    put_refused, put_result, put_settle, put_withdraw, taken,
)
from fluxmq._core.peer.stream cimport SEAL_BYTES, WRONG
from fluxmq._core.queue.group cimport RUN_MAX
from fluxmq._core.queue.queue cimport Queue
from fluxmq._core.queue.relay cimport RELAY_AWAITED, RELAY_FORCED, RELAY_TAKEN, RELAY_UNAWAITED, VERB_EXTEND
from fluxmq._core.wire.primitives cimport Cursor

__all__ = ["QueueStream"]


cdef class QueueStream(LateStream):
    """Machine. A stream with what the nodes tell each other of queues: what this one publishes to the other's and has
    delivered to its consumers, and what it asks and answers. A base class."""

    def __cinit__(self, *_, **__):
        self.unrouted = {}
        self.members = {}
        self.waited = []
        self.hosted = {}
        self.feeds = {}

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
        """The answer to a call, or to a member that was attached, unless the node that asked has died meanwhile: it
        leaves when what was given to a line so far is committed, behind the deliveries of that line that were given
        before. line: of the queue that it is about; None: the journal."""
        if not self.takes_queues():
            return
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

    def give_up_queues(self, str why not None):
        """The other node has died: nobody has, for certain, what queues there were sent. What consumers have settled
        they keep, until they are attached anew. Called before their relays hear that they have no owner. The stream is
        LOST from then on: it is not connected, and takes no connection."""
        self.keep_settlements(self.members)
        self.mark_lost()
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

    cdef int feed(self) except -1:
        """There is room again: the queues of the other node's consumers go on."""
        self.starved = False
        for member in self.hosted.values():
            (<Queue>member.queue).touch()
        for queue in self.feeds:
            (<Queue>queue).touch()
        return 0

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
