# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. Appends publishes to logs and pumps groups. See queue/queue.pxd, docs/internals/queues.md.

Publisher options: envelope/envelope.pxd. It is one file because appending, pumping and limits share their state.
"""
cimport cython
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memset

from fluxmq._core.errors import UsageError
from fluxmq._core.envelope.envelope cimport options_t, read_options
from fluxmq._core.disk.record_kinds cimport ORIGIN_OF_QUEUE_HAD, ORIGIN_OF_QUEUE_RELEASED, RECORD_QUEUE_ORIGIN
from fluxmq._core.memory.message cimport body_borrow, body_bytes, origin_of
from fluxmq._core.memory.namespace cimport lacks_room
from fluxmq._core.mqtt.consts cimport (
    REASON_PACKET_TOO_LARGE, REASON_QUOTA_EXCEEDED, REASON_SERVER_UNAVAILABLE, REASON_UNSPECIFIED_ERROR,
)
from fluxmq._core.queue.amqp_head cimport drop_heads, estimate_ready_bytes, expire_heads, ready_count
from fluxmq._core.queue.claim cimport busy_lane
from fluxmq._core.queue.cursor cimport Cursor as GroupCursor
from fluxmq._core.queue.delay cimport ROUND_MAX, Delays
from fluxmq._core.queue.group cimport Group
from fluxmq._core.queue.lanes cimport log_index
from fluxmq._core.queue.log cimport Log, Needed, chunk_t, record_body, record_t, shifted
from fluxmq._core.queue.policy cimport POLICY_AMQP091, policy_of
from fluxmq._core.queue.relay cimport RELAY_AWAITED, RELAY_FORCED, RELAY_TAKEN, RELAY_UNAWAITED
from fluxmq._core.queue.stream cimport Feed, StreamReader
from fluxmq._core.wire.levels cimport levels_match
from fluxmq._core.wire.primitives cimport put_u16, put_u64
from fluxmq._core.wire.queue_address cimport PREFIX, QUEUE_PREFIX_BYTES

__all__ = ["LogNeeds", "POLICY_AMQP091", "QUEUE_CLASSIC", "QUEUE_EPHEMERAL", "QUEUE_STREAM", "Queue"]

# Shared empty value of `readers`, `feeds` and `patterns`: few queues have any. Never changed in place.
cdef list NONE = []

globals().update(QUEUE_CLASSIC=QUEUE_CLASSIC, QUEUE_STREAM=QUEUE_STREAM, QUEUE_EPHEMERAL=QUEUE_EPHEMERAL,
                 POLICY_AMQP091=POLICY_AMQP091)

cdef enum:
    MOVE_BYTES_MAX = 4194304        # of due messages in one turn
    TICK_MS = 250                   # of the clock of queues: what is due later it finds by itself
    LOOKED_AT_MAX = 64              # messages of a log examined by may_expire


cdef inline int64_t sooner(int64_t known, int64_t other) noexcept nogil:
    """The earlier of two expiry times; known: 0 = never."""
    return other if known == 0 or other < known else known


cdef bint may_expire(Log log) noexcept:
    """Whether a kept message may have an expiry. Looks at a few messages in memory only, not at segments."""
    cdef chunk_t* chunk = NULL
    cdef const record_t* record
    cdef uint32_t looked = 0
    if log.first == log.next:
        return 0
    if log.first < log.flushed:
        return 1
    record = log.find(log.first, &chunk)
    while record != NULL and looked < LOOKED_AT_MAX:
        if record.expires_at:
            return 1
        looked += 1
        record = log.following(chunk, record)
    return record != NULL or (chunk != NULL and chunk.covers < log.next)


@cython.final
cdef class LogNeeds(Needed):
    """Machine. See queue/queue.pxd."""

    cdef bint is_needed(self, uint64_t offset) noexcept:
        cdef GroupCursor cursor
        # The cursor that needed the previous message nearly always needs this one too.
        if self.last is not None and not self.last.is_settled(offset):
            return 1
        for cursor in self.cursors:
            if not cursor.is_settled(offset):
                self.last = cursor
                return 1
        return 0


@cython.final
cdef class Queue(GroupOwner):
    """Machine. One per declared queue.

    ledger: the node's, or one without a journal for a queue in memory only. number, name: see queue/queue.pxd.
    namespace: None is "/". elsewhere: another node has its messages (forward_to). kind: QUEUE_*. logs: partition-major,
    `lanes` per partition.
    """

    def __cinit__(self, Ledger ledger not None, uint64_t number, bytes name not None, int kind, list logs not None,
                  uint32_t lanes=1, Namespace namespace=None, bint elsewhere=False):
        if lanes == 0 or not logs or len(logs) % lanes:
            raise UsageError("a queue has at least one partition, and as many lanes in each")
        self.ledger = ledger
        self.line = (<Log>logs[0]).line
        self.number = number
        self.name = name
        self.namespace = ledger.commits.root if namespace is None else namespace
        self.address = (self.namespace.name, name)
        for log in logs:
            (<Log>log).count_for(self.namespace)
        self.kind = <uint8_t>kind
        self.durable = self.awaits_claims = ledger.keeps(self.line) and kind != QUEUE_EPHEMERAL and not elsewhere
        self.logs = logs
        self.lanes = lanes
        self.partitions = <uint32_t>len(logs) // lanes
        self.groups = []
        self.readers = NONE
        self.feeds = NONE
        self.busy_lanes = lanes if 1 < lanes <= 256 else 0
        memset(self.busy, 0xFF, sizeof(self.busy))
        self.limits.ready_max = self.limits.ready_bytes_max = -1
        self.patterns = NONE
        self.behind = <uint32_t*>calloc(len(logs), sizeof(uint32_t))
        if self.behind == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.behind)

    def log_at(self, partition, lane) -> Log | None:
        """The log of a lane of a partition; None: there is no such lane or partition."""
        if 0 <= partition < self.partitions and 0 <= lane < self.lanes:
            return self.logs[log_index(partition, lane, self.lanes)]
        return None

    def logs_of(self, uint32_t partition) -> list[Log]:
        """All lanes of a partition, from the lowest priority on."""
        return self.logs[partition * self.lanes:(partition + 1) * self.lanes]

    def partition_at(self, uint32_t at) -> int:
        """The partition that logs[at] is of."""
        return at // self.lanes

    def forward_to(self, Relay relay not None):
        """Another node has the messages of this queue, which was made for that: `relay` is the way to it."""
        if self.durable:
            raise UsageError(f"queue {self.name!r} has messages of its own")
        self.relay = relay

    def become_relay(self, uint64_t number, list logs not None):
        """Another node gets the messages: a Relay is to follow at once (forward_to). number, logs: as those of a queue
        that was made to be forwarded. What the queue had stays with who has its logs."""
        if self.dirty:
            self.dirty = False
            self.ledger.dirty_queues.pop(self, None)
        self.number = number
        self.logs = logs
        self.line = (<Log>logs[0]).line
        self.durable = self.awaits_claims = self.expiring = self.resting = self.ending = False
        self.expiry_ms = self.alarm_ms = 0
        self.delays = None

    def become_owner(self, uint64_t number, list logs not None, Delays delays):
        """This node has the messages now, in these logs; the groups are to follow at once (queue/handover)."""
        cdef Log log
        self.relay = None
        self.number = number
        self.logs = logs
        self.line = (<Log>logs[0]).line
        self.durable = self.awaits_claims = self.ledger.keeps(self.line) and self.kind != QUEUE_EPHEMERAL
        self.delays = delays
        self.resting = False
        memset(self.busy, 0xFF, sizeof(self.busy))
        memset(self.behind, 0, len(logs) * sizeof(uint32_t))

    def set_policy(self, int number):
        """number: POLICY_*."""
        self.policy = policy_of(number)

    def set_limits(self, *, uint64_t messages_max=0, uint64_t bytes_max=0, uint32_t payload_max=0, int64_t ttl_ms=0,
                   bint drop_head=False, bint capture_confirmed=False, bint at_once=False,
                   bint dead_letter_refused=False, int64_t ready_max=-1, int64_t ready_bytes_max=-1):
        """Replaces all limits; see queue_limits_t."""
        self.limits = queue_limits_t(messages_max, bytes_max, payload_max, ttl_ms, drop_head, capture_confirmed,
                                     at_once, dead_letter_refused, ready_max, ready_bytes_max)

    def configure_like(self, Queue other not None):
        """Copies the configuration of `other`, including its callbacks."""
        self.limits, self.policy = other.limits, other.policy
        self.wake, self.events = other.wake, other.events

    def restored(self) -> bool:
        """At recovery: as derive. The caller has called take_unpumped() before."""
        cdef Group group
        cdef bint has_work
        self.unpumped = False
        has_work = self.derive()
        if self.limits.ready_bytes_max >= 0:
            for group in self.groups:
                estimate_ready_bytes(group, self.limits.ready_bytes_max)
        return has_work

    def derive(self) -> bool:
        """Its logs are restored from segments and records: derives the queue's own state. False: the queue needs no
        work until it is used, which holds for most of many queues."""
        cdef Log log
        cdef Group group
        cdef GroupCursor cursor
        memset(self.behind, 0, len(self.logs) * sizeof(uint32_t))
        for group in self.groups:
            group.keep_offsets()
        if self.delays is not None:
            self.delays.group.keep_offsets()
        for log in self.logs:
            self.expiring = self.expiring or may_expire(log)
        if (self.kind != QUEUE_CLASSIC or self.delays is not None or self.expiring or self.limits.ready_max >= 0
                or self.limits.ready_bytes_max >= 0):
            return True
        for group in self.groups:
            if group.claims or group.members:
                return True
            for cursor in group.cursors:
                if cursor.floor != cursor.log.first:
                    return True
        return False

    def as_stored(self):
        """At recovery: the queue equals its copy in the view, so the next checkpoint need not write it, except what
        only segments have. The caller has called take_dirty_queues() before."""
        cdef Group group
        cdef Log log
        for group in self.groups:
            group.dirty = False
        self.dirty = False
        if self.kind != QUEUE_CLASSIC or self.delays is not None:
            self.note_change()
            return
        for log in self.logs:
            if log.flushed != log.stored_next:
                self.note_change()
                return

    cdef int touch(self) except -1:
        """Schedules a pump before this turn's batch is submitted to the journal."""
        if not self.unpumped and not self.following:
            self.unpumped = True
            self.ledger.unpumped.append(self)
            if self.wake is not None:
                self.wake()
        return 0

    cdef int mark_clock_dirty(self) except -1:
        """The timer checks the queue with its next tick, because something may be due earlier than known."""
        if not self.clock_dirty and not self.following and self.relay is None:
            self.clock_dirty = True
            self.ledger.clock_dirty.append(self)
        return 0

    cdef int note_change(self) except -1:
        """Messages or their states may have changed: the next checkpoint checks the queue. Of a queue of another line
        than the journal it stores the copy, which is what is committed."""
        if self.durable and not self.dirty and not self.ended and (
                self.line.number == 0 or (self.following and self.line.group)):
            self.dirty = True
            self.ledger.dirty_queues[self] = None
        return 0

    cdef int end(self) except -1:
        """The queue is deleted: no checkpoint writes it any more. Consumers may still settle their messages."""
        self.ended = True
        self.wake = None
        if self.dirty:
            self.dirty = False
            self.ledger.dirty_queues.pop(self, None)
        return 0

    def mark_dirty(self):
        """note_change for the cold half, without a pump (recovery, an incomplete checkpoint)."""
        self.note_change()

    def notify(self):
        """touch for the cold half: members joined or left, something was loaded, trimmed or replayed, time has passed.
        So all lanes are checked."""
        memset(self.busy, 0xFF, sizeof(self.busy))
        self.touch()

    def pump_now(self):
        """Pumps a changed queue now instead of at the end of the turn, so that the caller sees the result."""
        if self.unpumped:
            self.pump()
            self.touch()

    def add_group(self, Group group not None):
        group.owner = self
        self.groups.append(group)
        self.touch()

    def remove_group(self, Group group not None):
        """Removes a group that has ended."""
        self.groups.remove(group)
        group.end()

    def add_reader(self, StreamReader reader not None):
        reader.owner = self
        self.readers = [*self.readers, reader]
        self.touch()

    def remove_reader(self, StreamReader reader not None):
        self.readers = [one for one in self.readers if one is not reader]
        self.mark_clock_dirty()

    def add_feed(self, Feed feed not None):
        """Another node reads this stream."""
        self.feeds = [*self.feeds, feed]

    def remove_feed(self, Feed feed not None):
        self.feeds = [one for one in self.feeds if one is not feed]

    @property
    def depth(self) -> int:
        """Number of messages kept: from the oldest that may still be needed to the newest."""
        return self.kept()

    @property
    def waiting(self) -> int:
        """Number of messages that some group has not settled; for a stream all that are kept."""
        return self.unsettled()

    cdef uint64_t kept(self):
        cdef uint64_t total = 0
        cdef Log log
        for log in self.logs:
            total += log.next - log.first
        return total

    # ---------------------------------------------------------------- a publish arrives

    cdef int take(self, pub_t* pub, bint wide) except -1:
        cdef const body_t* body = &pub.body
        cdef options_t options
        cdef bint addressed
        cdef int reason
        cdef uint64_t mark = self.ledger.commits.mark
        if self.passed == pub.passing or (wide and not self.is_bound(&pub.body)):
            return 0
        self.passed = pub.passing
        if pub.amqp != NULL:
            body = pub.amqp
        if self.relay is not None:
            return self.relay_publish(pub, body)
        addressed = self.is_address(&pub.body)
        reason = self.read_options(body, &options)
        if reason:
            self.refused(&self.counts.refused_properties)
        else:
            reason = self.no_space(body)
        if reason == 0:
            reason = self.append(body, pub.qos, &options)
            if reason == 0:
                self.note_origin(origin_of(pub))
        if addressed or self.limits.capture_confirmed or (pub.amqp != NULL and self.bindings):
            return reason
        if reason:
            self.refused(&self.counts.capture_lost)
        elif self.bindings:
            return 0                        # an acknowledged publish must be in every queue bound to its topic
        self.ledger.commits.take_back(mark) # the publisher does not wait for a capture
        return 0

    cdef int relay_publish(self, const pub_t* pub, const body_t* body) except -1:
        """take() where another node has the messages. A publisher waits in the same cases as it would there."""
        cdef int reason
        if self.is_address(&pub.body) or self.limits.capture_confirmed or (pub.amqp != NULL and self.bindings):
            return self.relay.publish(body, pub.qos, RELAY_AWAITED, pub)
        reason = self.relay.publish(body, pub.qos, RELAY_TAKEN if self.bindings else RELAY_UNAWAITED, pub)
        if reason:
            self.refused(&self.counts.capture_lost)
        return 0

    cdef int put(self, const body_t* body, uint8_t qos, const pub_t* pub) except -1:
        """Takes a publish routed here by another protocol than MQTT. pub: of an MQTT client; NULL: none. Returns 0, or
        the reason code of the refusal."""
        cdef options_t options
        cdef int reason
        if self.relay is not None:
            return self.relay.publish(body, qos, RELAY_AWAITED if pub == NULL else RELAY_TAKEN, pub)
        reason = self.read_options(body, &options)
        if reason:
            self.refused(&self.counts.refused_properties)
        else:
            reason = self.no_space(body)
        if reason == 0:
            reason = self.append(body, qos, &options)
        if reason == 0 and pub != NULL:
            self.note_origin(origin_of(pub))
        return reason

    cdef int note_origin(self, const origin_t* origin) except -1:
        cdef tuple key
        if origin == NULL or origin.name == 0 or self.line.number == 0 or self.relay is not None or not self.durable:
            return 0
        key = origin.name, origin.packet_id, origin.use
        self.write_origin(key, ORIGIN_OF_QUEUE_HAD)
        self.ledger.in_lines.setdefault(key, {})[self] = None
        return 0

    cdef bint is_awaited(self, const pub_t* pub) except -1:
        return self.is_address(&pub.body) or self.limits.capture_confirmed or self.bindings

    cdef bint is_copy(self) noexcept:
        return self.following

    cdef bint rests(self) noexcept:
        return self.resting

    cdef int origin_over(self, tuple key) except -1:
        return 0 if self.relay is not None else self.write_origin(key, ORIGIN_OF_QUEUE_RELEASED)

    cdef int write_origin(self, tuple key, uint8_t what) except -1:
        cdef uint8_t* at = self.ledger.reserve(self.line, RECORD_QUEUE_ORIGIN, 27)
        at = put_u64(put_u64(at, self.number), key[0])
        put_u64(put_u16(at, key[1]), key[2])[0] = what
        self.ledger.recorded(self.line)
        return 0

    cdef int put_forced(self, const body_t* body, uint8_t qos) except -1:
        cdef options_t options, asked
        if self.relay is not None:
            return self.relay.publish(body, qos, RELAY_FORCED, NULL)
        memset(&options, 0, sizeof(options))
        options.forced = 1
        if self.read_options(body, &asked) == 0:    # it keeps its place among others; the rest was done before
            options.priority, options.key, options.key_length = asked.priority, asked.key, asked.key_length
        return self.append(body, qos, &options)

    cdef int refused(self, uint64_t* count) except -1:
        """Counts a refusal, which needs no pump."""
        count[0] += 1
        return self.mark_clock_dirty()

    cdef bint is_bound(self, const body_t* body) noexcept:
        """Whether a binding that is narrower than its filter matches the topic."""
        cdef bytes pattern
        cdef const uint8_t* at
        for pattern in self.patterns:
            at = <const uint8_t*><const char*>pattern
            if levels_match(at, at + len(pattern), body.topic, body.topic + body.topic_length):
                return 1
        return 0

    cdef int no_space(self, const body_t* body) except -1:
        """0, or the reason code for refusing a message: the queue is damaged, the disk is full, this turn has filled
        the journal's batch (a large message for hundreds of queues), or too much of its group is not committed; or the
        queue is about to be deleted, and the message is for nobody else (is_for_one_queue). What comes by an exchange
        or a captured topic goes with the queue, or stays with it."""
        if self.damage is not None:
            self.refused(&self.counts.refused_disk)
            return REASON_UNSPECIFIED_ERROR
        if self.ending and is_for_one_queue(body):
            self.refused(&self.counts.refused_away)
            self.ledger.refused_away += 1
            self.ledger.away_why = "the queue is being deleted, because nobody used it"
            return REASON_SERVER_UNAVAILABLE
        if self.durable and (self.ledger.full or (
                self.ledger.journal is not None
                and self.ledger.journal.gather.length > self.ledger.batch_bytes_max)):
            self.refused(&self.counts.refused_disk)
            return REASON_QUOTA_EXCEEDED
        if self.line.gather_length >= self.line.room:
            self.refused(&self.counts.refused_disk)
            return REASON_QUOTA_EXCEEDED
        return 0

    cdef bint is_address(self, const body_t* body) noexcept:
        """Whether the topic is `$queue/<this name>` or below it."""
        cdef uint32_t n = <uint32_t>len(self.name)
        cdef uint32_t end = QUEUE_PREFIX_BYTES + n
        return (body.topic_length >= end and memcmp(body.topic, PREFIX, QUEUE_PREFIX_BYTES) == 0
                and memcmp(body.topic + QUEUE_PREFIX_BYTES, <const char*>self.name, n) == 0
                and (body.topic_length == end or body.topic[end] == 47))

    cdef int read_options(self, const body_t* body, options_t* options) except -1:
        return read_options(body, &self.ledger.node, options)

    cdef int append(self, const body_t* body, uint8_t qos, const options_t* options) except -1:
        """Appends a message. Returns 0, or the reason code of the refusal."""
        cdef body_t kept = body[0]
        cdef uint32_t partition = 0
        cdef uint32_t lane
        cdef bytes producer = None
        cdef Log log
        if self.limits.payload_max and body.payload_length > self.limits.payload_max and not options.forced:
            self.refused(&self.counts.refused_too_large)
            return REASON_PACKET_TOO_LARGE
        if options.producer != NULL and options.has_sequence and self.events is not None:
            producer = (<const char*>options.producer)[:options.producer_length]
            if self.events.is_repeated(self, producer, options.sequence):
                self.counts.repeated += 1
                self.mark_clock_dirty()
                self.ledger.wait_for_earlier(self.line)
                return 0
        if not options.forced and self.namespace.bytes_max and self.namespace_is_full(body):
            self.refused(&self.counts.refused_full)
            self.namespace.refused_bytes += 1
            return REASON_QUOTA_EXCEEDED
        if not options.forced and self.policy.limits_ready:
            if not self.limits.drop_head and self.is_over_ready(body):
                self.refused(&self.counts.refused_full)
                self.overflowed(body)
                return REASON_QUOTA_EXCEEDED
        elif not options.forced and self.is_full(body) and not self.make_room(body):
            self.refused(&self.counts.refused_full)
            return REASON_QUOTA_EXCEEDED
        if not self.policy.ttl_from_ready and self.limits.ttl_ms:
            kept.expires_at = sooner(kept.expires_at, self.ledger.node.steady_ms + self.limits.ttl_ms)
        if options.not_before > self.ledger.node.steady_ms and self.events is not None and self.kind != QUEUE_STREAM:
            self.delay(&kept, qos, options)
            if producer is not None:
                self.events.produced(self, producer, options.sequence)
            return 0
        if options.has_lifetime:
            kept.expires_at = sooner(kept.expires_at, self.ledger.node.steady_ms + options.lifetime_ms)
        if self.policy.ttl_from_ready:
            self.note_ready(&kept)
        if self.partitions > 1:
            if options.key != NULL:
                partition = hash_key(options.key, options.key_length) % self.partitions
            else:
                partition = self.turn_partition
                self.turn_partition = (self.turn_partition + 1) % self.partitions
        lane = options.priority if options.priority < self.lanes else self.lanes - 1
        log = <Log>self.logs[log_index(partition, lane, self.lanes)]
        log.append(&kept, qos, options.priority, 0)
        self.busy[lane >> 6] |= <uint64_t>1 << (lane & 63)
        if self.durable:
            self.ledger.recorded(self.line)     # so the publisher's acknowledgement waits
        self.counts.appended += 1
        if producer is not None:
            self.events.produced(self, producer, options.sequence)
        self.touch()
        return 0

    cdef int note_ready(self, body_t* kept) except -1:
        """A message becomes ready: starts its time to live and counts its size."""
        cdef Group group
        if self.limits.ttl_ms or self.limits.at_once:
            kept.expires_at = sooner(kept.expires_at, self.ledger.node.steady_ms + self.limits.ttl_ms)
        if kept.expires_at:
            self.expiring = True
        if self.limits.ready_bytes_max >= 0:
            for group in self.groups:
                group.ready_bytes += kept.payload_length
        return 0

    cdef int overflowed(self, const body_t* body) except -1:
        if self.limits.dead_letter_refused and not self.pumping:   # a refused delayed message is tried again instead
            self.events.refused(self, (<const char*>body.topic)[:body.topic_length],
                                (<const char*>body.properties)[:body.properties_length],
                                (<const char*>body.payload)[:body.payload_length], body.format)
        return 0

    cdef bint is_full(self, const body_t* body):
        cdef uint64_t most = self.limits.messages_max
        return ((most != 0 and self.kept() >= most and self.unsettled() >= most)
                or (self.limits.bytes_max != 0 and self.kept_bytes() + body.payload_length > self.limits.bytes_max))

    cdef bint namespace_is_full(self, const body_t* body) except -1:
        """Whether the namespace's byte limit has no room for the message, even after trimming settled ones."""
        cdef size_t size = body_bytes(body)
        if lacks_room(self.namespace, size) and self.unpumped and self.kind != QUEUE_STREAM:
            self.trim_settled()
        return lacks_room(self.namespace, size)

    cdef bint is_over_ready(self, const body_t* body) except -1:
        """Whether the message would exceed the limits of ready messages, after consumers got what they can take."""
        cdef Group group
        cdef bint over = 0
        for group in self.groups:
            if self.limits.ready_bytes_max >= 0 and ready_count(group) == 0:
                group.ready_bytes = 0
            over = over or ((self.limits.ready_max >= 0 and ready_count(group) >= <uint64_t>self.limits.ready_max)
                            or (self.limits.ready_bytes_max >= 0
                                and group.ready_bytes + <int64_t>body.payload_length > self.limits.ready_bytes_max))
        if not over or not self.unpumped or self.pumping:
            return over
        self.pump()
        return self.is_over_ready(body)

    cdef bint make_room(self, const body_t* body) except -1:
        """Trims what every group has settled, then lets the cold half drop the oldest messages. 0: no room."""
        cdef uint64_t kept
        if self.unpumped and self.kind != QUEUE_STREAM:
            self.trim_settled()
        while self.is_full(body):
            kept = self.kept()
            if (self.events is None or not (self.limits.drop_head or self.kind == QUEUE_STREAM)
                    or not self.events.make_room(self)):
                return 0
            if self.kept() == kept:
                return 1        # the oldest must be read from disk first; a later call drops it
        return 1

    cdef uint64_t unsettled(self):
        """Number of kept messages that the slowest group has not settled. It may be less than depth: a message held for
        long prevents trimming of later ones, but these may be settled."""
        cdef uint64_t most = 0
        cdef Group group
        if self.kind == QUEUE_STREAM or not self.groups:
            return self.kept()
        for group in self.groups:
            most = max(most, <uint64_t>group.lag)
        return most

    cdef uint64_t kept_bytes(self):
        cdef uint64_t total = 0
        cdef Log log
        for log in self.logs:
            total += log.kept_bytes
        return total

    cdef int delay(self, const body_t* body, uint8_t qos, const options_t* options) except -1:
        if self.delays is None:
            self.events.first_delayed(self)
        self.delays.append(body, qos, options.priority, options.not_before)
        self.due_soon(options.not_before)
        self.mark_clock_dirty()
        self.note_change()
        if self.durable:
            self.ledger.recorded(self.line)
        return 0

    cdef int move_due(self) except -1:
        """Appends delayed messages that are due, each in the same batch as its settlement in the delay log. One call
        moves a bounded amount, so that other queues and the disk keep up."""
        cdef Delays delays = self.delays
        cdef const record_t* record = NULL
        cdef body_t body
        cdef options_t options
        cdef uint32_t moved = 0
        cdef uint64_t size = 0
        cdef uint32_t payload_max = self.limits.payload_max
        cdef bint full = 0
        if delays.busy or not delays.is_due():
            return 0
        self.limits.payload_max = 0                # the size was checked when the message was accepted
        try:
            while moved < ROUND_MAX and size < MOVE_BYTES_MAX and delays.is_due():
                record = delays.head()
                if record == NULL:
                    break
                size += record.size
                record_body(record, self.line.shift_ms, &body)
                self.read_options(&body, &options)
                options.not_before = 0
                options.producer = NULL       # duplicates were checked when the message was accepted
                options.priority = record.priority
                full = self.append(&body, record.qos & 0x0F, &options) != 0
                if full:                    # it stays in the delay log and is tried again
                    self.counts.refused_full -= 1
                    break
                delays.settle_head()
                moved += 1
        finally:
            self.limits.payload_max = payload_max
            delays.finish()
        if not full and self.events is not None and delays.is_due():
            self.events.more_is_due(self)
        return 0

    def publish(self, bytes topic not None, bytes payload not None, bytes properties=b"", int qos=1,
                int64_t expires_at=0, int format=0) -> int:
        """Publishes as a client would: options in user properties apply. Returns 0, or the MQTT 5 reason code of the
        refusal. topic, properties: valid, encoded as `format` (FORMAT_*)."""
        cdef body_t body
        body_borrow(&body, topic, properties, payload, expires_at, <uint8_t>format)
        return self.put(&body, <uint8_t>qos, NULL)

    def append_message(self, bytes topic not None, bytes payload not None, *, bytes properties=b"", int qos=1,
                       int priority=0, int64_t expires_at=0, int64_t not_before=0, bytes partition_key=b"",
                       bint forced=False, int format=0) -> int:
        """Appends for the cold half (dead letters, due delayed messages, other protocols), even if the disk is full.

        expires_at, not_before: steady clock, ms; 0 = never, at once. forced: ignore the limits. format: FORMAT_* of
        topic and properties. Returns 0, or the MQTT 5 reason code of the refusal.
        """
        cdef body_t body
        cdef options_t options
        memset(&options, 0, sizeof(options))
        body_borrow(&body, topic, properties, payload, expires_at, <uint8_t>format)
        options.not_before = not_before
        options.priority = <uint8_t>priority
        options.forced = forced
        if partition_key:
            options.key = <const uint8_t*><const char*>partition_key
            options.key_length = <uint32_t>len(partition_key)
        if self.relay is not None:
            return self.relay.publish(&body, <uint8_t>qos, RELAY_UNAWAITED, NULL)
        return self.append(&body, <uint8_t>qos, &options)

    # ---------------------------------------------------------------- pump

    cdef int pump(self) except -1:
        """Once per turn in which the queue changed: groups and readers deliver what they can, then write records."""
        cdef Group group
        cdef StreamReader reader
        cdef Feed feed
        cdef bint stalled = 0
        self.unpumped = False
        if self.relay is not None:
            for reader in self.readers:
                reader.pump()
            return self.relay.pump()
        if self.ledger.not_pumped is not None:
            self.ledger.not_pumped[self] = None
            for group in self.groups:
                group.write_records()
            return 0
        if self.damage is not None or self.resting:
            self.mark_clock_dirty()
            for group in self.groups:
                group.write_records()           # its consumers may still settle their messages
            return 0
        self.pumping = True
        try:
            self.mark_clock_dirty()
            self.note_change()
            if self.delays is not None:
                self.move_due()
            self.expiry_ms = 0
            for group in self.groups:
                group.pump()
                if self.policy.drops_heads:
                    self.tidy_heads(group)
                group.write_records()
                stalled = stalled or group.stalled
            for reader in self.readers:
                reader.pump()
                stalled = stalled or reader.stalled
            for feed in self.feeds:
                feed.pump()
                stalled = stalled or feed.stalled
            if self.kind != QUEUE_STREAM:
                self.trim_settled()
            if self.expiry_ms:
                self.due_soon(self.expiry_ms)
        finally:
            self.pumping = False
        if stalled and self.events is not None:
            self.events.stalled(self)
        return 0

    cdef int due_soon(self, int64_t at_ms) except -1:
        cdef int64_t now = self.ledger.node.steady_ms
        if at_ms - now > TICK_MS or self.events is None:
            return 0                        # the clock plans it with its next tick
        if self.alarm_ms <= now or at_ms < self.alarm_ms:
            self.alarm_ms = at_ms
            self.events.due_soon(self, at_ms)
        return 0

    cdef int tidy_heads(self, Group group) except -1:
        """Drops or dead-letters messages over the limits or expired, after consumers got what they can take."""
        cdef int64_t due
        if self.limits.drop_head and (self.limits.ready_max >= 0 or self.limits.ready_bytes_max >= 0):
            drop_heads(group, self.limits.ready_max, self.limits.ready_bytes_max)
        if self.expiring:
            due = shifted(expire_heads(group), -self.line.shift_ms)
            if due and (self.expiry_ms == 0 or due < self.expiry_ms):
                self.expiry_ms = due
        return 0

    def trim_done(self):
        """trim_settled for an instance that is not pumped."""
        memset(self.busy, 0xFF, sizeof(self.busy))
        self.trim_settled()
        if self.delays is not None:
            self.delays.finish()

    cdef int trim_settled(self) except -1:
        """Trims what every group has settled; nothing if there is no group yet."""
        cdef int lane = <int>self.lanes - 1
        cdef uint32_t i
        cdef uint64_t first
        cdef bint kept
        cdef Log log
        if not self.groups:
            return 0
        while lane >= 0:
            if self.busy_lanes:
                lane = busy_lane(self.busy, lane)
                if lane < 0:
                    return 0
            kept = 0
            for i in range(self.partitions):
                log = <Log>self.logs[log_index(i, lane, self.lanes)]
                if log.first == log.next and not self.busy_lanes:
                    continue
                first = self.lowest_floor(log_index(i, lane, self.lanes), log)
                kept = kept or first < log.next         # also if a cursor's floor still lags behind a purge
                if first > log.first:
                    log.trim(first)
            if not kept:
                self.busy[lane >> 6] &= ~(<uint64_t>1 << (lane & 63))
            lane -= 1
        return 0

    cdef uint64_t lowest_floor(self, uint32_t at, Log log):
        """The position below which all groups have settled a log, or any that is not above its first offset.

        Starts with the group that was behind last time and stops at the first one that still is. All groups are read
        only when all have moved, so the cost is one read per message and group."""
        cdef uint32_t count = <uint32_t>len(self.groups)
        cdef uint32_t i, here
        cdef uint64_t floor
        cdef uint64_t lowest = log.next
        cdef uint32_t last = self.behind[at]
        for i in range(count):
            here = (last + i) % count
            floor = (<GroupCursor>(<Group>self.groups[here]).cursors[at]).floor
            self.floors_read += 1
            if floor < lowest:
                lowest = floor
                self.behind[at] = here
            if floor <= log.first:
                break
        return lowest

    def needs(self, Log log not None) -> Needed | None:
        """Which messages of a log an Export must keep; None: all."""
        cdef LogNeeds needs
        if self.delays is not None and log is self.delays.log:
            needs = LogNeeds()
            needs.cursors = self.delays.group.cursors
            return needs
        if self.kind == QUEUE_STREAM or not self.groups:
            return None
        needs = LogNeeds()
        at = self.logs.index(log)
        needs.cursors = [(<Group>group).cursors[at] for group in self.groups]
        return needs

    def is_needed(self, Log log not None, uint64_t offset) -> bool:
        """Whether some group has not settled the message; with no group yet, all are needed."""
        cdef LogNeeds needs = self.needs(log)
        return needs is None or needs.is_needed(offset)
