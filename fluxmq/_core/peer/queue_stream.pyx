# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. Records of queues to another node. See peer/queue_stream.pxd."""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stddef cimport size_t

from fluxmq._core.disk.journal_format cimport peek_u32_le, peek_u64_le, put_u32_le
from fluxmq._core.errors import ProtocolError, UsageError
from fluxmq._core.hub.targets cimport PeerHop
from fluxmq._core.memory.commits cimport Line
from fluxmq._core.memory.message cimport body_borrow, origin_of, origin_t
from fluxmq._core.mqtt.consts cimport REASON_NO_MATCHING_SUBSCRIBERS
from fluxmq._core.peer.frames cimport (
    CALL_BYTES, CHANNEL_MAX, DELIVERY_BYTES, ORIGIN_BYTES, PEER_AWAITED, PEER_BARRIER, PEER_CALL, PEER_COMMITTED,
    PEER_FORCED, PEER_QUIET, PEER_SETTLE, PEER_UNDONE, PEER_VERB, SETTLE_BYTES, SETTLE_COUNT_AT, SMALL_BYTES,
    channel_in, frame_t, next_record, open_frame, peer_record_t, position_in, publish_bytes, put_call, put_credit,
    put_delivery, put_detach, put_position, put_publish, put_refused, put_result, put_settle, put_withdraw, taken,
    with_channel,
)
from fluxmq._core.peer.channel cimport CHANNEL_PART
from fluxmq._core.peer.stream cimport SEAL_BYTES, WRONG, FrameStream
from fluxmq._core.queue.group cimport RUN_MAX
from fluxmq._core.queue.queue cimport Queue
from fluxmq._core.queue.relay cimport RELAY_AWAITED, RELAY_FORCED, RELAY_TAKEN, RELAY_UNAWAITED, VERB_EXTEND
from fluxmq._core.wire.primitives cimport Cursor

__all__ = ["QueueStream"]


cdef int find_settled(Cursor records, list found) except -1:
    """What consumers have done with messages for good: (number of the consumer, as RelayMember.settled)."""
    cdef bytes reason
    cdef peer_record_t record
    cdef uint32_t i
    while next_record(&records, &record, NULL):
        if record.kind != PEER_SETTLE or record.flags & PEER_VERB == VERB_EXTEND:
            continue
        reason = taken(&record.payload) if record.payload.length else None
        for i in range(record.count):
            found.append((record.member, (record.flags, record.deliveries, record.log, record.offset + i, record.ms,
                                          reason)))
    return 0


cdef inline Cursor cursor_of(bytes records) noexcept:
    cdef Cursor at
    at.at = <const uint8_t*><const char*>records
    at.end = at.at + len(records)
    return at


cdef class QueueStream(LateStream):
    """Machine. A stream with what the nodes tell each other of queues: what this one publishes to the other's and has
    delivered to its consumers, and what it asks and answers. A base class."""

    def __cinit__(self, *_, **__):
        self.unrouted = {}
        self.members = {}
        self.waited = []
        self.hosted = {}
        self.feeds = {}
        self.journal_channel = Channel(0, 0, self.queue_line, 0)
        self.channels = [self.journal_channel]
        self.channel_of = {}
        self.used = []

    cdef Channel channel(self, uint64_t group):
        cdef Channel found = self.journal_channel if group == 0 else self.channel_of.get(group)
        if found is None and len(self.channels) > CHANNEL_MAX:
            return self.journal_channel         # whose frames wait for every line
        if found is None:
            found = Channel(<uint16_t>len(self.channels), group,         # fits: see above
                            self.hub.commits.open_line(f"queues of group {group} of node {self.node}"),
                            self.window_bytes // CHANNEL_PART)
            self.channels.append(found)
            self.channel_of[group] = found
        return found

    cdef int use(self, Channel channel, uint64_t bytes) except -1:
        """The frame that gathers has so much of it."""
        if not channel.used:
            channel.used = True
            self.used.append(channel)
        channel.gathered += bytes
        return 0

    cdef int seal(self) except -1:
        if self.used:
            self.close_channels()
        return FrameStream.seal(self)

    cdef int close_channels(self) except -1:
        """The frame is about to be made. Behind settlements a barrier is necessary, which says what becomes of them.
        Its position is no ticket, for which somebody else of this turn might wait."""
        cdef Channel channel
        cdef bint own
        cdef uint64_t frame = self.newest() + 1
        cdef dict settled = self.settled_here()
        for channel in self.used:
            own = channel.open
            if own:
                channel.barrier = channel.line.at
                channel.line.at += 1
                channel.gathered += SMALL_BYTES
                self.put(put_position(self.room(SMALL_BYTES), PEER_BARRIER, PEER_AWAITED,
                                      with_channel(channel.number, channel.barrier)), 1)
            channel.close_frame(frame, settled.get(channel), own)
        self.used.clear()
        return 0

    cdef dict settled_here(self):
        """The settlements that gather, of channels that keep them: their records, by channel."""
        cdef Cursor records
        cdef peer_record_t record
        cdef const uint8_t* at
        cdef dict found = {}
        cdef Channel channel
        for channel in self.used:
            if channel.settled:
                break
        else:
            return found
        records.at = self.gather
        records.end = self.gather + self.gather_length
        while True:
            at = records.at
            if not next_record(&records, &record, NULL):
                break
            member = self.members.get(record.member) if record.kind == PEER_SETTLE else None
            if member is not None and member.relay.channel.number:
                found.setdefault(member.relay.channel, []).append(
                    PyBytes_FromStringAndSize(<const char*>at, records.at - at))
        return {channel: b"".join(parts) for channel, parts in found.items()}

    cdef int take_publish(self, Channel channel, uint64_t queue, const body_t* body, uint8_t qos, int awaited,
                          const pub_t* pub) except -1:
        """A message for a queue of the other node."""
        cdef origin_t* origin = origin_of(pub)
        cdef int64_t left_ms = -1
        cdef uint64_t position = 0
        cdef bint crowded = channel.full()
        cdef bint full = crowded or self.full()
        cdef uint8_t* at
        cdef uint8_t* end
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
            position = channel.line.give_one()
        if full:
            self.hub.crowded = <PeerHop>channel if crowded and not self.full() else <PeerHop>self
            self.hub.crowded_mark = self.hub.commits.mark
        end = put_publish(at, queue, with_channel(channel.number, position), body,
                          qos | (PEER_QUIET if awaited == RELAY_TAKEN else 0)
                          | (PEER_FORCED if awaited == RELAY_FORCED else 0), left_ms, origin)
        if channel.number:
            self.use(channel, end - at)
        self.put(end, 1)
        if not self.dirty:
            self.mark_dirty()
        if self.gather_length >= SEAL_BYTES and not self.hub.whole:
            self.seal()
        return 0

    cdef int take_settlement(self, Channel channel, uint32_t member, uint8_t flags, uint16_t deliveries, uint32_t log,
                             uint64_t offset, int64_t ms, bytes reason) except -1:
        """What becomes of a message that one of this node's consumers holds. Adjacent ones are one record."""
        cdef uint32_t length = 0 if reason is None else <uint32_t>len(reason)
        cdef uint8_t* at
        cdef uint32_t count
        if channel.number:
            self.use(channel, 0)
            if flags & PEER_VERB != VERB_EXTEND:
                channel.settled = channel.open = True
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
        # Of a channel they stay in one frame with the barrier of their client, which is refused with them.
        if self.gather_length >= SEAL_BYTES and not self.hub.whole and not self.used:
            self.seal()
        return 0

    cdef int take_barrier(self, Channel channel, bint awaited) except -1:
        cdef uint8_t* at = self.room(SMALL_BYTES)
        cdef uint64_t position = channel.line.give_one()
        self.put(put_position(at, PEER_BARRIER, PEER_AWAITED if awaited else 0,
                              with_channel(channel.number, position)), 1)
        if channel.number:
            self.use(channel, SMALL_BYTES)
            if awaited:
                channel.note_barrier(position, self.hub.commits.turn_mark)
        return self.asked()

    cdef int take_credit(self, uint32_t member, uint32_t limit) except -1:
        self.put(put_credit(self.room(SMALL_BYTES), member, limit), 1)
        return self.asked()

    cdef int take_detach(self, uint32_t member, bint rests) except -1:
        self.put(put_detach(self.room(SMALL_BYTES), member, rests), 1)
        return self.asked()

    cdef int take_call(self, Channel channel, uint8_t kind, uint32_t number, uint64_t queue, bytes data) except -1:
        self.put(put_call(self.room(CALL_BYTES + <size_t>len(data)), kind, channel.number, number, queue,
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

    cdef int take_committed(self, uint16_t channel, uint64_t position) except -1:
        self.put(put_position(self.room(SMALL_BYTES), PEER_COMMITTED, 0, with_channel(channel, position)), 1)
        return self.asked()

    cdef int take_refusal(self, uint16_t channel, uint64_t position, uint16_t reason, bytes text,
                          bint undone=False) except -1:
        self.put(put_refused(self.room(SMALL_BYTES + <size_t>len(text)), PEER_UNDONE if undone else 0,
                             with_channel(channel, position), reason, <const uint8_t*><const char*>text,
                             <uint32_t>len(text)), 1)
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
        self.take_publish(self.journal_channel, queue, &body, 1, RELAY_AWAITED, NULL)
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
        self.take_call(self.journal_channel, PEER_CALL, number, queue, data)
        return number

    def refuse(self, uint64_t position, int reason, str text not None):
        """Refuses what the other node waits for at this position (PeerInbox.asked). reason: of MQTT 5."""
        if self.takes_queues():
            self.take_refusal(channel_in(position), position_in(position), <uint16_t>reason, text.encode())

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

    cdef Channel known_channel(self, uint16_t number, uint64_t position):
        cdef Channel channel
        if number >= len(self.channels):
            raise ProtocolError(WRONG, f"{self.node} answers in channel {number}, which was not opened")
        channel = self.channels[number]
        if position >= channel.line.at:
            raise ProtocolError(WRONG, f"{self.node} says what became of position {position} of channel {number}, but "
                                       f"the next one is {channel.line.at}")
        return channel

    cdef int queues_committed(self, uint16_t channel, uint64_t position) except -1:
        cdef Channel one
        if not self.takes_queues():
            return 0                # everything was given up, and the channels are not there any more
        one = self.known_channel(channel, position)
        one.line.decide(position)
        if channel:
            one.committed(position)
            if one.paused and one.waiting_bytes + one.gathered <= one.limit // 2:
                self.ease_channel(one)
        elif self.unrouted:
            self.forget_unrouted()
        return 0

    cdef int ease_channel(self, Channel channel) except -1:
        """As ease(), for those that were paused because of the channel."""
        if self.hub.crowded is channel:
            self.hub.crowded = None
        if channel.paused:
            self.hub.eased.extend(channel.paused)
            channel.paused.clear()
            self.mark_dirty()
            self.hub.touch()
        return 0

    cdef int forget_unrouted(self) except -1:
        """The direct replies that are decided have found their requesters, or nobody knows."""
        for position in [position for position in self.unrouted if position <= self.queue_line.decided]:
            del self.unrouted[position]
        return 0

    cdef int queues_refused(self, uint16_t channel, uint64_t position, uint16_t reason, str text,
                            bint undone) except -1:
        cdef Channel one
        cdef bint own = False
        cdef bytes settled = None
        cdef list found = []
        if not self.takes_queues():
            return 0
        one = self.known_channel(channel, position)
        if reason == 0:
            raise ProtocolError(WRONG, f"{self.node} refuses position {position} without a reason")
        if channel:
            settled = one.take_refused(position, undone, &own)
            if settled:
                find_settled(cursor_of(settled), found)
                self.keep_found(found, self.members, True)
            if undone:
                for behind in one.behind.pop(position, ()):
                    if <uint64_t>behind > one.line.decided:
                        one.line.refuse(behind, reason, text)
        if position <= one.line.decided or own:     # it was given up meanwhile; or nobody waits for it
            return 0
        if reason == REASON_NO_MATCHING_SUBSCRIBERS:
            unrouted = self.unrouted.pop(position, None) if channel == 0 else None
            if unrouted is not None:
                unrouted()
            return 0
        one.line.refuse(position, reason, text)
        return 0

    def give_up_queues(self, str why not None):
        """The other node has died: nobody has, for certain, what queues there were sent. What consumers have settled
        they keep, until they are attached anew. Called before their relays hear that they have no owner. The stream is
        LOST from then on: it is not connected, and takes no connection."""
        self.keep_settlements(self.members)
        self.mark_lost()
        self.unrouted.clear()
        self.queue_line.give_up(why)
        self.give_up_channels(0, why)
        self.drop_late()

    cdef int give_up_channels(self, uint64_t before, str why) except -1:
        cdef Channel channel
        for channel in self.channels:
            if channel.number:
                channel.give_up_before(before, why)
                if before == 0:                 # it is not connected any more
                    channel.lose(self.newest(), why)
                    self.ease_channel(channel)
                    channel.line.retire()
        if before == 0:
            self.used.clear()
            del self.channels[1:]
            self.channel_of.clear()
        return 0

    cdef int lose_channels(self, uint64_t upto, str why) except -1:
        """A life of the other node has ended that had acknowledged these frames, or had them on its disk: the next one
        will not say what became of them in its groups."""
        cdef Channel channel
        cdef list found = []
        for channel in self.channels:
            if channel.number:
                for settled in channel.lose(upto, why):
                    find_settled(cursor_of(settled), found)
                self.ease_channel(channel)
        return self.keep_found(found, self.members)

    cdef int keep_settlements(self, dict members) except -1:
        """What these consumers (RelayMember by number) have told the other node, and is perhaps not on its disk, they
        keep until an owner has attached them anew."""
        self.seal_if_any()
        return self.keep_found(self.settlements(), members)

    cdef int keep_found(self, list settled, dict members, bint again=False) except -1:
        cdef dict kept = {}
        for number, what in settled:
            member = members.get(number)
            if member is not None:
                kept.setdefault(member, []).append(what)
        for member, sent in kept.items():
            member.keep_sent(sent, again)
        return 0

    def end_member(self, uint32_t number):
        """A consumer that was attached under this number is not there any more: the owner may give what it has to
        others."""
        if self.takes_queues():
            self.take_detach(number, False)

    def return_stalled(self):
        """Gives back what waits here for consumers that get nothing. Called once a second."""
        cdef list waited = self.waited
        cdef Channel channel
        for channel in self.channels:
            channel.forget_ended()
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
        """What the other node may not have committed of what consumers did, oldest first: (number of the consumer, as
        RelayMember.settled)."""
        cdef list found = []
        cdef bytes frame
        cdef frame_t header
        cdef Cursor records
        cdef Channel channel
        for channel in self.channels:
            for _, sequence, settled, _ in channel.kept:
                if sequence <= self.acknowledged_upto:      # else the frame has them
                    find_settled(cursor_of(settled), found)
        for frame in self.unacknowledged():
            open_frame(<const uint8_t*>PyBytes_AS_STRING(frame), <size_t>len(frame), &header, &records)
            find_settled(records, found)
        return found
