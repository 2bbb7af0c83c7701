# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. The hot crossing of one node, and the doors through which the cold verbs reach it. See hub/hub.pxd.
It is one file because all of it works on the same few structures, and the doors are a few lines each."""
cimport cython
from cpython.ref cimport Py_DECREF, PyObject
from libc.string cimport memcmp, memcpy, memset

from fluxmq._core.amqp091.topics import filter_of
from fluxmq._core.errors import CorruptError, UsageError
from fluxmq._core.memory.namespace import ENDED, read_namespace
from fluxmq._core.disk.journal cimport Journal
from fluxmq._core.memory.commits cimport (
    HELD_ACK, HELD_BYTES, HELD_CALL, HELD_SEND, HELD_TOLD, Commits, Line, Waiter, held_t, ticket_t,
)
from fluxmq._core.memory.link cimport (
    link_ack, link_commit, link_drop, link_mark, link_publish, link_room, link_t, link_write,
)
from fluxmq._core.memory.message cimport (
    BLOB_BYTES_MIN, blob_copy, blob_drop, body_bytes, body_t, ids_drop, ids_new, ids_t, msg_drop, msg_hold, msg_new,
    pub_own,
)
from fluxmq._core.memory.ledger cimport RECORD_NAMESPACE
from fluxmq._core.memory.namespace cimport Namespace
from fluxmq._core.memory.node cimport WORK_HOP, WORK_SUBSCRIPTION, stamp_clocks
from fluxmq._core.mqtt.consts cimport PUBACK, PUBCOMP, PUBLISH, PUBREC
from fluxmq._core.pubsub.retained_replay cimport RetainedReplay
from fluxmq._core.pubsub.routes cimport (
    HOP_GROUP, HOP_PEER, HOP_QUEUE, HOP_RELAY, HOP_SESSION, Routes, ShareGroup, route_enter, route_leave,
)
from fluxmq._core.pubsub.topics cimport Topics
from fluxmq._core.pubsub.trie cimport (
    SUB_KIND_UNIT, SUB_NO_LOCAL, SUB_QOS_MASK, SUB_RETAIN_AS_PUBLISHED, SUB_WIDE, Trie,
)
from fluxmq._core.wire.primitives cimport varint_size
from fluxmq._core.wire.text cimport TEXT_OK, topic_valid

__all__ = ["Hub", "PeerHop", "TopicRelay"]

cdef enum:
    REPLAY_STEPS = 512              # nodes of the retained tree in one slice of one session's replay
    WORK_REPLAY = 65536             # of a round, for all replays: 1.3 ms


cdef class TopicRelay:
    """Machine. A base class."""

    def __cinit__(self, *_):
        self.namespace = None

    cdef int relay(self, pub_t* pub) except -1:
        return 0


cdef class PeerHop:
    """Machine. A base class."""

    cdef int forward(self, pub_t* pub) except -1:
        return 0


cdef inline Trie trie_of(Namespace namespace) noexcept:
    return (<Topics>namespace.topics).trie


cdef bint of_broker(const pub_t* pub) noexcept:
    """What the broker says of itself ($SYS): no client published it, so no count of what clients publish has it."""
    return pub.source == NULL and pub.body.topic_length >= 5 and memcmp(pub.body.topic, <const char*>b"$SYS/", 5) == 0


# Connections and sessions point into its ledger until they are freed, also when the collector frees them all at once.
@cython.no_gc_clear
@cython.final
cdef class Hub(Waiter):
    """One per node, for all of its namespaces; each namespace has a Topics of its own.

    journal: where durable changes go, or None. route_entries: size of each namespace's cache of routes. seed: secret,
    for the hashes.
    """

    def __cinit__(self, Journal journal, uint32_t route_entries=65536, uint64_t seed=0):
        from fluxmq._core.memory.ledger import Ledger as ledger_class
        self.ledger = ledger_class(journal)
        self.commits = self.ledger.commits
        self.commits.owner = <void*>self
        self.node = &self.ledger.node
        self.route_entries = route_entries
        self.seed = seed
        self.root = self.commits.root
        self.root.topics = Topics(self.root, route_entries, seed)
        self.namespaces = {self.root.name: self.root}
        self.namespaces_dirty = set()
        self.qos_max = 2
        self.topic_levels_max = 32
        self.payload_bytes_max = 1 << 20
        self.user_properties_max = 64
        self.topic_alias_max = 64
        self.topic_alias_out_max = 64
        self.receive_max = 1000
        self.inflight_max = 256
        self.retained_max = 100000
        self.retained_bytes_max = 1 << 30
        self.buffer_high = 8 << 20
        self.buffer_low = 1 << 20
        self.backlog_max = 64 << 20
        self.journal_ahead_max = <uint64_t>1 << 63
        self.open_publish = True
        self.resumed = []
        self.closed = []
        self.due = []
        self.throttled = []
        self.letters = []
        self.queues = {}
        self.bindings = {}
        self.relays = {}
        self.ended_topics = []
        self.peers = {}

    # ---------------------------------------------------------------- clock and wake

    def set_clock(self, int64_t wall_ms, int64_t mono_ms, int64_t slept_ms=0):
        """The time of this turn, in milliseconds: what the poller does after each wait, by hand. slept_ms: how long the
        machine has slept, which the monotonic clock leaves out."""
        stamp_clocks(self.node, wall_ms, mono_ms + slept_ms, mono_ms)

    def resume_clock(self, int64_t steady_ms, int64_t wall_ms):
        """At start, before anything is due: the steady clock goes on from the last one that is on disk, with the wall
        clock of then. As much has passed meanwhile as by the wall clock, and nothing if that was set back."""
        cdef int64_t now = max(steady_ms + self.node.now_ms - wall_ms, steady_ms)
        self.node.steady_base += now - self.node.steady_ms
        self.node.steady_ms = now
        self.node.wall_lead = self.node.now_ms - now

    def wall_of(self, int64_t steady_ms) -> int:
        """A point of the steady clock as people read it, by the wall clock of today. 0 stays 0, which is none."""
        return steady_ms + self.node.wall_lead if steady_ms else 0

    @property
    def recording(self) -> bool:
        """Whether somebody records: only then what Transport.tell takes need be gathered."""
        return self.node.tap != NULL

    @property
    def now_ms(self) -> int:
        return self.node.now_ms

    @property
    def steady_ms(self) -> int:
        return self.node.steady_ms

    @property
    def wall_lead_ms(self) -> int:
        """The wall clock minus the steady clock."""
        return self.node.wall_lead

    @property
    def mono_ms(self) -> int:
        return self.node.mono_ms

    cdef void touch(self):
        """Something was written outside of a turn: asks for one, once."""
        if self.in_turn or self.woken or self.wake is None:
            return
        self.woken = True
        self.wake()

    # ---------------------------------------------------------------- publish

    cdef uint64_t next_passing(self) noexcept:
        self.passing += 1
        return self.passing

    cdef int publish(self, pub_t* pub, route_t* route) except -1:
        """Everything that a PUBLISH causes. Returns how many subscriptions (merged) or groups it matched.

        Afterwards pub.owned has been given back; the bytes that pub.body points to are the caller's again.
        """
        cdef bint own_blob = 0
        cdef uint32_t count = route.count
        self.node.work += 1 + WORK_HOP * <uint64_t>count
        if pub.passing == 0:
            pub.passing = self.next_passing()
        if pub.body.payload_length >= BLOB_BYTES_MIN and pub.body.blob == NULL and (count or pub.retain):
            pub.body.blob = blob_copy(pub.body.payload, pub.body.payload_length)
            pub.body.payload = pub.body.blob.data
            own_blob = 1
        route_enter(route)
        try:
            self.deliver_all(pub, route)
            if pub.retain:
                self.retain(pub)
            if self.ledger.targets_count:
                self.ledger.write_message(pub_own(pub))
        except BaseException:
            self.ledger.targets_count = 0       # they must not become targets of the next message
            raise
        finally:
            if pub.owned != NULL:
                self.ledger.forget(pub.owned)
                pub.owned = NULL
            if own_blob:
                blob_drop(pub.body.blob)
                pub.body.blob = NULL
            route_leave(route)
        if count == 0 and not of_broker(pub):
            self.node.counters.unrouted += 1
        return <int>count

    cdef int deliver_all(self, pub_t* pub, route_t* route) except -1:
        cdef uint32_t i
        cdef hop_t* hop
        cdef link_t* link
        cdef Session session
        cdef const uint8_t* made = NULL     # the last QoS 0 packet that any link of its version may take as it is
        cdef uint8_t made_version = 0
        cdef uint32_t made_size = 0
        cdef uint8_t* at
        cdef int64_t written
        cdef uint64_t copied = 0
        cdef bint plain = pub.body.blob == NULL and not pub.retain
        if route.count == 1:
            hop = &route.hops[0]
            if hop.kind == HOP_SESSION:
                return (<Session>hop.target).deliver(pub, hop.options, hop.ids)
            return self.deliver_hop(hop, pub)
        for i in range(route.count):
            hop = &route.hops[i]
            if hop.kind != HOP_SESSION:
                self.deliver_hop(hop, pub)
                made = NULL             # it may have closed that link
                if route.generation != (<Routes>route.routes).trie.generation:
                    self.deliver_rest(pub, route, i + 1)
                    break
                continue
            session = <Session>hop.target
            link = session.link
            if (not plain or link == NULL or (pub.qos and hop.options & SUB_QOS_MASK) or hop.ids != NULL
                    or hop.options & SUB_NO_LOCAL or link.aliases != NULL or link.pending > link.high):
                session.deliver(pub, hop.options, hop.ids)
                continue
            if made != NULL and made_version == (link.version == 5) and made_size <= link.packet_size_max:
                at = link_room(link, made_size)
                if at == NULL:
                    raise MemoryError()
                memcpy(at, made, made_size)
                link_commit(link, made_size)
                copied += 1
                continue
            if not session.deliver(pub, hop.options, NULL):
                continue
            # The packet just made is contiguous at the end of that link's tail, and stays there until the flush.
            made_version = link.version == 5
            made_size = packet_size(pub, made_version)
            made = link.tail.data + link.tail.end - made_size
        self.node.counters.packets_sent[PUBLISH] += copied
        self.node.counters.messages_sent[0] += copied
        return 0

    cdef int deliver_hop(self, const hop_t* hop, pub_t* pub) except -1:
        """One message to whatever a hop leads to: all but sessions and groups may publish, subscribe, end sessions."""
        cdef Queue queue
        cdef TopicRelay relay
        cdef PeerHop peer
        cdef uint8_t reason
        if hop.kind == HOP_SESSION:
            return (<Session>hop.target).deliver(pub, hop.options, hop.ids)
        if hop.kind == HOP_GROUP:
            return (<ShareGroup>hop.target).deliver(pub)
        if hop.kind == HOP_QUEUE:
            queue = <Queue>hop.target
            reason = <uint8_t>queue.take(pub, hop.options & SUB_WIDE)
            if reason:
                pub.refused = reason
        elif hop.kind == HOP_RELAY:
            relay = <TopicRelay>hop.target
            relay.relay(pub)
        elif not pub.from_peer:
            peer = <PeerHop>hop.target
            peer.forward(pub)
        return 0

    cdef int deliver_rest(self, pub_t* pub, route_t* route, uint32_t begin) except -1:
        """A hop has changed subscriptions: from `begin` on the message goes to those who still want it, as they want it
        now; targets of others may be gone. Who came meanwhile does not get it."""
        cdef Routes routes = <Routes>route.routes
        cdef route_t* now = NULL
        cdef const hop_t* hop
        cdef uint32_t i
        try:
            for i in range(begin, route.count):
                if now == NULL or now.generation != routes.trie.generation:
                    if now != NULL:
                        route_leave(now)
                        now = NULL
                    now = routes.find(route.topic, route.topic_length)
                    route_enter(now)
                hop = hop_to(now, route.hops[i].target)
                if hop != NULL:
                    self.deliver_hop(hop, pub)
        finally:
            if now != NULL:
                route_leave(now)
        return 0

    cdef int count_retained(self, Topics topics, Retained kept, int64_t sign) except -1:
        """sign: 1, it is in the tree now; -1, it is no more. What the broker says of itself ($SYS) has no bounds."""
        cdef uint64_t size = body_bytes(&kept.msg.body)
        topics.retained_expiring += sign * (kept.msg.body.expires_at != 0)
        if kept.volatile:
            topics.retained_volatile += sign
            return 0
        topics.retained_bytes += sign * size
        topics.namespace.bytes += sign * <int64_t>size
        self.retained_bytes += sign * size
        self.retained_count += sign
        return 0

    cdef int retain(self, pub_t* pub) except -1:
        """Keeps, replaces or clears the retained message of a topic, [MQTT-3.3.1-5] [MQTT-3.3.1-6]."""
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
                self.retained_refused += 1
                return 0
            kept = Retained.__new__(Retained)
            kept.node = self.node
            kept.volatile = volatile
            kept.msg = msg_new(&pub.body, pub.qos)
            topics.retained.set(topic, kept)
            self.count_retained(topics, kept, 1)
        if former is not None:
            self.count_retained(topics, former, -1)
            volatile = volatile or former.volatile and kept is None
        if not volatile and self.ledger.active():
            self.ledger.write_retained(&pub.body, pub.qos, topics.namespace)
            topics.retained_dirty.add(topic)
        return 0

    cdef bint lacks_room(self, const body_t* body, Retained former) noexcept:
        """Whether more would be retained than may be with this in the place of the former; None: as a new one."""
        cdef bint counted = former is not None and not former.volatile
        cdef uint64_t freed = body_bytes(&former.msg.body) if counted else 0
        return (not counted and self.retained_count >= self.retained_max
                or self.retained_bytes + body_bytes(body) - freed > self.retained_bytes_max)

    cdef bint namespace_is_full(self, pub_t* pub):
        """Whether what its namespace keeps would be more than may be with this retained: in the place of the former."""
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

    def publish_message(self, bytes topic not None, bytes payload not None, int qos=0, bint retain=False,
                        bytes properties=b"", int64_t expires_at=0, Session source=None,
                        Namespace namespace=None, bint from_peer=False) -> int:
        """Publishes for the broker itself: wills, $SYS, the cold doors of other protocols.

        topic: a valid topic name, UTF-8. properties: MQTT 5 wire bytes that travel as they are (no expiry, alias or
        subscription identifier). expires_at: steady clock, ms; 0 = never. namespace: None is the source's, and without
        one "/". from_peer: another node forwarded it, so that it goes to no peer. Returns how many subscriptions
        matched. Raises UsageError for an invalid topic or QoS.
        """
        cdef pub_t pub
        cdef route_t* route
        if topic_valid(<const uint8_t*><const char*>topic, len(topic), 0) != TEXT_OK or not 0 <= qos <= 2:
            raise UsageError(f"cannot publish to {topic!r} with QoS {qos}")
        memset(&pub, 0, sizeof(pub))
        pub.body.topic = <const uint8_t*><const char*>topic
        pub.body.topic_length = <uint32_t>len(topic)
        pub.body.payload = <const uint8_t*><const char*>payload
        pub.body.payload_length = <uint32_t>len(payload)
        pub.body.properties = <const uint8_t*><const char*>properties
        pub.body.properties_length = <uint32_t>len(properties)
        pub.body.expires_at = expires_at
        if namespace is None:
            namespace = source.namespace if source is not None else self.root
        pub.topics = <void*>namespace.topics
        pub.source = <void*>source if source is not None else NULL
        pub.qos = <uint8_t>qos
        pub.retain = retain
        pub.from_peer = from_peer
        route = (<Topics>pub.topics).routes.find(pub.body.topic, pub.body.topic_length)
        matched = self.publish(&pub, route)
        self.touch()
        return matched

    # ---------------------------------------------------------------- namespaces

    def add_namespace(self, bytes name not None, bint kept=False) -> Namespace:
        """The namespace of this name, made and recorded if it is not there, and open. name: UTF-8, at most 255 bytes.
        kept: an operator makes it."""
        cdef Namespace made = self.namespaces.get(name)
        if made is not None:
            if kept and not made.kept:
                made.kept = True
                self.namespaces_dirty.add(made.number)
                if self.ledger.active():
                    self.ledger.write(RECORD_NAMESPACE, made.number.to_bytes(8, "big") + made.record)
        else:
            made = self.make_namespace(name)
            made.kept = kept
            made.number = <uint32_t>self.ledger.namespace_number(self.commits.local, made)
            self.namespaces_dirty.add(made.number)
        made.open = True
        return made

    cdef Namespace make_namespace(self, bytes name):
        cdef Namespace made = Namespace(name)
        made.topics = Topics(made, self.route_entries, self.seed)
        self.namespaces[name] = made
        return made

    def end_namespace(self, Namespace namespace not None):
        """It is no more, and recorded so. What it had has ended before: its sessions, groups, queues and exchanges are
        their owners' to end. What it retained goes with it."""
        self.forget_namespace(namespace)
        self.commits.local.name_namespace(namespace.number, None)
        self.namespaces_dirty.add(namespace.number)
        if self.ledger.active():
            self.ledger.write(RECORD_NAMESPACE, namespace.number.to_bytes(8, "big") + ENDED)

    cdef int forget_namespace(self, Namespace namespace) except -1:
        """Nobody finds it any more, and the view will forget what it retained."""
        cdef Topics topics = <Topics>namespace.topics
        cdef Retained kept
        for topic, value in list(topics.retained):
            kept = <Retained>value
            self.count_retained(topics, kept, -1)
            topics.retained.pop(topic)
            topics.retained_dirty.add(topic)
        self.ended_topics.append(topics)
        del self.namespaces[namespace.name]
        return 0

    def learn_namespace(self, Line line not None, uint64_t number, bytes said not None):
        """A record or a row of the view says what a number means in a line (Namespace.record). Of the journal: the node
        has it then, or has it no more. Nothing is recorded there, and unless an operator made it, it is not open until
        the configuration says so. Raises CorruptError."""
        cdef Namespace known
        cdef bytes name
        name, kept = read_namespace(said)
        if name is None:
            known = line.namespaces.get(number)
            if known is not None and line.number == 0:
                self.forget_namespace(known)
            line.name_namespace(number, None)
        elif number in line.namespaces:             # it is known, or it has ended later
            known = line.namespaces[number]
            if known is not None and known.name != name:
                raise CorruptError(f"namespace {number} has two names: {known.text!r} and "
                                   f"{name.decode('utf-8', 'replace')!r}")
        else:
            known = self.namespaces.get(name)
            if known is None:
                known = self.make_namespace(name) if line.number == 0 else self.add_namespace(name)
            if line.number == 0:
                known.number = <uint32_t>number
                known.open = False
            line.name_namespace(number, known)
        if line.number == 0:
            self.namespaces_dirty.add(number)
            known = line.namespaces[number]
            if known is not None and kept:
                known.kept = known.open = True

    def take_namespaces(self) -> dict:
        """number -> Namespace.record, or ENDED, of those that changed since the last call: for a
        checkpoint."""
        cdef Line line = self.commits.local
        changed, self.namespaces_dirty = self.namespaces_dirty, set()
        found = {number: line.namespaces[number] for number in changed}
        return {number: ENDED if known is None else known.record for number, known in found.items()}

    def take_retained(self) -> list:
        """[(Topics, topics)] whose retained messages changed since the last call: for a checkpoint."""
        cdef Topics topics
        cdef list found = []
        spaces = [namespace.topics for namespace in self.namespaces.values()] + self.ended_topics
        self.ended_topics = []
        for topics in spaces:
            if topics.retained_dirty:
                found.append((topics, topics.retained_dirty))
                topics.retained_dirty = set()
        return found

    # ---------------------------------------------------------------- sessions and subscriptions

    def new_session(self, bytes name not None, uint64_t number, Namespace namespace=None) -> Session:
        """A session of this hub. number: 0 for one that is never journalled. namespace: None is "/"."""
        return Session(name, self.root if namespace is None else namespace, number, self.ledger)

    def subscribe(self, Session session not None, bytes filter not None, int options, uint32_t identifier) -> bool:
        """options: SUB_* bits. Replaces a subscription to the same filter, [MQTT-3.8.4-3]. True: it is new."""
        self.node.work += WORK_SUBSCRIPTION
        if session.replay is not None:
            (<RetainedReplay>session.replay).change(filter, <uint8_t>options & SUB_QOS_MASK, identifier)
        return trie_of(session.namespace).add(<const uint8_t*><const char*>filter, len(filter), <void*>session,
                                              identifier, <uint8_t>options & 0x0F) == 1

    def unsubscribe(self, Session session not None, bytes filter not None) -> bool:
        self.node.work += WORK_SUBSCRIPTION
        if session.replay is not None:
            (<RetainedReplay>session.replay).forget(filter)
        return trie_of(session.namespace).remove(<const uint8_t*><const char*>filter, len(filter),
                                                 <void*>session) == 1

    def add_group(self, ShareGroup group not None, Namespace namespace=None):
        """Puts a share group into the index; whoever adds it keeps it alive until remove_group. namespace: None is
        "/"."""
        trie_of(self.root if namespace is None else namespace).add(
            <const uint8_t*><const char*>group.filter, len(group.filter), <void*>group, 0,
            HOP_GROUP * SUB_KIND_UNIT)

    def remove_group(self, ShareGroup group not None, Namespace namespace=None):
        trie_of(self.root if namespace is None else namespace).remove(
            <const uint8_t*><const char*>group.filter, len(group.filter), <void*>group)

    def add_queue(self, Queue queue not None, filters):
        """Puts a queue into the index under its filters (bytes, valid): what matches any of them is appended, once.

        A queue that is there already has these instead of its former ones; its bindings stay."""
        cdef tuple former = self.queues.get(queue, ())
        self.queues[queue] = tuple(filters)
        if queue.wake is None:
            queue.wake = self.wake_up
        for filter in former:
            self.index_queue(queue, filter)
        for filter in self.queues[queue]:
            self.index_queue(queue, filter)

    def remove_queue(self, Queue queue not None):
        """With its bindings."""
        cdef tuple filters = self.queues.pop(queue)
        queue.bindings = 0
        queue.patterns = []
        for filter in (*filters, *self.bindings.pop(queue, {})):
            self.index_queue(queue, filter)
        queue.end()

    def bind_queue(self, Queue queue not None, bytes binding_key not None):
        """A queue that has been added is bound to amq.topic: what MQTT clients publish to a topic that the key matches
        is appended to it, and their acknowledgements wait for that. As often as it is bound it must be unbound."""
        found = filter_of(binding_key)
        queue.bindings += 1
        if found is None:
            return                          # no topic can match it
        counts = self.bindings.setdefault(queue, {}).setdefault(found[0], [0, 0])
        counts[found[1] != b""] += 1
        if found[1]:
            queue.patterns = [*queue.patterns, found[1]]
        self.index_queue(queue, found[0])

    def unbind_queue(self, Queue queue not None, bytes binding_key not None):
        """The end of one bind_queue. Raises UsageError when there was none."""
        found = filter_of(binding_key)
        counts = None if found is None else self.bindings.get(queue, {}).get(found[0])
        if queue.bindings == 0 or (found is not None and (counts is None or not counts[found[1] != b""])):
            raise UsageError(f"queue {queue.name!r} is not bound with {binding_key!r}")
        queue.bindings -= 1
        if found is None:
            return
        counts[found[1] != b""] -= 1
        if found[1]:
            patterns = list(queue.patterns)
            patterns.remove(found[1])
            queue.patterns = patterns
        if counts == [0, 0]:
            del self.bindings[queue][found[0]]
        self.index_queue(queue, found[0])

    cdef int index_queue(self, Queue queue, bytes filter) except -1:
        """Puts one filter of a queue into the trie or takes it out, as it is wanted now."""
        self.node.work += WORK_SUBSCRIPTION
        cdef list counts = (<dict>self.bindings.get(queue, {})).get(filter, [0, 0])
        cdef const uint8_t* at = <const uint8_t*><const char*>filter
        cdef bint exact = counts[0] != 0 or filter in self.queues.get(queue, ())
        if exact or counts[1]:
            trie_of(queue.namespace).add(at, len(filter), <void*>queue, 0,
                                         HOP_QUEUE * SUB_KIND_UNIT | (0 if exact else SUB_WIDE))
        else:
            trie_of(queue.namespace).remove(at, len(filter), <void*>queue)
        return 0

    def bind_relay(self, TopicRelay relay not None, bytes binding_key not None):
        """What MQTT clients publish to a topic that the key may match goes to the relay too, which finds out whether it
        does. As often as it is bound it must be unbound."""
        cdef dict counts = self.relays.setdefault(relay, {})
        cdef bytes filter
        found = filter_of(binding_key)
        if found is None:
            return
        filter = found[0]
        counts[filter] = counts.get(filter, 0) + 1
        trie_of(relay.namespace).add(<const uint8_t*><const char*>filter, len(filter), <void*>relay, 0,
                                     HOP_RELAY * SUB_KIND_UNIT)

    def unbind_relay(self, TopicRelay relay not None, bytes binding_key not None):
        """The end of one bind_relay."""
        cdef dict counts = self.relays[relay]
        cdef bytes filter
        found = filter_of(binding_key)
        if found is None:
            return
        filter = found[0]
        counts[filter] -= 1
        if counts[filter] == 0:
            del counts[filter]
            trie_of(relay.namespace).remove(<const uint8_t*><const char*>filter, len(filter), <void*>relay)

    def add_peer(self, PeerHop peer not None, bytes filter not None, Namespace namespace=None) -> bool:
        """Somebody on another node wants what matches a filter (valid, without `$share/…/`): what is published here
        goes to the peer too. namespace: None is "/". True: it is new. The hub keeps the peer until its last filter is
        removed."""
        cdef set filters = self.peers.setdefault(peer, set())
        if namespace is None:
            namespace = self.root
        filters.add((namespace, filter))
        return trie_of(namespace).add(<const uint8_t*><const char*>filter, len(filter), <void*>peer, 0,
                                      HOP_PEER * SUB_KIND_UNIT) == 1

    def remove_peer(self, PeerHop peer not None, bytes filter=None, Namespace namespace=None) -> bool:
        """Nobody there wants it any more; filter None: nothing at all. True: something was there."""
        cdef set filters = self.peers.get(peer, set())
        cdef bytes each
        cdef tuple wanted = (self.root if namespace is None else namespace, filter)
        cdef list gone = list(filters) if filter is None else [wanted] if wanted in filters else []
        for one in gone:
            filters.remove(one)
            each = one[1]
            trie_of(<Namespace?>one[0]).remove(<const uint8_t*><const char*>each, len(each), <void*>peer)
        if not filters:
            self.peers.pop(peer, None)
        return len(gone) != 0

    def spend(self, uint64_t units):
        """The cold half has done work that cannot be seen from the packet that asked for it (memory/node.pxd)."""
        self.node.work += units

    @property
    def work(self) -> int:
        """What was done so far, in units of about 20 ns."""
        return self.node.work

    def wake_up(self):
        """Asks for a turn, if none is under way."""
        self.touch()

    cdef int pump_queues(self) except -1:
        """Queues with news hand out what they can, so that it is recorded in this turn's batch."""
        cdef Queue queue
        cdef list news = self.ledger.news
        if news:
            self.ledger.news = []
            for queue in news:
                queue.pump()
        if self.letters:
            self.send_letters()
        return 0

    def publish_later(self, publish not None):
        """publish: called when nothing is being published any more, before this batch of the journal is handed over."""
        self.letters.append(publish)
        self.touch()

    cdef int send_letters(self) except -1:
        """What is sent may make letters of its own, which are sent in the next turn."""
        cdef int done = 0
        letters, self.letters = self.letters, []
        try:
            for publish in letters:
                done += 1
                publish()
        finally:
            self.letters = letters[done:] + self.letters
        return 0

    def deliver_retained(self, Session session not None, bytes filter not None, int options,
                         uint32_t identifier):
        """From now on a session is sent what is retained under a filter, with the retain flag set, [MQTT-3.3.1-8]: in
        slices, as it takes them (pubsub/retained_replay.pxd)."""
        cdef RetainedReplay replay
        if session.replay is None:
            session.replay = RetainedReplay(
                (<Topics>session.namespace.topics).retained, self.ledger, self.due)
        replay = <RetainedReplay>session.replay
        replay.add(filter, <uint8_t>options & SUB_QOS_MASK, identifier)
        replay.on_room(session)
        self.touch()

    cdef bint has_work(self) noexcept:
        """Whether a round would find something to do without anything having come."""
        return len(self.resumed) != 0 or (len(self.due) != 0 and not self.is_behind())

    cdef bint is_behind(self) noexcept:
        """Whether the disk has so much to write that what can wait does."""
        return self.ledger.journal is not None and self.ledger.journal.backlog() > self.backlog_max

    cdef int replay_retained(self) except -1:
        """A slice of what is retained for each who waits for it and has room, until the round has done enough. What is
        sent to a session that is journalled goes to the disk first, and waits while that is behind."""
        cdef Session session
        cdef int steps
        cdef int served = 0
        cdef uint64_t end = self.node.work + WORK_REPLAY
        if self.is_behind():
            return 0
        waiting = self.due[:]
        self.due.clear()
        for session in waiting:
            if served and self.node.work >= end:
                break
            served += 1
            if session.replay is None:
                continue
            steps = REPLAY_STEPS
            if (<RetainedReplay>session.replay).run(session, &steps):
                session.replay.on_room(session)
            self.node.work += 1 + REPLAY_STEPS - steps
        self.due[:0] = waiting[served:]     # they come before who has had a slice
        return served

    def put_retained(self, Topics topics not None, bytes topic not None, Retained kept):
        """At start, from disk: keeps a message, or clears the topic (None). Nothing is recorded."""
        cdef Retained former = topics.retained.pop(topic)
        if former is not None:
            self.count_retained(topics, former, -1)
        if kept is not None:
            kept.node = self.node
            topics.retained.set(topic, kept)
            self.count_retained(topics, kept, 1)

    def expire_retained(self) -> int:
        """Forgets retained messages whose expiry has passed; returns how many."""
        cdef Namespace namespace
        cdef Topics topics
        cdef Retained kept
        cdef int count = 0
        for namespace in self.namespaces.values():
            topics = <Topics>namespace.topics
            if topics.retained_expiring == 0:
                continue
            expired = [topic for topic, value in topics.retained
                       if 0 < (<Retained>value).msg.body.expires_at <= self.node.steady_ms]
            for topic in expired:
                kept = topics.retained.pop(topic)
                self.count_retained(topics, kept, -1)
                # No record: the message carries its own end, replay drops it by the clock.
                topics.retained_dirty.add(topic)
            count += len(expired)
        return count

    # ---------------------------------------------------------------- the disk

    @property
    def durable(self) -> bool:
        """Whether anything is recorded at all."""
        return self.ledger.active()

    def when_durable(self, call, uint64_t since, refused=None) -> bool:
        """Calls `call()` once everything recorded and given to commit lines since a mark (`Commits.mark` then) is
        committed; at once when that is nothing. Returns whether it was called at once.

        refused: called with the reason instead when a line gave it up; None: then nothing is called.
        """
        if self.commits.hold_call(call if refused is None else (call, refused), since) == 0:
            call()
            return True
        self.touch()
        return False

    def when_gathered(self, call, Line line) -> bool:
        """Calls `call()` once everything that a line was given so far is decided; at once when it is. Returns whether
        it was called at once."""
        if line.newest() <= line.done():
            call()
            return True
        self.commits.hold_at(ticket_t(line.newest(), line.number, 0), HELD_CALL, NULL, (call, None), 0, 0)
        self.touch()
        return False

    def when_all_durable(self, call, refused=None) -> bool:
        """Calls `call()` once everything that was changed so far on this node is on disk, whenever that was, and what
        was given to other lines in this turn is committed. Returns whether it was called at once. refused: as for
        when_durable."""
        cdef Commits commits = self.commits
        self.pump_queues()              # groups write what they decided when they are pumped
        if commits.hold_all(call if refused is None else (call, refused)) == 0:
            call()
            return True
        self.touch()
        return False

    cdef bint is_ahead(self) noexcept:
        """Whether the journal has grown much beyond what a checkpoint has begun with."""
        return self.ledger.journal.count_bytes - self.journal_mark > self.journal_ahead_max

    def __dealloc__(self):
        if self.commits is not None:
            self.commits.owner = NULL
        for namespace in (self.namespaces or {}).values():
            namespace.topics = None         # each has the other: nobody would free them before the collector comes

    cdef int on_committed(self, uint32_t line, uint64_t position) except -1:
        """Another line than the journal has decided something: a turn lets go what waited for it."""
        self.touch()
        return 0

    cdef int release(self) except -1:
        """Lets go whatever waited for what is committed now, in the order in which it began to wait.

        Raises, after all of them, the first error that any of them had.
        """
        cdef object problem = None
        cdef Commits commits = self.commits
        cdef held_t held
        cdef bytes data
        while commits.take(&held):
            try:
                if commits.why is not None:
                    self.refuse(&held, commits.why)
                elif held.kind == HELD_ACK:
                    link_ack(held.link, held.packet_type, held.packet_id, held.reason)
                    if (held.packet_type == PUBACK or held.packet_type == PUBCOMP
                            or held.packet_type == PUBREC and held.reason >= 0x80):
                        held.link.inbound -= 1
                elif held.kind == HELD_SEND:
                    (<Session>held.object).release(held.packet_id, held.line)
                elif held.kind == HELD_BYTES:
                    data = <bytes>held.object
                    link_write(held.link, <const uint8_t*><const char*>data, <uint32_t>len(data))
                elif held.kind == HELD_TOLD:
                    (<Waiter>held.object).on_committed(held.line, held.position)
                elif held.kind == HELD_CALL:
                    self.cold = True
                    call = <object>held.object
                    (call[0] if isinstance(call, tuple) else call)()
            except Exception as error:
                problem = problem or error      # those behind it are not to blame
            finally:
                if held.link != NULL:
                    held.link.held -= 1
                    if held.link.held == 0:
                        commits.forget(held.link)
                        link_mark(held.link)    # a connection that ends may have waited for this
                    link_drop(held.link)
                if held.object != NULL:
                    Py_DECREF(<object>held.object)
        if problem is not None:
            raise problem
        return 0

    cdef int refuse(self, held_t* held, str why) except -1:
        """A line has given up what this waited for: nobody may be told that it was done."""
        if held.kind == HELD_SEND:
            (<Session>held.object).refuse(held.packet_id, held.line)
        elif held.kind == HELD_TOLD:
            (<Waiter>held.object).on_given_up(held.line, held.position, 0, 0, why)
        elif held.kind == HELD_CALL:
            self.cold = True
            call = <object>held.object
            if isinstance(call, tuple):
                (call[0]() if call[1] is None else call[1](why))
        elif held.link.owner != NULL and held.link.open:
            self.cold = True
            (<Waiter><PyObject*>held.link.owner).on_given_up(held.line, held.position, held.packet_type,
                                                            held.packet_id, why)
        return 0

    # ---------------------------------------------------------------- seeing inside

    def take_losing(self) -> list:
        """[(session, messages)] of those for which messages were dropped for want of room since the last call."""
        cdef Session session
        losing = [(session, session.lost) for session in self.ledger.losing]
        for session in self.ledger.losing:
            session.lost = 0
        self.ledger.losing.clear()
        return losing

    def counters(self) -> dict:
        """Every counter and gauge of the node, by the name of its field in memory/node.pxd."""
        cdef Topics topics
        result = dict(self.node.counters)
        result.update(self.node.gauges)
        for name in ("route_hits", "route_misses", "filters", "subscriptions"):
            result[name] = 0
        for namespace in self.namespaces.values():
            topics = <Topics>namespace.topics
            result["route_hits"] += topics.routes.hits
            result["route_misses"] += topics.routes.misses
            result["filters"] += topics.trie.filters
            result["subscriptions"] += topics.trie.subscriptions
        result["retained"] = self.retained_count
        result["retained_bytes"] = self.retained_bytes
        result["retained_refused"] = self.retained_refused
        result["held"] = self.commits.waiting
        result["records"] = self.ledger.records
        return result


cdef const hop_t* hop_to(const route_t* route, const void* target) noexcept:
    """The hop with this target, or NULL. Routes.fill puts them in the order of their targets."""
    cdef uint32_t low = 0
    cdef uint32_t high = route.count
    cdef uint32_t middle
    while low < high:
        middle = (low + high) // 2
        if <size_t>route.hops[middle].target < <size_t>target:
            low = middle + 1
        else:
            high = middle
    return &route.hops[low] if low < route.count and route.hops[low].target == target else NULL


cdef uint32_t packet_size(pub_t* pub, bint v5) noexcept:
    """Bytes of the QoS 0 PUBLISH without alias and identifiers, as link_publish makes it."""
    cdef uint32_t properties = pub.body.properties_length + (5 if pub.body.expires_at else 0)
    cdef uint32_t remaining = 2 + pub.body.topic_length + pub.body.payload_length
    if v5:
        remaining += varint_size(properties) + properties
    return 1 + varint_size(remaining) + remaining
