# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. See hub/retained_store.pxd."""
cimport cython
from libc.string cimport memset

from fluxmq._core.errors import UsageError
from fluxmq._core.memory.message cimport (
    BLOB_BYTES_MIN, FORMAT_MQTT, blob_copy, blob_drop, body_borrow, body_bytes, body_t, msg_drop, msg_new, msg_t,
)
from fluxmq._core.wire.text cimport TEXT_OK, is_reserved_topic, topic_valid

__all__ = ["RetainedStore"]

cdef enum:
    CLOCK_SHIFT = 16                        # of the wall clock's ms in a version
    SPREAD_PROPERTIES_MAX = 65536           # bytes of properties, of a message that goes to every node


@cython.final
cdef class RetainedStore:
    """Machine. ledger: the node's."""

    def __cinit__(self, Ledger ledger not None):
        self.ledger = ledger
        self.count_max = 100000
        self.bytes_max = 1 << 30
        self.learned = {}
        self.lapsed = set()
        self.cleared = {}
        self.spread_bytes_max = 1024

    cdef bint admit(self, pub_t* pub, uint64_t* version) except -1:
        cdef Retained former
        version[0] = 0
        if self.changed is None or of_broker(pub):
            return 1                        # nobody else must know; retain() looks at the limits
        former = (<Topics>pub.topics).retained.get((<const char*>pub.body.topic)[:pub.body.topic_length])
        if pub.body.payload_length == 0:
            if former is None:
                return 0                    # what was acknowledged before is here, too: there is nothing to clear
            if former.volatile:
                return 1
        elif self.lacks_room(&pub.body, former) or self.namespace_is_full(pub):
            self.refused += 1
            return 0
        self.clock = max(self.clock, <uint64_t>self.ledger.node.now_ms << CLOCK_SHIFT) + 1
        version[0] = self.clock
        return 1

    cdef int retain(self, pub_t* pub, uint64_t version) except -1:
        """Stores, replaces or clears the retained message of a topic, [MQTT-3.3.1-5] [MQTT-3.3.1-6]. version: 0, or the
        one that admit() gave it, which the other nodes get, too."""
        cdef bytes topic = (<const char*>pub.body.topic)[:pub.body.topic_length]
        cdef bint volatile = of_broker(pub)
        cdef Topics topics = <Topics>pub.topics
        cdef Retained former
        cdef Retained kept = None
        if pub.body.payload_length == 0:
            former = topics.retained.pop(topic)
            if former is None and version == 0:
                return 0
        else:
            former = topics.retained.get(topic)
            if not volatile and version == 0 and (
                    self.lacks_room(&pub.body, former) or self.namespace_is_full(pub)):
                self.refused += 1
                return 0
            kept = Retained.__new__(Retained)
            kept.node = &self.ledger.node
            kept.volatile = volatile
            kept.msg = msg_new(&pub.body, pub.qos)
            topics.retained.set(topic, kept)
            self.change_counts(topics, kept, 1)
        if former is not None:
            self.change_counts(topics, former, -1)
            volatile = volatile or former.volatile and kept is None
        if not volatile and self.ledger.active():
            self.ledger.write_retained(&pub.body, pub.qos, topics.namespace, version, self.life)
            topics.retained_dirty.add(topic)
        if version:
            self.set_version(topics, topic, kept, version, self.life)
            self.note_change(topics, topic)
        return 0

    cdef int note_change(self, Topics topics, bytes topic) except -1:
        """A client has changed a value that other nodes must know."""
        cdef bint first = not self.changed
        cdef tuple key = (topics.namespace.name, topic)
        self.changed[key] = None
        self.learned.pop(key, None)
        if first and self.on_changed is not None:
            self.on_changed()
        return 0

    def version_of(self, Topics topics not None, bytes topic not None) -> tuple:
        """(version, life) of a topic's last change; (0, 0): none is known."""
        cdef Retained kept = topics.retained.get(topic)
        if kept is not None:
            return kept.version, kept.life
        return self.cleared.get((topics.namespace.name, topic), (0, 0))

    def set_version(self, Topics topics not None, bytes topic not None, Retained kept, uint64_t version, uint64_t life,
                    bint absent=False):
        """Notes the version of a topic's message, or (None) of its being cleared, in memory only. absent: there is a
        message, but nothing of it is here."""
        cdef tuple key = (topics.namespace.name, topic)
        self.clock = max(self.clock, version)
        self.cleared.pop(key, None)         # the newest is the last one
        if kept is not None:
            kept.version = version
            kept.life = life
        elif version and not absent:
            self.cleared[key] = version, life

    cdef bint is_spread_whole(self, const body_t* body) noexcept:
        return body.payload_length < self.spread_bytes_max and body.properties_length <= SPREAD_PROPERTIES_MAX

    cdef bint take(self, pub_t* pub, uint64_t version, uint64_t life, bint absent, uint32_t size) except -1:
        cdef Topics topics = <Topics>pub.topics
        cdef bytes topic = (<const char*>pub.body.topic)[:pub.body.topic_length]
        cdef Retained kept = None
        cdef tuple key
        self.clock = max(self.clock, version)
        if of_broker_topic(&pub.body) or (version, life) <= self.version_of(topics, topic):
            # The batch with what this node has may not be durable yet, and the acknowledgement says that it is.
            self.ledger.wait_for_earlier(self.ledger.commits.local)
            return 0
        if pub.body.payload_length or absent:
            kept = Retained.__new__(Retained)
            kept.msg = self.copy(&pub.body, pub.qos)
            kept.absent = absent
            kept.unstored = absent or not self.is_spread_whole(&pub.body)
            if topics.retained.fetch is None and self.fetcher is not None:
                topics.retained.fetch = self.fetcher(topics.namespace.name)
        self.store(topics, topic, kept, pub.qos, version, life)
        key = (topics.namespace.name, topic)
        if self.changed is not None:
            self.changed.pop(key, None)
            self.learned[key] = (pub.from_peer, size) if kept is not None and kept.unstored else None
        return 1

    def learn(self, Topics topics not None, bytes topic not None, bytes payload not None, int qos=0,
              bytes properties=b"", int64_t expires_at=0, bint absent=False, uint64_t version=0, uint64_t life=0):
        """From another node: stores, replaces or (empty payload) clears the message of a topic, and records it. It was
        accepted there, so no limit refuses it here. expires_at: steady clock, ms. absent: its payload is not here, and
        `payload` is empty. version, life: see above. Raises UsageError for an invalid topic or QoS, and for a topic of
        $SYS."""
        cdef Retained kept = None
        if (topic_valid(<const uint8_t*><const char*>topic, len(topic), 0) != TEXT_OK or not 0 <= qos <= 2
                or is_reserved_topic(<const uint8_t*><const char*>topic, len(topic))):
            raise UsageError(f"cannot retain {topic!r} with QoS {qos}")
        if payload or absent:
            kept = Retained.__new__(Retained)
            kept.msg = self.make(topic, payload, properties, expires_at, qos)
            kept.absent = kept.unstored = absent
        if kept is None and topics.retained.get(topic) is None:
            return
        self.store(topics, topic, kept, <uint8_t>qos, version, life)
        if kept is not None:
            (<RetainedNode>topics.retained.topics[topic]).stamp = 0     # nobody has it as a publish

    cdef int store(self, Topics topics, bytes topic, Retained kept, uint8_t qos, uint64_t version,
                   uint64_t life) except -1:
        cdef body_t body
        self.put(topics, topic, kept)
        self.set_version(topics, topic, kept, version, life)
        if self.ledger.active():
            memset(&body, 0, sizeof(body))
            body.topic = <const uint8_t*><const char*>topic
            body.topic_length = <uint32_t>len(topic)
            # What is not whole is not on disk: a former message is cleared there.
            self.ledger.write_retained(&body if kept is None or kept.unstored else &kept.msg.body, qos,
                                       topics.namespace, version, life, kept is not None and kept.unstored)
            topics.retained_dirty.add(topic)
        return 0

    cdef msg_t* make(self, bytes topic, bytes payload, bytes properties, int64_t expires_at, int qos) except NULL:
        cdef body_t body
        body_borrow(&body, topic, properties, payload, expires_at, FORMAT_MQTT)
        return self.copy(&body, <uint8_t>qos)

    cdef msg_t* copy(self, const body_t* borrowed, uint8_t qos) except NULL:
        cdef body_t body = borrowed[0]
        cdef msg_t* msg
        body.blob = NULL
        if body.payload_length >= BLOB_BYTES_MIN:
            body.blob = blob_copy(body.payload, body.payload_length)
            body.payload = body.blob.data
        try:
            msg = msg_new(&body, qos)
        finally:
            blob_drop(body.blob)
        return msg

    def fill(self, Retained kept not None, Topics topics not None, bytes payload not None, bytes properties not None):
        """Gives a message of the tree that was learned without it its payload. It stays what it was otherwise: a
        subscriber that waits for it gets it, and nothing is recorded."""
        self.change_counts(topics, kept, -1)
        former = kept.msg
        kept.msg = self.make(kept.topic, payload, properties, former.body.expires_at, former.qos)
        kept.absent = False
        msg_drop(former)
        self.change_counts(topics, kept, 1)

    def empty(self, Retained kept not None, Topics topics not None):
        """The reverse of `fill`."""
        self.fill(kept, topics, b"", b"")
        kept.absent = True

    def put(self, Topics topics not None, bytes topic not None, Retained kept):
        """At start, from disk: stores a message, or clears the topic (None). Nothing is recorded."""
        cdef Retained former = topics.retained.pop(topic)
        if former is not None:
            self.change_counts(topics, former, -1)
        if kept is not None:
            kept.node = &self.ledger.node
            topics.retained.set(topic, kept)
            self.change_counts(topics, kept, 1)

    cdef bint lacks_room(self, const body_t* body, Retained former) noexcept:
        """Whether the node's limits would be exceeded with this message in place of the former one (None: as new)."""
        cdef bint counted = former is not None and not former.volatile
        cdef uint64_t freed = body_bytes(&former.msg.body) if counted else 0
        return (not counted and self.count >= self.count_max
                or self.bytes + body_bytes(body) - freed > self.bytes_max)

    cdef bint namespace_is_full(self, pub_t* pub):
        """Whether the namespace's byte limit would be exceeded with this message in place of the former one."""
        cdef Topics topics = <Topics>pub.topics
        cdef Retained former
        cdef int64_t size
        if topics.namespace.bytes_max == 0 or pub.body.payload_length == 0:
            return 0
        size = <int64_t>body_bytes(&pub.body)
        former = topics.retained.get((<const char*>pub.body.topic)[:pub.body.topic_length])
        if former is not None and not former.volatile:
            size -= <int64_t>body_bytes(&former.msg.body)
        if topics.namespace.bytes + size <= <int64_t>topics.namespace.bytes_max:
            return 0
        topics.namespace.refused_bytes += 1
        return 1

    cdef int change_counts(self, Topics topics, Retained kept, int64_t sign) except -1:
        """sign: 1, added to the tree; -1, removed from it. $SYS topics are not counted."""
        cdef uint64_t size = body_bytes(&kept.msg.body)
        topics.retained_expiring += sign * (kept.msg.body.expires_at != 0)
        if kept.volatile:
            topics.retained_volatile += sign
            return 0
        topics.retained_bytes += sign * size
        topics.namespace.bytes += sign * <int64_t>size
        self.bytes += sign * size
        self.count += sign
        return 0

    cdef int forget_all(self, Topics topics) except -1:
        """The namespace has ended: removes its messages; the next checkpoint deletes them from the view."""
        for topic, value in list(topics.retained):
            self.change_counts(topics, <Retained>value, -1)
            topics.retained.pop(topic)
            topics.retained_dirty.add(topic)
        return 0

    def expire(self, Topics topics not None) -> int:
        """Removes expired messages; returns how many."""
        cdef Retained kept
        if topics.retained_expiring == 0:
            return 0
        expired = [topic for topic, value in topics.retained
                   if 0 < (<Retained>value).msg.body.expires_at <= self.ledger.node.steady_ms]
        for topic in expired:
            kept = topics.retained.pop(topic)
            self.change_counts(topics, kept, -1)
            # No record is needed: the stored message has its expiry, and a restart drops it by the clock.
            topics.retained_dirty.add(topic)
            if self.changed is not None and not kept.volatile:
                self.set_version(topics, topic, None, kept.version, kept.life)
                self.lapsed.add((topics.namespace.name, topic))
        return len(expired)
