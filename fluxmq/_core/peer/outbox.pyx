# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. The sending end of a stream to another node. See peer/outbox.pxd."""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stddef cimport size_t
from libc.stdint cimport uint16_t
from libc.string cimport memset

from fluxmq._core.errors import UsageError
from fluxmq._core.memory.message cimport FORMAT_MQTT, body_borrow, once_of, once_t, origin_of
from fluxmq._core.peer.frames cimport (
    LIFE_BYTES, ORIGIN_BYTES, PEER_ABSENT, PEER_CONTROL, PEER_DIRECTED, PEER_DURABLE, PEER_GROUP_MESSAGE,
    PEER_INTEREST_END, PEER_MESSAGE, PEER_QOS, PEER_RETAIN, PEER_STATE, RELEASE_BYTES, SIZE_BYTES, VERSION_BYTES,
    control_bytes, frame_t, group_bytes, interest_bytes, message_bytes, next_record, open_frame, peer_record_t,
    put_control, put_directed, put_group_message, put_interest, put_message, put_release, put_retained, taken,
)
from fluxmq._core.peer.stream cimport SEAL_BYTES, STREAM_ABANDONED, STREAM_PARKED, kept_t
from fluxmq._core.pubsub.retained cimport Retained
from fluxmq._core.pubsub.routes cimport route_t
from fluxmq._core.pubsub.topics cimport topics_of
from fluxmq._core.wire.primitives cimport Cursor
from fluxmq._core.wire.sizes cimport fit_u16

__all__ = ["PeerOutbox"]


@cython.final
cdef class PeerOutbox(QueueStream):
    """Machine. The sending end of the stream to a node, in this life of this node.

    node: the other node's name. epoch: this node's. window_bytes: see peer/stream.pxd.
    """

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
        if pub.qos == 0 and self.state == STREAM_PARKED:
            return 0
        if pub.qos == 0 and (full or self.state == STREAM_ABANDONED):
            self.dropped += 1
            self.hub.node.counters.dropped_peer_full += 1
            return 0
        if self.state == STREAM_ABANDONED:
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
        if pub.qos == 0 and (full or self.state == STREAM_ABANDONED):
            self.dropped += 1               # it gets it from the store
            return 0
        if self.state == STREAM_ABANDONED:
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
        if self.state == STREAM_ABANDONED:
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
        if self.state != STREAM_ABANDONED:
            at = self.room(RELEASE_BYTES)
            self.ticket(self.line)
            self.put(put_release(at, name, packet_id, use), 1)
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

    # ---------------------------------------------------------------- a node that has died

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
        if self.state == STREAM_ABANDONED:
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
