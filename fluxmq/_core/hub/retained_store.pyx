# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. See hub/retained_store.pxd."""
cimport cython

from fluxmq._core.memory.message cimport body_bytes, msg_new

__all__ = ["RetainedStore"]


@cython.final
cdef class RetainedStore:
    """Machine. ledger: the node's."""

    def __cinit__(self, Ledger ledger not None):
        self.ledger = ledger
        self.count_max = 100000
        self.bytes_max = 1 << 30

    cdef int retain(self, pub_t* pub) except -1:
        """Stores, replaces or clears the retained message of a topic, [MQTT-3.3.1-5] [MQTT-3.3.1-6]."""
        cdef bytes topic = (<const char*>pub.body.topic)[:pub.body.topic_length]
        cdef bint volatile = of_broker(pub)
        cdef Topics topics = <Topics>pub.topics
        cdef Retained former
        cdef Retained kept = None
        if pub.body.payload_length == 0:
            former = topics.retained.pop(topic)
            if former is None:
                return 0
        else:
            former = topics.retained.get(topic)
            if not volatile and (self.lacks_room(&pub.body, former) or self.namespace_is_full(pub)):
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
            self.ledger.write_retained(&pub.body, pub.qos, topics.namespace)
            topics.retained_dirty.add(topic)
        return 0

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
        return len(expired)
