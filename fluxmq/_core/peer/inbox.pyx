# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. The receiving end of a stream from another node. See peer/inbox.pxd. It is one file because each record
notes what its frame is to wait for, and calls are direct only within a file.

What the cold half must provide (`handler`):

    on_applied(sequence)        everything that frames up to this one caused is committed: PeerOutbox.ack, soon if
                                `awaited`
    on_interest(namespace, filter, group, count, durable)
                                the sender has so many subscriptions; group: b"" for none. durable: one of them is of a
                                session that outlives its node
    on_interest_end()           its interest is whole
    on_control(data)            a message of its cold half
    on_group_message(namespace, group, filter, topic, payload, properties, qos, retain, expires_at)
                                a message for one member of a share group, of which this node has none (any more);
                                expires_at as in Hub.publish_message
    on_attach(number, queue, data), on_detach(number, rests), on_call(number, queue, data)
                                a consumer of the sender comes, leaves, or gets nothing more; a question. queue:
                                Queue.identity. The answers are PeerOutbox.result
    on_result(number, data)     the answer to one of this node
    on_refused(sequence, why)   a commit line of this node gave up what a frame caused: it is never acknowledged
"""
cimport cython
from libc.stdint cimport uint8_t
from libc.string cimport memcmp, memcpy, memset

from fluxmq._core.errors import ProtocolError
from fluxmq._core.disk.record_kinds cimport RECORD_PEER_POSITION
from fluxmq._core.memory.commits cimport Commits, Line
from fluxmq._core.hub.origins cimport Use
from fluxmq._core.memory.message cimport FORMAT_AMQP091, FORMAT_MQTT, body_t, once_of, once_t, origin_t, pub_t
from fluxmq._core.memory.namespace cimport Namespace
from fluxmq._core.memory.node cimport WORK_HOP, WORK_RETAIN, WORK_ROUTE
from fluxmq._core.mqtt.consts cimport (
    REASON_NO_MATCHING_SUBSCRIBERS, REASON_SERVER_UNAVAILABLE, REASON_UNSPECIFIED_ERROR,
)
from fluxmq._core.peer.asked cimport ASKED_MORE, ASKED_PUBLISHES
from fluxmq._core.peer.frames cimport (
    FRAME_AGAIN, FRAME_AWAITED, FRAME_BEGIN, PEER_ABSENT, PEER_ATTACH, PEER_AWAITED, PEER_BARRIER, PEER_CALL,
    PEER_COMMITTED, PEER_CONTROL, PEER_COUNTS, PEER_CREDIT, PEER_DELIVERY, PEER_DETACH, PEER_DIRECTED, PEER_DURABLE,
    PEER_FORCED, PEER_GROUP_MESSAGE, PEER_INTEREST, PEER_INTEREST_END, PEER_MESSAGE, PEER_NAMESPACE, PEER_PUBLISH,
    PEER_QOS, PEER_QUIET, PEER_REFUSED, PEER_RELEASE, PEER_REPEATED, PEER_RESTS, PEER_RETAIN, PEER_RETAINED,
    PEER_SETTLE, PEER_STATE, PEER_UNDONE, PEER_VERB, PEER_WITHDRAW, checks_t, next_record, open_frame, taken,
    with_channel,
)
from fluxmq._core.pubsub.routes cimport route_drop
from fluxmq._core.pubsub.share_group cimport ShareGroup, group_mark
from fluxmq._core.pubsub.topics cimport topics_of
from fluxmq._core.queue.group cimport Group
from fluxmq._core.queue.log cimport chunk_of_message
from fluxmq._core.queue.queue cimport is_for_one_queue, queue_mark
from fluxmq._core.queue.relay cimport RELAY_AWAITED, RELAY_FORCED, RELAY_TAKEN
from fluxmq._core.wire.primitives cimport put_u64

from fluxmq._core.amqp091.topics import DIRECT_REPLY_TO

__all__ = ["PeerInbox"]

cdef enum:
    WRONG = 0x82                # MQTT 5.0 section 2.4: Protocol Error; the cold half shows the text only
    NAMES_MAX = 1048576


cdef set NO_LINES = set()       # never changed in place

cdef bytes NOT_ATTACHED = b"the node that has the queue does not know the consumer, which will settle that again"

cdef bytes REPLY_PREFIX = DIRECT_REPLY_TO + b"."


cdef inline bint is_direct_reply(const body_t* body) noexcept:
    """Whether it was published to the default exchange for a requester that waits for a direct reply."""
    cdef uint32_t n = <uint32_t>len(REPLY_PREFIX)
    return (body.format == FORMAT_AMQP091 and body.topic_length > n and body.topic[0] == 0
            and memcmp(body.topic + 1, <const char*>REPLY_PREFIX, n) == 0)


@cython.final
cdef class FrameWait:
    """Value. See peer/inbox.pxd."""

    def __call__(self):
        if self.inbox != NULL:
            (<PeerInbox>self.inbox).decide(self.sequence)

    def refused(self, str why not None):
        if self.inbox != NULL and not (<PeerInbox>self.inbox).refuse_frame(self.sequence, why) \
                and (<PeerInbox>self.inbox).handler is not None:
            (<PeerInbox>self.inbox).handler.on_refused(self.sequence, why)


@cython.no_gc_clear         # deallocation needs `waits`
@cython.final
cdef class PeerInbox:
    """Machine. The receiving end of the stream from one life of a node to this life of this node.

    node: the sender's name. epoch: the sender's. to_epoch: this node's. handler: see above. slot: 1 to 255, which tells
    the senders of this node apart. The position of an earlier
    life of this node is in Hub.positions.
    """

    def __cinit__(self, Hub hub not None, str node not None, uint64_t epoch, uint64_t to_epoch, handler not None,
                  uint8_t slot=1):
        self.hub = hub
        self.slot = slot
        self.node = node
        self.name = node.encode()
        self.epoch = epoch
        self.to_epoch = to_epoch
        self.handler = handler
        self.names = []
        self.waits = {}
        self.awaited_frames = set()
        self.positions = {}
        self.forwarded = {}
        self.undone = set()
        self.plain = set()
        self.lined = {}
        self.barriers = []
        self.channels = {}
        self.used = []
        self.settled = []
        self.strangers = {}
        self.strange = set()
        self.fresh = True
        known = hub.positions.get(node)
        if known is not None and known[0] == epoch:
            self.position = self.committed = known[1]

    def __dealloc__(self):
        cdef FrameWait wait
        self.forget_route()
        for wait in (self.waits or {}).values():
            wait.inbox = NULL

    cdef int forget_route(self) noexcept:
        if self.route != NULL:
            route_drop(self.route)
            self.route = NULL
        return 0

    def close(self):
        """The sender, or this node, has a new epoch: calls nothing any more."""
        self.handler = None
        self.channels.clear()
        self.used.clear()

    def apply(self, bytes frame not None) -> int:
        """Applies one frame, as it arrived, unless that was done before. Returns the number up to which the sender has
        committed what this node sent (PeerOutbox.acknowledged); on_applied may be called before it returns.

        Raises ProtocolError for bytes that are no frame, or not the next one of this stream: close the connection; what
        of the frame was not applied is applied when it comes again. Any other exception (StorageError, MemoryError, of
        the handler) left its record and those behind it unapplied.
        """
        cdef frame_t header
        cdef Cursor records
        cdef Commits commits = self.hub.commits
        open_frame(<const uint8_t*><const char*>frame, <size_t>len(frame), &header, &records)
        self.check_header(&header)
        if header.flags & FRAME_BEGIN:
            self.check(&header, records)
            if header.sequence > self.position:
                self.position = self.committed = header.sequence
            self.awaited = True         # the last acknowledgement may have been lost
            self.handler.on_applied(self.committed)
            self.awaited = False
            return header.acknowledged
        if header.sequence == 0:
            return header.acknowledged
        if header.sequence <= self.position:
            self.repeated += 1
            return header.acknowledged
        self.fresh = False
        self.check(&header, records)
        self.number = 0                 # namespaces may have ended since the last frame, and queues
        self.queue = None
        self.member = None
        self.since = commits.mark
        if self.done == 0:
            self.delicate = False
            self.written = commits.mark - commits.tickets
        try:
            self.apply_records(&header, records)
            for group in self.settled:
                (<Group>group).write_records()      # else its acknowledgement would not wait for them
        except BaseException:
            if self.tried is None:
                self.tried = Tickets(commits)
            self.tried.add(self.since)
            raise
        finally:
            self.note_lines()
            self.hub.touch()
        self.settled.clear()
        self.applied(&header, <uint64_t>len(frame))
        return header.acknowledged

    cdef int applied(self, const frame_t* header, uint64_t size) except -1:
        """All of a frame was applied: it waits for what it has caused."""
        cdef Commits commits = self.hub.commits
        cdef FrameWait wait
        self.position = header.sequence
        self.asked = 0
        if self.upto:
            self.positions[header.sequence] = self.upto
            self.upto = 0
        self.done = 0
        self.frames += 1
        self.records += header.records
        self.bytes += size
        if header.flags & FRAME_AWAITED:
            self.awaited_frames.add(header.sequence)
        if commits.mark - commits.tickets != self.written and self.hub.ledger.active():
            self.note_position()
            self.delicate = False
        wait = FrameWait.__new__(FrameWait)
        wait.inbox = <void*>self
        wait.sequence = header.sequence
        self.waits[header.sequence] = wait
        if self.used or self.tried is not None:
            self.wait_for(wait)
        elif commits.hold_call((wait, wait.refused), self.since) == 0:
            self.decide(header.sequence)
        if self.plain:
            self.plain.clear()
        if self.strange:
            self.strange.clear()
        if self.delicate and self.hub.ledger.active():
            self.note_position()        # the acknowledgement does not wait for it
        return 0

    # ---------------------------------------------------------------- checks

    cdef int check_header(self, const frame_t* frame) except -1:
        if self.handler is None:
            raise ProtocolError(WRONG, f"the stream from {self.node} is closed")
        if frame.epoch != self.epoch or frame.to_epoch != self.to_epoch:
            raise ProtocolError(WRONG, f"a frame of {self.node} in its life {frame.epoch} to this node in its life "
                                       f"{frame.to_epoch}; they are in {self.epoch} and {self.to_epoch}")
        if frame.flags & FRAME_BEGIN:
            # What a former life of this node acknowledged without recording it is not sent again.
            if frame.sequence > self.position and not self.fresh:
                raise ProtocolError(WRONG, f"{self.node} continues behind frame {frame.sequence}, the last one here is "
                                           f"{self.position}")
        elif frame.sequence > self.position + 1:
            raise ProtocolError(WRONG, f"frame {frame.sequence} of {self.node} behind {self.position}")
        return 0

    cdef int check(self, const frame_t* frame, Cursor records) except -1:
        """Checks every record, so that a malformed frame has no effect, and learns the namespaces."""
        cdef peer_record_t record
        cdef checks_t checks
        cdef uint32_t found = 0
        memset(&checks, 0, sizeof(checks))
        while next_record(&records, &record, &checks):
            found += 1
            if record.kind == PEER_NAMESPACE:
                self.define(&record)
            elif frame.flags & FRAME_BEGIN:
                raise ProtocolError(WRONG, f"a record of kind {record.kind} in the first frame of a connection")
            elif (record.kind <= PEER_INTEREST or record.kind == PEER_DIRECTED
                  or record.kind == PEER_RETAINED) and not (
                    0 < record.namespace <= <uint32_t>len(self.names)):
                raise ProtocolError(WRONG, f"namespace {record.namespace} was not defined")
        if found != frame.records:
            raise ProtocolError(WRONG, f"a frame of {frame.records} records has {found}")
        return 0

    cdef int define(self, const peer_record_t* record) except -1:
        cdef uint32_t known = <uint32_t>len(self.names)
        cdef bytes name = taken(&record.name)
        if 0 < record.namespace <= known:
            if self.names[record.namespace - 1] != name:
                raise ProtocolError(WRONG, f"namespace {record.namespace} has two names")
            return 0
        if record.namespace != known + 1 or known == NAMES_MAX:
            raise ProtocolError(WRONG, f"namespace {record.namespace} was defined behind {known}")
        self.names.append(name)
        return 0

    # ---------------------------------------------------------------- records

    cdef int apply_records(self, const frame_t* frame, Cursor records) except -1:
        """Continues behind those records that were applied before one of them raised an exception."""
        cdef peer_record_t record
        cdef uint32_t at = 0
        while next_record(&records, &record, NULL):
            if at == self.done:
                if record.kind == PEER_RETAINED or record.kind == PEER_MESSAGE and record.version:
                    self.publish_retained(frame, &record)
                elif record.kind == PEER_MESSAGE or record.kind == PEER_DIRECTED:
                    self.publish(frame, &record)
                elif record.kind >= PEER_PUBLISH:
                    self.apply_of_queue(frame, &record)
                else:
                    self.apply_record(frame, &record)
                self.done += 1
            at += 1
        return 0

    cdef int apply_record(self, const frame_t* frame, const peer_record_t* record) except -1:
        if record.kind == PEER_NAMESPACE:
            return 0
        if record.kind == PEER_RELEASE:
            self.hub.origins.end(record.origin, record.packet_id, record.use)
            return 0
        self.number = 0                 # the handler may change namespaces
        if self.handler is None:
            return 0
        if record.kind == PEER_INTEREST:
            self.handler.on_interest(self.names[record.namespace - 1], taken(&record.filter), taken(&record.name),
                                     record.count, record.flags & PEER_DURABLE != 0)
        elif record.kind == PEER_INTEREST_END:
            self.handler.on_interest_end()
        elif record.kind == PEER_CONTROL:
            self.handler.on_control(taken(&record.payload))
        elif record.kind == PEER_GROUP_MESSAGE:
            self.publish_to_group(frame, record)
        return 0

    # ---------------------------------------------------------------- queues

    cdef int apply_of_queue(self, const frame_t* frame, const peer_record_t* record) except -1:
        cdef PeerMember member
        cdef Queue queue
        if record.kind == PEER_PUBLISH:
            return self.publish_to_queue(frame, record)
        if record.kind == PEER_DELIVERY:
            return self.arrive(frame, record)
        if record.kind == PEER_SETTLE:
            return self.settle(record)
        if record.kind == PEER_BARRIER:
            self.ask(record)
            return 0
        self.queue = None               # the handler may delete it
        self.member = None
        if self.handler is None or self.outbox is None:
            return 0
        if record.kind == PEER_CREDIT:
            member = self.outbox.hosted.get(record.member)
            if member is not None:
                member.limit = record.count
                member.queue.touch()
                if member.channel:      # a barrier behind it is behind what was given before
                    self.note_line(member.queue.line, 0, member.channel)
        elif record.kind == PEER_WITHDRAW:
            if record.member in self.outbox.members:
                (<RelayMember>self.outbox.members[record.member]).withdrawn(record.log, record.offset)
        elif record.kind == PEER_COMMITTED:
            self.outbox.queues_committed(record.channel, record.position)
        elif record.kind == PEER_REFUSED:
            self.outbox.queues_refused(record.channel, record.position, record.deliveries,
                                       taken(&record.payload).decode(), record.flags & PEER_UNDONE != 0)
        elif record.kind == PEER_ATTACH:
            self.handler.on_attach(record.member, record.queue, taken(&record.payload))
            member = self.outbox.hosted.get(record.member)
            if member is None:
                self.strangers[record.member] = record.channel
            elif record.channel:
                member.channel = record.channel
                self.note_line(member.queue.line, 0, record.channel)
        elif record.kind == PEER_DETACH:
            self.strangers.pop(record.member, None)
            self.handler.on_detach(record.member, record.flags & PEER_RESTS != 0)
        elif record.kind == PEER_CALL:
            queue = self.hub.owned.get(record.queue)
            self.handler.on_call(record.member, record.queue, taken(&record.payload))
            if queue is not None and queue.relay is None and (self.barriers or record.channel):
                self.settled += [group for group in queue.groups if group not in self.settled]
                self.note_line(queue.line, 0, record.channel)
        else:
            self.handler.on_result(record.member, taken(&record.payload))
        return 0

    cdef int publish_to_queue(self, const frame_t* frame, const peer_record_t* record) except -1:
        cdef body_t body
        cdef origin_t origin
        cdef Use known = None
        cdef Commits commits = self.hub.commits
        cdef uint64_t written = commits.mark - commits.tickets
        cdef uint32_t mark = queue_mark(record.queue)
        cdef int reason
        if record.position:
            self.ask(record)
        if self.queue is None or self.queue.identity != record.queue:
            self.queue = self.hub.owned.get(record.queue)
        memset(&body, 0, sizeof(body))
        body.topic = record.topic.at
        body.topic_length = record.topic.length
        body.properties = record.properties.at
        body.properties_length = record.properties.length
        body.payload = record.payload.at
        body.payload_length = record.payload.length
        body.format = record.format
        if self.queue is None:
            return self.miss(&body, record)
        if record.left_ms >= 0:
            body.expires_at = self.expiry_of(frame, record)
            if body.expires_at < 0:
                return 0
        self.hub.node.work += WORK_HOP
        if record.origin:
            origin = origin_t(name=record.origin, use=record.use, packet_id=record.packet_id, spread=False,
                              doubtful=record.flags & PEER_REPEATED != 0)
        if self.queue.relay is not None:
            return self.forward(&body, record, &origin if record.origin else NULL)
        if record.origin:
            known = self.hub.origins.find(&origin)
            if known is not None and known.has_queue(mark):
                known.again = True
                self.hub.ledger.wait_for_earlier(self.queue.line)
                self.note_line(self.queue.line, record.position, record.channel)
                return 0
            if self.hub.origins.is_late(&origin):
                return 0
        if record.flags & PEER_FORCED:
            # The source keeps a letter, and tries again, until it hears what has become of the queue.
            reason = (REASON_SERVER_UNAVAILABLE if self.queue.ending
                      else self.queue.put_forced(&body, record.flags & PEER_QOS))
        else:
            reason = self.queue.put(&body, record.flags & PEER_QOS, NULL)
        if reason:
            if record.position and not record.flags & PEER_QUIET and self.outbox is not None:
                self.outbox.take_refusal(record.channel, record.position, <uint16_t>reason, b"")
            else:
                self.queue.refused(&self.queue.counts.capture_lost)
            return 0
        if self.queue.limits.at_once and not self.queue.pumping:
            # Now: by the end of the turn the clock may have moved, and the message would have expired.
            self.queue.pump()
            self.queue.touch()
        self.note_line(self.queue.line, record.position, record.channel)
        if record.origin:
            self.queue.note_origin(&origin)
            self.hub.origins.note_group(&origin, mark,
                                        commits.mark - commits.tickets != written and self.hub.ledger.active())
        return 0

    cdef int miss(self, const body_t* body, const peer_record_t* record) except -1:
        """A message for a queue that is not here. One that has ended is no refusal, as if the publish had found no
        route, unless the message is for nobody else. Of a requester that has gone the publisher's node is told that,
        since its message may be mandatory."""
        if record.position == 0 or record.flags & PEER_QUIET or self.outbox is None:
            return 0
        if is_direct_reply(body):
            return self.outbox.take_refusal(record.channel, record.position, REASON_NO_MATCHING_SUBSCRIBERS,
                                            b"the requester has gone")
        if not record.flags & PEER_FORCED and not is_for_one_queue(body) and self.hub.has_ended(record.queue):
            return 0
        return self.outbox.take_refusal(record.channel, record.position, REASON_SERVER_UNAVAILABLE,
                                        b"the queue is not at this node any more")

    cdef int forward(self, body_t* body, const peer_record_t* record, origin_t* origin) except -1:
        """The queue has moved, or is about to, and the sender does not know yet: the new owner gets the message."""
        cdef pub_t pub
        cdef once_t once = once_of(origin)
        cdef uint64_t since = self.hub.commits.mark
        cdef list positions
        cdef int reason
        memset(&pub, 0, sizeof(pub))
        pub.once = &once
        if record.flags & PEER_FORCED:
            reason = self.queue.relay.publish(body, record.flags & PEER_QOS, RELAY_FORCED, &pub)
        else:
            reason = self.queue.relay.publish(
                body, record.flags & PEER_QOS,
                RELAY_TAKEN if record.position == 0 or record.flags & PEER_QUIET else RELAY_AWAITED, &pub)
        # The frame, or what it has for the channel, is committed when the new owner has it, also if nobody waits: what
        # the sender sends to the new owner itself must not overtake it (QueueRelay.fence).
        if reason == 0:
            self.note_sent(since, record.position, record.channel, ASKED_PUBLISHES)
            if record.channel == 0:
                positions = self.forwarded.setdefault(self.position + 1, [])
                if record.position:
                    positions.append(record.position)
        elif record.position and not record.flags & PEER_QUIET and self.outbox is not None:
            self.outbox.take_refusal(record.channel, record.position, <uint16_t>reason, b"")
        return 0

    cdef Asked channel(self, uint16_t number):
        """The next frame has something for a channel, not 0."""
        cdef Asked found = self.channels.get(number)
        if found is None:
            found = self.channels[number] = Asked(number, self.outbox)
        if not found.used:
            found.used = True
            self.used.append(found)
        return found

    cdef int ask(self, const peer_record_t* record) except -1:
        """The next frame has a position."""
        cdef Asked channel
        cdef bint awaited = record.kind == PEER_BARRIER and record.flags & PEER_AWAITED
        self.asked = with_channel(record.channel, record.position)
        if awaited and self.strange and record.channel in self.strange:
            self.strange.discard(record.channel)
            if self.outbox is not None:
                self.outbox.take_refusal(record.channel, record.position, REASON_UNSPECIFIED_ERROR, NOT_ATTACHED)
            awaited = False
        if record.channel == 0:
            self.upto = record.position
            if awaited:
                self.barriers.append(record.position)
        elif self.outbox is not None:
            channel = self.channel(record.channel)
            channel.upto = record.position
            if awaited:
                channel.barriers.append(record.position)
        return 0

    cdef int note_line(self, Line line, uint64_t position, uint16_t channel) except -1:
        """The next frame has something for a queue of this line, which may be led by another node before it has
        committed that. position: for which a publisher may wait; 0: it is no publish."""
        cdef list lines
        cdef tuple last
        if channel:
            return self.channel(channel).note(line, position) if self.outbox is not None else 0
        if line.number == 0:
            return 0
        lines = self.lined.setdefault(self.position + 1, [])
        last = lines[len(lines) - 1] if lines else None
        if last is None or last[0] is not line or last[1] != line.gathering():
            last = (line, line.gathering(), [])
            lines.append(last)
        if position:
            last[2].append(position)
        return 0

    cdef int note_sent(self, uint64_t since, uint64_t position, uint16_t channel, asked_kind kind) except -1:
        """What was given since this mark is for the queue's new owner, so the next frame has that for the channel."""
        cdef Commits commits = self.hub.commits
        cdef uint32_t i = commits.given_count
        cdef Line line
        while i > 0 and commits.given[i - 1].mark > since:
            i -= 1
            line = commits.lines[commits.given[i].line]
            if channel and self.outbox is not None:
                self.channel(channel).note_sent(line, commits.given[i].position, position, kind)
            else:
                self.plain.add(line)
        return 0

    cdef int note_lines(self) except -1:
        """The same of what the next frame has recorded in such lines besides: consumers that came or went, and what
        they got."""
        cdef Commits commits = self.hub.commits
        cdef uint32_t i = commits.given_count
        cdef uint32_t last = 0
        cdef set others = self.lines_of_channels()
        cdef Line line
        while i > 0 and commits.given[i - 1].mark > self.since:
            i -= 1
            if commits.given[i].line != last:
                last = commits.given[i].line
                line = commits.lines[last]
                # Lines between nodes have no records, and no clock.
                if (line.gather_length or line.timed) and line not in others:
                    self.note_line(line, 0, 0)
        if self.barriers:
            for lines in self.lined.values():       # what is not decided of channel 0
                for _, _, positions in lines:
                    positions += self.barriers
            for sequence in self.undone:
                self.forwarded[sequence] += self.barriers
            self.barriers = []
        return 0

    cdef set lines_of_channels(self):
        """Those for which other channels wait, and the next frame does not."""
        cdef set found
        cdef Asked channel
        if not self.used:
            return NO_LINES
        found = set()
        for channel in self.used:
            found.update([line for line, _, _, _ in channel.lines if (<Line>line).number])
        if found:
            found.difference_update([line for line, _, _ in self.lined.get(self.position + 1, ())])
        return found

    cdef set sent_by_channels(self):
        """What they have sent on to other nodes: (line, position in it)."""
        cdef Asked channel
        cdef set found = None
        for channel in self.used:
            if channel.sent:
                found = found or set()
                found.update([(line, at) for line, at, _, _ in channel.sent])
        return found

    cdef bint has_more(self, Line line, set sent):
        """Whether the frame has given a line something that no channel waits for."""
        cdef Commits commits = self.hub.commits
        cdef uint32_t i = commits.given_count
        if line in self.plain or line.number == 0:
            return True
        while i > 0 and commits.given[i - 1].mark > self.since:
            i -= 1
            if commits.given[i].line == line.number and (line, commits.given[i].position) not in sent:
                return True
        return False

    cdef int wait_for(self, FrameWait wait) except -1:
        """The frame was applied: it waits for its part of the journal, and channels for theirs."""
        cdef str why
        cdef Commits commits = self.hub.commits
        cdef Asked channel
        cdef Line line
        cdef set others = self.lines_of_channels()
        cdef set sent = self.sent_by_channels()
        cdef uint32_t i, kept = 0
        for channel in self.used:
            channel.close_frame(commits)
        self.used.clear()
        commits.collect(self.since)
        for i in range(commits.needed_count):
            line = commits.lines[commits.needed[i].line]
            if line not in others and (not sent or self.has_more(line, sent)):
                commits.needed[kept] = commits.needed[i]
                kept += 1
        commits.needed_count = kept
        if self.tried is not None:
            why = self.tried.why
            self.need_tried(others)
            self.tried = None
            if why is not None:
                wait.refused(why)
                return 0
        if commits.needed_count:
            return commits.queue_call((wait, wait.refused))
        return self.decide(wait.sequence)

    cdef int need_tried(self, set others) except -1:
        """The frame also waits for what its records caused in the turns in which one of them raised."""
        cdef Commits commits = self.hub.commits
        cdef uint32_t i, first = commits.needed_count, kept = commits.needed_count
        self.tried.need()
        for i in range(first, commits.needed_count):
            if commits.lines[commits.needed[i].line] not in others:
                commits.needed[kept] = commits.needed[i]
                kept += 1
        commits.needed_count = kept
        return 0

    cdef bint refuse_frame(self, uint64_t sequence, str why) except -1:
        """What a frame has caused at another node, or in a line that another node leads by now, is not certain, or not
        so: its publishers hear that. Returns whether there was such a thing."""
        cdef list forwarded = self.forwarded.pop(sequence, None)
        self.undone.discard(sequence)
        if forwarded is None and sequence not in self.lined:
            return 0
        if forwarded is not None:
            self.refuse_all(forwarded, why)
        self.decide(sequence)
        return 1

    cdef int refuse_all(self, list positions, str why) except -1:
        for position in positions:
            if self.outbox is not None and self.outbox.takes_queues():
                self.outbox.take_refusal(0, position, REASON_UNSPECIFIED_ERROR, why.encode())
        return 0

    cdef int settle(self, const peer_record_t* record) except -1:
        cdef PeerMember member = None
        if self.outbox is not None:
            member = self.outbox.hosted.get(record.member)
        if member is not None and member.late is not None:
            return self.settle_late(member, record)
        if member is None and record.member in self.strangers:
            self.strange.add(self.strangers[record.member])     # its node keeps that meanwhile (RelayMember.early)
            return 0
        if member is None or member.group is None:
            return 0                        # it has left, and so have its claims
        self.note_line(member.queue.line, 0, member.channel)
        if member.group not in self.settled:
            self.settled.append(member.group)
        self.hub.node.work += record.count
        return member.settle(record.flags & PEER_VERB, record.deliveries, record.log, record.offset, record.count,
                             record.ms, record.flags & PEER_COUNTS != 0,
                             None if record.payload.length == 0 else taken(&record.payload).decode())

    cdef int settle_late(self, PeerMember member, const peer_record_t* record) except -1:
        """The queue has moved, and the sender did not know yet. As in forward(): while this node alone has it, the
        sender keeps it, for this node may die."""
        cdef uint64_t since = self.hub.commits.mark
        if member.channel == 0:
            self.forwarded.setdefault(self.position + 1, [])
            self.undone.add(self.position + 1)
        member.late(member, record.flags & PEER_VERB, record.deliveries, record.log, record.offset, record.count,
                    record.ms, record.flags & PEER_COUNTS != 0, taken(&record.payload).decode())
        if member.queue.relay is None:          # it is here again
            self.settled += [group for group in member.queue.groups if group not in self.settled]
            return self.note_line(member.queue.line, 0, member.channel)
        return self.note_sent(since, 0, member.channel, ASKED_MORE)

    cdef int arrive(self, const frame_t* frame, const peer_record_t* record) except -1:
        """A message for a consumer of this node."""
        cdef int64_t expires_at = 0
        if self.outbox is None:
            return 0
        if self.member is None or self.member.number != record.member:
            self.member = self.outbox.members.get(record.member)
            if self.member is None:         # it has left, or belongs to a relay that was told another owner
                if self.outbox.takes_queues():
                    self.outbox.take_detach(record.member, False)
                return 0
        if record.left_ms:
            expires_at = max(self.hub.node.steady_ms + record.left_ms - <int64_t>frame.age_s * 1000, <int64_t>1)
        self.hub.node.work += WORK_HOP
        return self.member.arrive(record.log, record.offset, record.deliveries,
                                  chunk_of_message(record.payload.at, record.payload.length, expires_at))

    # ---------------------------------------------------------------- messages

    cdef int64_t expiry_of(self, const frame_t* frame, const peer_record_t* record) noexcept:
        """The steady time when the message expires; 0: never; -1: it has expired on the way."""
        cdef int64_t left = record.left_ms - <int64_t>frame.age_s * 1000
        if record.left_ms < 0:
            return 0
        if left < 0:
            self.hub.node.counters.dropped_expired += 1
            return -1
        return max(self.hub.node.steady_ms + left, <int64_t>1)

    cdef int publish_to_group(self, const frame_t* frame, const peer_record_t* record) except -1:
        cdef pub_t pub
        cdef origin_t origin
        cdef Commits commits = self.hub.commits
        cdef uint64_t written = commits.mark - commits.tickets
        cdef ShareGroup group = None
        cdef bytes name = taken(&record.name)
        cdef bytes filter = taken(&record.filter)
        cdef bint due = self.begin(&pub, frame, record)
        if self.topics is not None:
            group = self.hub.groups.get((self.topics.namespace, name, filter))
        self.number = 0                 # it is looked up for each of these; the handler may change namespaces
        if due and pub.qos == 2:
            self.delicate = True
        if due and group is not None and len(group.sessions):
            self.hub.publish_to_group(&pub, group, True)
        elif due:
            self.handler.on_group_message(
                self.names[record.namespace - 1], name, filter, taken(&record.topic), taken(&record.payload),
                taken(&record.properties), pub.qos, pub.retain != 0, pub.body.expires_at)
        if due and record.origin:
            origin = origin_t(name=record.origin, use=record.use, packet_id=record.packet_id, spread=False,
                              doubtful=False)
            self.hub.origins.note_group(&origin, group_mark(name, filter) if group is None else group.mark,
                                        commits.mark - commits.tickets != written and self.hub.ledger.active())
        return 0

    cdef int publish_retained(self, const frame_t* frame, const peer_record_t* record) except -1:
        """A change of a retained message: those who have subscribed here get it as any message, and whoever subscribes
        from now on finds it, or what is newer."""
        cdef pub_t pub
        cdef route_t* route
        cdef bint absent = record.flags & PEER_ABSENT != 0
        cdef bint due = self.begin(&pub, frame, record)
        if self.topics is None:
            self.topics = <Topics>topics_of(self.hub.namespaces.add(self.names[record.namespace - 1]))
            pub.topics = <void*>self.topics
        if due and not absent and not record.flags & PEER_STATE:
            route = self.route_of(&pub)
            if route.count:
                self.publish_here(&pub, route, record)
        if pub.body.expires_at < 0:                 # it has expired on the way, which clears the topic
            pub.body.payload_length = pub.body.expires_at = 0
            absent = False
        self.hub.node.work += WORK_RETAIN
        if self.hub.retained.take(&pub, record.version, record.life, absent,
                                  record.count if absent else record.payload.length) \
                and due and absent and not record.flags & PEER_STATE:
            route = self.route_of(&pub)
            if route.count:
                self.hub.replay_topic(route)
        return 0

    cdef int publish(self, const frame_t* frame, const peer_record_t* record) except -1:
        cdef pub_t pub
        if not self.begin(&pub, frame, record) or self.topics is None:
            return 0
        return self.publish_here(&pub, self.route_of(&pub), record)

    cdef route_t* route_of(self, const pub_t* pub) except NULL:
        cdef route_t* route = self.route
        if (route == NULL or self.route_topics is not self.topics or route.topic_length != pub.body.topic_length
                or memcmp(route.topic, pub.body.topic, route.topic_length) != 0
                or route.generation != self.topics.trie.generation):
            self.hub.node.work += WORK_ROUTE
            route = self.topics.routes.find(pub.body.topic, pub.body.topic_length)
            if route != self.route:
                route.refs += 1
                self.forget_route()
                self.route = route
                self.route_topics = self.topics
        else:
            self.topics.routes.hits += 1
        return route

    cdef int publish_here(self, pub_t* pub, route_t* route, const peer_record_t* record) except -1:
        cdef origin_t origin
        origin = origin_t(name=record.origin, use=record.use, packet_id=record.packet_id, spread=False, doubtful=False)
        if record.kind == PEER_DIRECTED:
            self.hub.publish_to_life(pub, route, record.life,
                                     self.hub.origins.find(&origin) if record.origin else None,
                                     &origin if record.origin else NULL)
        elif record.origin:
            self.hub.publish_once(pub, route, &origin)
        else:
            self.hub.publish(pub, route)
        return 0

    cdef bint begin(self, pub_t* pub, const frame_t* frame, const peer_record_t* record) except -1:
        """Fills pub from a message. 0: it has expired on the way, or it may have come to a former life with QoS 0."""
        cdef uint8_t qos = record.flags & PEER_QOS
        if record.namespace != self.number:
            self.find_topics(record.namespace)
        pub.body.topic = record.topic.at
        pub.body.topic_length = record.topic.length
        pub.body.properties = record.properties.at
        pub.body.properties_length = record.properties.length
        pub.body.payload = record.payload.at
        pub.body.payload_length = record.payload.length
        pub.body.blob = NULL
        pub.body.format = FORMAT_MQTT
        pub.body.expires_at = 0
        if record.left_ms >= 0:
            pub.body.expires_at = self.expiry_of(frame, record)
        pub.source = NULL
        pub.topics = <void*>self.topics
        pub.owned = NULL
        pub.amqp = NULL
        pub.once = NULL
        pub.passing = 0
        pub.qos = qos
        pub.retain = record.flags & PEER_RETAIN != 0
        pub.refused = 0
        pub.from_peer = self.slot
        return pub.body.expires_at >= 0 and not (qos == 0 and frame.flags & FRAME_AGAIN)

    cdef int find_topics(self, uint32_t number) except -1:
        """Looks a namespace up. If this node does not have it, nobody here has subscribed in it."""
        cdef Namespace namespace = self.hub.namespaces.get(self.names[number - 1])
        self.number = number
        self.topics = None if namespace is None else <Topics>topics_of(namespace)
        return 0

    # ---------------------------------------------------------------- commits

    cdef int note_position(self) except -1:
        """Records the position in the batch of the journal that has what the frame caused."""
        cdef uint32_t length = 16 + <uint32_t>len(self.name)
        cdef uint8_t* at = self.hub.ledger.reserve(self.hub.commits.local, RECORD_PEER_POSITION, length)
        at = put_u64(put_u64(at, self.epoch), self.position)
        memcpy(at, <const char*>self.name, len(self.name))
        self.hub.ledger.recorded(self.hub.commits.local)
        self.hub.positions[self.node] = (self.epoch, self.position)
        return 0

    cdef int decide(self, uint64_t sequence) except -1:
        """What a frame caused is decided. Frames are reported in order, although lines commit in any."""
        cdef uint64_t asked = 0
        cdef uint16_t code = 0
        cdef str why
        del self.waits[sequence]
        if self.forwarded:
            self.forwarded.pop(sequence, None)
            self.undone.discard(sequence)
        for line, at, positions in self.lined.pop(sequence, ()):
            why = (<Line>line).refusal(at, 0, &code)
            if why is not None:
                self.refuse_all(positions, why)
        if sequence != self.committed + 1:
            return 0
        while self.committed < self.position and self.committed + 1 not in self.waits:
            self.committed += 1
            if self.positions:
                asked = self.positions.pop(self.committed, asked)
            if self.awaited_frames and self.committed in self.awaited_frames:
                self.awaited_frames.discard(self.committed)
                self.awaited = True
        if asked and self.outbox is not None and self.outbox.takes_queues():
            self.outbox.take_committed(0, asked)
        if self.handler is not None:
            self.handler.on_applied(self.committed)
        self.awaited = False
        return 0
