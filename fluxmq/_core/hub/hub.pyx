# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. The hot path of one node, and the methods with which the cold half configures it. See hub/hub.pxd.

It is one file because whatever is published takes the same way to the same hops, whoever it is from and for.
"""
cimport cython
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.string cimport memcpy, memset

from fluxmq._core.errors import UsageError
from fluxmq._core.disk.journal cimport Journal
from fluxmq._core.hub.moving cimport MovingSession
from fluxmq._core.hub.origins cimport ORIGIN_BROUGHT, ORIGIN_PUBLISHED
from fluxmq._core.hub.retained_store cimport of_broker
from fluxmq._core.hub.targets cimport ExchangeHop, PeerHop, trie_of
from fluxmq._core.memory.commits cimport (
    HELD_ACK, HELD_BYTES, HELD_CALL, HELD_NOTIFY, HELD_SEND, Commits, Line, Waiter, held_object, held_t,
    link_owner, ticket_t,
)
from fluxmq._core.memory.link cimport (
    link_ack, link_commit, link_drop, link_mark, link_publish, link_room, link_t, link_write,
)
from fluxmq._core.memory.message cimport (
    BLOB_BYTES_MIN, FORMAT_MQTT, blob_copy, blob_drop, body_borrow, body_t, once_of, once_t, origin_of, pub_own,
)
from fluxmq._core.memory.node cimport WORK_HOP, WORK_RETAIN, WORK_SUBSCRIPTION, read_clocks, stamp_clocks
from fluxmq._core.memory.tickets cimport Tickets
from fluxmq._core.mqtt.consts cimport PUBACK, PUBCOMP, PUBLISH, PUBREC, REASON_SERVER_UNAVAILABLE
from fluxmq._core.pubsub.retained_replay cimport RetainedReplay
from fluxmq._core.pubsub.routes cimport (
    HOP_EXCHANGE, HOP_GROUP, HOP_PEER, HOP_QUEUE, HOP_SESSION, HOP_SPREAD, Routes, hop_target, route_enter,
    route_leave,
)
from fluxmq._core.pubsub.share_group cimport ShareGroup
from fluxmq._core.pubsub.topics cimport Topics, topics_of
from fluxmq._core.pubsub.trie cimport SUB_KIND_UNIT, SUB_NO_LOCAL, SUB_QOS_MASK, SUB_RETAIN_AS_PUBLISHED, SUB_WIDE
from fluxmq._core.queue.queue cimport Queue, queue_mark
from fluxmq._core.wire.primitives cimport varint_size
from fluxmq._core.wire.sizes cimport fit_u8
from fluxmq._core.wire.text cimport TEXT_OK, topic_valid

__all__ = ["Hub"]

cdef enum:
    REPLAY_STEPS = 512              # nodes of the retained tree in one slice of one session's replay
    WORK_REPLAY = 65536             # of a round, for all replays: 1.3 ms
    ENDED_MAX = 65536               # queues that were deleted and are remembered: some 5 MB


cdef void drop_dirty(node_t* node) noexcept:
    """No turn follows that would send what these links have."""
    cdef link_t* link
    while node.dirty != NULL:
        link = <link_t*>node.dirty
        node.dirty = <void*>link.next_dirty
        link.next_dirty = NULL
        link.dirty = 0
        link_drop(link)


cdef int note_number(void** numbers, uint64_t number) except -1:
    """Appends to a list of once_t, which is made with the first number."""
    cdef list found
    if numbers[0] == NULL:
        found = []
        Py_INCREF(found)
        numbers[0] = <void*>found
    (<list>numbers[0]).append(number)
    return 0


cdef list let_go(void* numbers):
    """Such a list, which once_t does not own any more; None: there is none."""
    cdef list found
    if numbers == NULL:
        return None
    found = <list>numbers
    Py_DECREF(found)
    return found


# Connections and sessions point into the ledger until they are freed, even when the collector frees them all at once.
@cython.no_gc_clear
@cython.final
cdef class Hub(Waiter):
    """One per node, for all of its namespaces; each namespace has its own Topics.

    journal: records durable changes; or None. route_entries: size of each namespace's route cache. seed: secret seed
    of the hashes.
    """

    def __cinit__(self, Journal journal, uint32_t route_entries=65536, uint64_t seed=0):
        from fluxmq._core.memory.ledger import Ledger as ledger_class
        self.ledger = ledger_class(journal)
        self.commits = self.ledger.commits
        self.commits.owner = <void*>self
        self.node = &self.ledger.node
        self.root = self.commits.root
        self.retained = RetainedStore(self.ledger)
        self.namespaces = Namespaces(self.ledger, self.retained, route_entries, seed)
        self.targets = Targets(self.ledger)
        self.disk = DiskPressure(journal)
        self.limits = limits_t(qos_max=2, topic_levels_max=32, payload_bytes_max=1 << 20, user_properties_max=64,
                               topic_alias_max=64, topic_alias_out_max=64, receive_max=1000,
                               buffer_high=8 << 20, buffer_low=1 << 20, disconnect_on_full=False)
        self.open_publish = True
        self.resumed = []
        self.closed = []
        self.due = []
        self.deferred_publishes = []
        self.groups = {}
        self.unsealed = []
        self.eased = []
        self.positions = {}
        self.origins = Origins(self.ledger)
        self.nodes = []
        self.sequences = {}
        self.owned = {}
        self.ended = {}

    def set_limits(self, **limits):
        """Sets fields of limits_t by name. Raises UsageError for an unknown name."""
        cdef dict known = self.limits
        if unknown := limits.keys() - known.keys():
            raise UsageError(f"no limits of the hub: {', '.join(unknown)}")
        self.limits = known | limits

    # ---------------------------------------------------------------- clock and wake

    def set_clock(self, int64_t wall_ms, int64_t mono_ms, int64_t slept_ms=0):
        """Sets the time of this turn, in milliseconds, as the poller does after each wait. slept_ms: how long the
        machine has slept in all, which the monotonic clock does not count."""
        stamp_clocks(self.node, wall_ms, mono_ms + slept_ms, mono_ms)

    def refresh_clock(self):
        """Sets the time again, between two turns: the last one may have been long ago. Only if a poller does so in
        turns."""
        if self.clocks is not None:
            wall_ms, boot_ms, mono_ms = self.clocks()
            stamp_clocks(self.node, wall_ms, boot_ms, mono_ms)
        elif self.node.timed:
            read_clocks(self.node)

    def resume_clock(self, int64_t steady_ms, int64_t wall_ms):
        """At start, before any deadline is checked: continues the steady clock from the last pair of clocks on disk.
        The time elapsed since is taken from the wall clock; none if that was set back."""
        cdef int64_t now = max(steady_ms + self.node.now_ms - wall_ms, steady_ms)
        self.node.steady_base += now - self.node.steady_ms
        self.node.steady_ms = now
        self.node.wall_lead = self.node.now_ms - now

    def serve_until(self, int64_t boot_ms):
        """The node's lease in the cluster lasts until this time, in ms of CLOCK_BOOTTIME: from then on no turn begins
        (Poller.turn raises FencedError) and no bytes leave, until this is called again. A node that is not in a
        cluster never calls it."""
        self.node.serve_until_ms = boot_ms

    def wall_of(self, int64_t steady_ms) -> int:
        """Converts a steady time to wall time, by the current difference of the clocks. 0 (none) stays 0."""
        return steady_ms + self.node.wall_lead if steady_ms else 0

    @property
    def recording(self) -> bool:
        """Whether a recording runs; if not, callers need not collect the data for Transport.record_event."""
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
        """Output was written outside of a turn: requests a turn, once."""
        if self.in_turn or self.woken or self.wake is None:
            return
        self.woken = True
        self.wake()

    # ---------------------------------------------------------------- publish

    cdef uint64_t next_passing(self) noexcept:
        self.passing += 1
        return self.passing

    cdef int publish(self, pub_t* pub, route_t* route) except -1:
        """Routes, delivers, retains and records one PUBLISH. Returns how many subscriptions (merged) or groups matched.

        Drops pub.owned; the caller may reuse the bytes that pub.body points to.
        """
        cdef bint own_blob = 0
        cdef uint32_t count = route.count
        # Of another node's message the inbox retains it.
        cdef bint retains = pub.retain and not pub.from_peer and (
            pub.once == NULL or pub.once.known == NULL or not (<Use>pub.once.known).flags & ORIGIN_PUBLISHED)
        cdef uint64_t version = 0
        self.node.work += 1 + WORK_HOP * <uint64_t>count
        if pub.passing == 0:
            pub.passing = self.next_passing()
        if pub.body.payload_length >= BLOB_BYTES_MIN and pub.body.blob == NULL and (count or pub.retain):
            pub.body.blob = blob_copy(pub.body.payload, pub.body.payload_length)
            pub.body.payload = pub.body.blob.data
            own_blob = 1
        route_enter(route)
        try:
            if retains:
                retains = self.retained.admit(pub, &version)
            if version:
                self.spread_all(pub, route, version)
            else:
                self.deliver_all(pub, route)
            if retains:
                self.node.work += WORK_RETAIN
                self.retained.retain(pub, version)
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

    cdef int spread_all(self, pub_t* pub, route_t* route, uint64_t version) except -1:
        """Delivers a change of a retained message, which every other node gets, whether or not it has subscribers. A
        hop may publish others meanwhile."""
        cdef const pub_t* former = self.retained.spreading
        cdef uint64_t former_version = self.retained.version
        cdef PeerHop peer
        self.retained.spreading = pub
        self.retained.version = version
        try:
            self.deliver_all(pub, route)
            for peer in self.nodes:
                if hop_to(route, <void*>peer) == NULL:
                    self.node.work += WORK_HOP
                    self.retained.version = version
                    peer.retain(pub)
        finally:
            self.retained.spreading = former
            self.retained.version = former_version
        return 0

    cdef int publish_to_life(self, pub_t* pub, route_t* route, uint64_t life, Use known, origin_t* origin) except -1:
        cdef once_t once = once_of(origin)
        cdef once_t* former = pub.once
        if known is not None:
            once.known = <void*>known
        once.life = life
        pub.once = &once
        try:
            return self.publish(pub, route)
        finally:
            pub.once = former

    cdef int publish_once(self, pub_t* pub, route_t* route, origin_t* origin) except -1:
        cdef Use known = self.origins.find(origin)
        cdef Commits commits = self.commits
        cdef uint64_t written = commits.mark - commits.tickets
        cdef int matched
        cdef list missed, took
        cdef once_t once
        cdef bint late = known is None and pub.from_peer and self.origins.is_late(origin)
        if late:
            known = self.origins.over
        origin.spread = origin.doubtful
        once = once_of(origin)
        if known is not None:
            once.known = <void*>known
        pub.once = &once
        try:
            matched = self.publish(pub, route)
        finally:
            pub.once = NULL
            missed, took = let_go(once.missed), let_go(once.took)
        if late:
            return matched
        # That a will was published here is recorded in any case: whoever restarts must know it.
        self.origins.note(origin, known, self.session_number_last, not pub.from_peer, missed, took,
                          (commits.mark - commits.tickets != written or (origin.packet_id == 0 and not pub.from_peer))
                          and self.ledger.active())
        if known is not None:
            self.ledger.wait_for_earlier(commits.local)     # the first one's batch may not be durable yet
        return matched

    cdef int publish_of_client(self, pub_t* pub, route_t* route, uint64_t incarnation, bint counted, bint again,
                               bint dup, uint16_t packet_id) except -1:
        cdef origin_t origin
        if self.ledger.identity_last == 0:
            return self.publish(pub, route)         # alone now
        origin = origin_t(name=incarnation, use=0, packet_id=packet_id, spread=False, doubtful=dup or again)
        if origin.doubtful:
            origin.use = self.origins.use_of(incarnation, packet_id, again)
        # Without DUP it is new [MQTT-3.3.1-1], whatever this node has under that identifier.
        if origin.use == 0 and not again and (counted or not dup):
            origin.use = self.ledger.next_identity()
        return self.publish_once(pub, route, &origin)

    cdef int release_of_client(self, uint64_t incarnation, uint16_t packet_id) except -1:
        cdef uint64_t use = self.origins.use_of(incarnation, packet_id, False)
        cdef PeerHop peer
        if self.origins.end(incarnation, packet_id, use):
            for peer in self.nodes:
                self.node.work += WORK_HOP
                peer.release(incarnation, packet_id, use)
        return 0

    cdef int deliver_narrow(self, pub_t* pub, route_t* route) except -1:
        """To those who have not had it, among them all other nodes: they know themselves."""
        cdef uint32_t i
        if pub.once.life:
            return self.deliver_to_life(pub, route)
        for i in range(route.count):
            if self.lacks(pub, &route.hops[i]):
                self.deliver_hop(&route.hops[i], pub)
                if route.generation != (<Routes>route.routes).trie.generation:
                    return self.deliver_rest(pub, route, i + 1)
        return 0

    cdef bint lacks(self, const pub_t* pub, const hop_t* hop) except -1:
        """Whether the target of a hop is to get a message: if it comes again, whoever has not had it."""
        if pub.once == NULL or pub.once.known == NULL:
            return 1
        if hop.kind == HOP_SESSION:
            return not (<Use>pub.once.known).had_by((<Session>hop_target(hop, HOP_SESSION)).number)
        return hop.kind != HOP_QUEUE or not self.has_had(pub, <Queue>hop_target(hop, HOP_QUEUE))

    cdef bint has_had(self, const pub_t* pub, Queue queue) except -1:
        cdef Use known
        if pub.once == NULL or pub.once.known == NULL or queue.relay is not None:
            return 0                # the owner of another queue knows itself
        known = <Use>pub.once.known
        if queue.identity == 0:
            return known.flags & (ORIGIN_PUBLISHED | ORIGIN_BROUGHT) != ORIGIN_BROUGHT
        if not known.has_queue(queue_mark(queue.identity)):
            return 0
        if queue.line.number and not pub.from_peer and queue.is_awaited(pub):
            self.ledger.wait_for_earlier(queue.line)    # what it has may not be committed, and be given up
        return 1

    cdef int deliver_to_life(self, pub_t* pub, route_t* route) except -1:
        cdef uint32_t i
        cdef Session session
        for i in range(route.count):
            if route.hops[i].kind == HOP_SESSION:
                session = <Session>hop_target(&route.hops[i], HOP_SESSION)
                if session.moving is not None and (<MovingSession>session.moving).came_from(pub.once.life) and (
                        pub.once.known == NULL or not (<Use>pub.once.known).had_by(session.number)):
                    self.deliver_to_moving(session, pub, &route.hops[i])
        return 0

    cdef int deliver_to_session(self, Session session, pub_t* pub, const hop_t* hop) except -1:
        if session.moving is None:
            return session.deliver_hop(pub, hop)
        if (<MovingSession>session.moving).takes(pub, hop):
            return self.deliver_to_moving(session, pub, hop)
        return 0 if origin_of(pub) == NULL else note_number(&pub.once.missed, session.number)

    cdef int deliver_to_moving(self, Session session, pub_t* pub, const hop_t* hop) except -1:
        cdef uint64_t before = session.sequence_last
        cdef int given = session.deliver_hop(pub, hop)
        if given and origin_of(pub) != NULL and session.sequence_last != before:    # not dropped for lack of room
            (<MovingSession>session.moving).note(session.sequence_last, pub.once.origin)
        return given

    cdef int publish_to_group(self, pub_t* pub, ShareGroup group, bint here) except -1:
        cdef bint own_blob = 0
        cdef int taken
        self.node.work += 1 + WORK_HOP
        if pub.body.payload_length >= BLOB_BYTES_MIN and pub.body.blob == NULL:
            pub.body.blob = blob_copy(pub.body.payload, pub.body.payload_length)
            pub.body.payload = pub.body.blob.data
            own_blob = 1
        try:
            taken = group.deliver(pub) if here else group.spread(pub)
            if self.ledger.targets_count:
                self.ledger.write_message(pub_own(pub))
        except BaseException:
            self.ledger.targets_count = 0
            raise
        finally:
            if pub.owned != NULL:
                self.ledger.forget(pub.owned)
                pub.owned = NULL
            if own_blob:
                blob_drop(pub.body.blob)
                pub.body.blob = NULL
        return taken

    cdef int deliver_all(self, pub_t* pub, route_t* route) except -1:
        cdef uint32_t i
        cdef hop_t* hop
        cdef link_t* link
        cdef Session session
        cdef const uint8_t* made = NULL     # the last encoded QoS 0 packet, reusable for any link of the same version
        cdef uint8_t made_version = 0
        cdef uint32_t made_size = 0
        cdef uint8_t* at
        cdef int64_t written
        cdef uint64_t copied = 0
        cdef bint plain = pub.body.blob == NULL and not pub.retain
        if pub.once != NULL and (pub.once.known != NULL or pub.once.life):
            return self.deliver_narrow(pub, route)
        if route.count == 1:
            hop = &route.hops[0]
            if hop.kind == HOP_SESSION:
                return self.deliver_to_session(<Session>hop_target(hop, HOP_SESSION), pub, hop)
            return self.deliver_hop(hop, pub)
        for i in range(route.count):
            hop = &route.hops[i]
            if hop.kind != HOP_SESSION:
                self.deliver_hop(hop, pub)
                made = NULL             # the hop may have closed the link that holds the bytes
                if route.generation != (<Routes>route.routes).trie.generation:
                    self.deliver_rest(pub, route, i + 1)
                    break
                continue
            session = <Session>hop_target(hop, HOP_SESSION)
            link = session.link
            if (not plain or link == NULL or (pub.qos and hop.options & SUB_QOS_MASK) or hop.ids != NULL
                    or hop.options & SUB_NO_LOCAL or link.aliases != NULL or link.pending > link.high):
                self.deliver_to_session(session, pub, hop)
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
            # The packet just encoded is contiguous at the end of that link's tail and stays there until the flush.
            made_version = link.version == 5
            made_size = packet_size(pub, made_version)
            made = link.tail.data + link.tail.end - made_size
        self.node.counters.packets_sent[PUBLISH] += copied
        self.node.counters.messages_sent[0] += copied
        return 0

    cdef int deliver_hop(self, const hop_t* hop, pub_t* pub) except -1:
        """Delivers a message to the target of a hop. Targets other than sessions and groups may publish, subscribe and
        end sessions."""
        cdef Queue queue
        cdef ExchangeHop exchanges
        cdef PeerHop peer
        cdef uint8_t reason
        if hop.kind == HOP_SESSION:
            return self.deliver_to_session(<Session>hop_target(hop, HOP_SESSION), pub, hop)
        if hop.kind == HOP_GROUP:
            if pub.from_peer:
                return 0            # the publisher's node chooses one member, on whatever node
            if origin_of(pub) != NULL:
                return self.deliver_to_group(<ShareGroup>hop_target(hop, HOP_GROUP), pub, False)
            return (<ShareGroup>hop_target(hop, HOP_GROUP)).deliver(pub)
        if hop.kind == HOP_QUEUE:
            if pub.from_peer:
                return 0            # the publisher's node gives it to each queue, wherever that is
            queue = <Queue>hop_target(hop, HOP_QUEUE)
            reason = fit_u8(queue.take(pub, hop.options & SUB_WIDE))
            if reason:
                pub.refused = reason
        elif hop.kind == HOP_EXCHANGE:
            if pub.from_peer:
                return 0            # as for queues
            exchanges = <ExchangeHop>hop_target(hop, HOP_EXCHANGE)
            exchanges.forward(pub)
        elif hop.kind == HOP_SPREAD:
            if pub.from_peer:
                return 0
            if origin_of(pub) != NULL:
                return self.deliver_to_group(<ShareGroup>hop_target(hop, HOP_SPREAD), pub, True)
            return (<ShareGroup>hop_target(hop, HOP_SPREAD)).spread(pub)
        elif not pub.from_peer:
            peer = <PeerHop>hop_target(hop, HOP_PEER)
            peer.forward(pub)
        return 0

    cdef int deliver_to_group(self, ShareGroup group, pub_t* pub, bint spread) except -1:
        """A message that may come again, or has come again. spread: the group has members on other nodes."""
        cdef Session keeper = None
        cdef const origin_t* origin = pub.once.origin
        cdef int taken
        if pub.once.known != NULL and (<Use>pub.once.known).has_group(group.mark):
            return 0
        if origin.doubtful and pub.qos == 2 and self.doubt is not None and self.nodes:
            keeper = self.doubt((<Topics>pub.topics).namespace, group, origin.name, origin.packet_id, origin.use)
        if keeper is not None:
            taken = keeper.deliver(pub, 2 | SUB_RETAIN_AS_PUBLISHED, NULL)
        else:
            taken = group.spread(pub) if spread else group.deliver(pub)
        # On this node: a session has it, or what stands for members that will perhaps come back.
        if taken == 1 or (taken >= 2 and not isinstance(group.takers[taken - 2], PeerHop)):
            note_number(&pub.once.took, group.mark)
        return taken

    cdef int deliver_rest(self, pub_t* pub, route_t* route, uint32_t begin) except -1:
        """Called after a hop changed subscriptions, so that targets may be freed: delivers from `begin` on only to
        targets that still match, with their present options. Subscribers added meanwhile do not get the message."""
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
                if hop != NULL and self.lacks(pub, hop):
                    self.deliver_hop(hop, pub)
        finally:
            if now != NULL:
                route_leave(now)
        return 0

    def publish_message(self, bytes topic not None, bytes payload not None, int qos=0, bint retain=False,
                        bytes properties=b"", int64_t expires_at=0, Session source=None,
                        Namespace namespace=None, bint from_peer=False, uint64_t identity=0) -> int:
        """Publishes for the cold half: wills, $SYS, other protocols.

        topic: a valid topic name, UTF-8. properties: MQTT 5 wire bytes that are forwarded unchanged (no expiry, alias
        or subscription identifier). expires_at: steady clock, ms; 0 = never. namespace: None is the source's, and
        without a source "/". from_peer: another node forwarded it, so it is not forwarded to peers. identity: of
        next_identity(), of a message that may be published again, also by other nodes: who has had it does not get it
        again. Returns how many subscriptions matched. Raises UsageError for an invalid topic or QoS.
        """
        cdef pub_t pub
        cdef origin_t origin
        cdef route_t* route
        if topic_valid(<const uint8_t*><const char*>topic, len(topic), 0) != TEXT_OK or not 0 <= qos <= 2:
            raise UsageError(f"cannot publish to {topic!r} with QoS {qos}")
        memset(&pub, 0, sizeof(pub))
        body_borrow(&pub.body, topic, properties, payload, expires_at, FORMAT_MQTT)
        if namespace is None:
            namespace = source.namespace if source is not None else self.root
        pub.topics = topics_of(namespace)
        pub.source = <void*>source if source is not None else NULL
        pub.qos = <uint8_t>qos
        pub.retain = retain
        pub.from_peer = from_peer
        route = (<Topics>pub.topics).routes.find(pub.body.topic, pub.body.topic_length)
        if identity:
            origin = origin_t(name=identity, use=1, packet_id=0, spread=False, doubtful=True)
            matched = self.publish_once(&pub, route, &origin)
        else:
            matched = self.publish(&pub, route)
        self.touch()
        return matched

    def put_letter(self, Queue queue not None, bytes topic not None, bytes payload not None,
                   bytes properties not None, *, uint64_t name, uint64_t use, bint noted, int qos=1,
                   int format=0) -> int:
        """Appends a dead letter to a queue that is led here, as it is: with the partition key and the priority in its
        properties, whatever the limits. Gives a ticket of the queue's line.

        topic, properties: valid, encoded as `format` (FORMAT_*). name, use: its origin; a queue that has had it does
        not get it again, and the ticket is for what it has. noted: the letter is settled in another batch, so that it
        may come again, and its origin is kept until Origins.release. Returns 0, or the MQTT 5 reason code of the
        refusal."""
        cdef body_t body
        cdef origin_t origin = origin_t(name=name, use=use, packet_id=0, spread=True, doubtful=True)
        cdef uint64_t written = self.commits.mark - self.commits.tickets
        cdef uint32_t mark = queue_mark(queue.identity)
        cdef Use known = self.origins.find(&origin)
        cdef int reason
        if known is not None and known.has_queue(mark):
            self.ledger.wait_for_earlier(queue.line)
            return 0
        if self.origins.is_late(&origin):
            return 0
        if queue.ending:
            return REASON_SERVER_UNAVAILABLE        # it is tried again until it is known what has become of the queue
        body_borrow(&body, topic, properties, payload, 0, <uint8_t>format)
        reason = queue.put_forced(&body, <uint8_t>qos)
        if reason == 0 and noted:
            queue.note_origin(&origin)
            self.origins.note_group(&origin, mark,
                                    self.commits.mark - self.commits.tickets != written and self.ledger.active())
        return reason

    def begin_identities(self, uint64_t epoch):
        """The node is in a cluster, in this life: next_identity() gives numbers out. No other life, of whatever node,
        gives out the same: lives begin far apart, at multiples of 2^64 divided by the golden ratio."""
        self.ledger.identity_last = epoch * <uint64_t>0x9E3779B97F4A7C15
        self.ledger.life = epoch

    def next_identity(self) -> int:
        """A number that no node of the cluster gives out again; 0 if this node is alone."""
        return self.ledger.next_identity()

    def note_ended(self, uint64_t identity):
        """The queue of the cluster with this identity was deleted, for all nodes. What another node has sent to it
        before it heard of that is not refused. The oldest are forgotten: the way between two nodes is not that long."""
        self.ended[identity] = None
        if len(self.ended) > ENDED_MAX:
            del self.ended[next(iter(self.ended))]

    def is_ended(self, uint64_t identity) -> bool:
        """Whether this node has heard that the queue with this identity was deleted, and has not forgotten it."""
        return self.has_ended(identity)

    cdef bint has_ended(self, uint64_t identity) except -1:
        return identity in self.ended

    # ---------------------------------------------------------------- sessions and subscriptions

    def new_session(self, bytes name not None, uint64_t number, Namespace namespace=None) -> Session:
        """A session of this hub. number: 0 for one that is never journalled. namespace: None is "/"."""
        return Session(name, self.root if namespace is None else namespace, number, self.ledger)

    def subscribe(self, Session session not None, bytes filter not None, int options, uint32_t identifier) -> bool:
        """options: SUB_* bits. Replaces a subscription to the same filter, [MQTT-3.8.4-3]. True: there was none."""
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
        """Puts a share group into the index and into `groups`; again when another node is the first to have members of
        it, or the last one has none any more. namespace: None is "/"."""
        cdef Namespace space = self.root if namespace is None else namespace
        self.groups[space, group.name, group.filter] = group
        trie_of(space).add(<const uint8_t*><const char*>group.filter, len(group.filter), <void*>group, 0,
                           (HOP_SPREAD if group.takers else HOP_GROUP) * SUB_KIND_UNIT)

    def remove_group(self, ShareGroup group not None, Namespace namespace=None):
        cdef Namespace space = self.root if namespace is None else namespace
        self.groups.pop((space, group.name, group.filter), None)
        trie_of(space).remove(<const uint8_t*><const char*>group.filter, len(group.filter), <void*>group)

    def spend(self, uint64_t units):
        """Adds work of the cold half beyond the fixed cost of the packet that caused it (memory/node.pxd)."""
        self.node.work += units

    @property
    def work(self) -> int:
        """Work done so far, in units of about 20 ns."""
        return self.node.work

    def wake_up(self):
        """Requests a turn if none is under way."""
        self.touch()

    cdef int pump_queues(self) except -1:
        """Pumps the queues that changed: they deliver what they can, so that it is recorded in this turn's batch."""
        cdef Queue queue
        cdef list queues = self.ledger.unpumped
        if queues:
            self.ledger.unpumped = []
            for queue in queues:
                queue.pump()
        if self.deferred_publishes:
            self.publish_deferred()
        return 0

    def release_decided(self):
        """What waits for positions that are decided is released now, not at the end of the turn: who is about to change
        the queues behind a line needs those who hold something of them to know what was given up."""
        self.release()

    def publish_later(self, publish not None):
        """publish: called when no publish is under way, before this batch of the journal is submitted."""
        self.deferred_publishes.append(publish)
        self.touch()

    cdef int publish_deferred(self) except -1:
        """A publish deferred by one of these runs in the next turn."""
        cdef int done = 0
        deferred, self.deferred_publishes = self.deferred_publishes, []
        try:
            for publish in deferred:
                done += 1
                publish()
        finally:
            self.deferred_publishes = deferred[done:] + self.deferred_publishes
        return 0

    cdef int end_turn_of_peers(self) except -1:
        """Calls the hops to other nodes that asked for it, also those that ask meanwhile: no other turn may come."""
        cdef PeerHop peer
        cdef list peers
        cdef int done
        while self.unsealed:
            peers = self.unsealed
            self.unsealed = []
            done = 0
            try:
                for peer in peers:
                    done += 1
                    peer.end_turn()
            finally:
                self.unsealed = peers[done:] + self.unsealed
        return 0

    def deliver_retained(self, Session session not None, bytes filter not None, int options, uint32_t identifier,
                         int64_t before=-1):
        """Starts sending a session the retained messages under a filter, with the retain flag set, [MQTT-3.3.1-8]: in
        slices, as the session has room (pubsub/retained_replay.pxd). before: RetainedTree.stamp when the subscription
        was made, if that was earlier: what was set since was published to it."""
        cdef RetainedReplay replay
        if session.replay is None:
            session.replay = RetainedReplay(
                (<Topics>topics_of(session.namespace)).retained, self.ledger, self.due)
        replay = <RetainedReplay>session.replay
        replay.add(filter, <uint8_t>options & SUB_QOS_MASK, identifier,
                   (<Topics>topics_of(session.namespace)).retained.stamp if before < 0 else <uint64_t>before)
        replay.on_room(session)
        self.touch()

    cdef int replay_topic(self, route_t* route) except -1:
        """What is retained of this topic has its payload at another node, where none of these subscriptions was known
        yet when it was published: they get it as what they find. That node has not told that it knows them, so their
        SUBACK has not left."""
        cdef const hop_t* hop
        cdef bytes topic = (<const char*>route.topic)[:route.topic_length]
        cdef uint32_t i
        route_enter(route)
        try:
            for i in range(route.count):
                hop = &route.hops[i]
                if hop.kind == HOP_SESSION:
                    self.deliver_retained(<Session>hop_target(hop, HOP_SESSION), topic, hop.options,
                                          hop.ids.items[0] if hop.ids != NULL and hop.ids.shown else 0)
        finally:
            route_leave(route)
        return 0

    cdef bint has_work(self) noexcept:
        """Whether another round has work even without new input."""
        return len(self.resumed) != 0 or (len(self.due) != 0 and not self.disk.is_behind())

    cdef int replay_retained(self) except -1:
        """Sends a slice of retained messages to each due session with room, until the work of the round is used up.
        Messages to a journalled session are recorded first, so these sessions wait while the disk is behind."""
        cdef Session session
        cdef int steps
        cdef int served = 0
        cdef uint64_t end = self.node.work + WORK_REPLAY
        if self.disk.is_behind():
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
        self.due[:0] = waiting[served:]     # before those that have had a slice
        return served

    # ---------------------------------------------------------------- the disk

    @property
    def durable(self) -> bool:
        """Whether the node has a journal."""
        return self.ledger.active()

    def when_durable(self, call, uint64_t since, refused=None) -> bool:
        """Calls `call()` once everything recorded and given to commit lines since a mark (`Commits.mark` at that time)
        is committed; at once if there is nothing to wait for. Returns whether it was called at once.

        refused: called with the reason instead if a line gives it up; None: then nothing is called.
        """
        if self.commits.hold_call(call if refused is None else (call, refused), since) == 0:
            call()
            return True
        self.touch()
        return False

    def when_decided(self, call, Tickets tickets not None, refused=None):
        """As when_durable, of work that went over several turns: waits for what its steps gave. Refused at once if a
        line has given up some of that."""
        if tickets.why is not None:
            if refused is not None:
                refused(tickets.why)
        elif tickets.collect():
            self.commits.queue_call(call if refused is None else (call, refused))
            self.touch()
        else:
            call()

    def when_answered(self, call, Session session not None):
        """Calls `call()` once every change on this node so far is on disk, and everything that answers to connections
        the session had wait for is decided: committed or given up. Perhaps at once."""
        cdef Commits commits = self.commits
        commits.needed_count = 0
        if session.unanswered is not None:
            session.unanswered.collect()
        if commits.local.newest() > commits.local.done():
            commits.need_also(ticket_t(commits.local.newest(), 0, 1, 0))
        if commits.needed_count:
            commits.queue_call((call, lambda why: call()))
            self.touch()
        else:
            call()

    def when_gathered(self, call, Line line) -> bool:
        """Calls `call()` once everything given to a line so far is decided; at once if it is. Returns whether it was
        called at once."""
        if line.newest() <= line.done():
            call()
            return True
        self.commits.hold_at(ticket_t(line.newest(), line.number, 0, 0), HELD_CALL, NULL, (call, None), 0, 0)
        self.touch()
        return False

    def when_all_durable(self, call, refused=None) -> bool:
        """Calls `call()` once every change on this node so far, in whatever turn, is on disk, and everything given to
        other lines in this turn is committed. Returns whether it was called at once. refused: as for when_durable."""
        cdef Commits commits = self.commits
        self.pump_queues()              # groups write their records when they are pumped
        if commits.hold_all(call if refused is None else (call, refused)) == 0:
            call()
            return True
        self.touch()
        return False

    def end(self):
        """The node has stopped, and no turn follows: asks for none any more, and drops what still waits for commits,
        unanswered. Without it the garbage collector frees nothing that such a wait refers to, which is the whole
        broker; and a node whose turns fail would ask for the next one for ever."""
        self.wake = None
        self.replication = None
        self.commits.end()
        drop_dirty(self.node)

    def __dealloc__(self):
        if self.commits is not None:
            self.commits.owner = NULL
            drop_dirty(self.node)
        for namespace in (self.namespaces or {}).values():
            namespace.topics = None         # breaks the reference cycle, so that no garbage collection is needed

    cdef int on_committed(self, uint32_t line, uint64_t position) except -1:
        """Another line than the journal has decided positions: requests a turn, which releases what waited for it."""
        self.touch()
        return 0

    cdef int release(self) except -1:
        """Releases everything whose wait is decided, in the order in which the waits began.

        Raises the first error of any of them, after all have been released.
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
                    (<Session>held_object(&held, HELD_SEND)).release(held.packet_id, held.line)
                elif held.kind == HELD_BYTES:
                    data = <bytes>held_object(&held, HELD_BYTES)
                    link_write(held.link, <const uint8_t*><const char*>data, <uint32_t>len(data))
                elif held.kind == HELD_NOTIFY:
                    (<Waiter>held_object(&held, HELD_NOTIFY)).on_committed(held.line, held.position)
                elif held.kind == HELD_CALL:
                    self.cold = True
                    call = <object>held_object(&held, HELD_CALL)
                    (call[0] if isinstance(call, tuple) else call)()
            except Exception as error:
                problem = problem or error      # release the rest all the same
            finally:
                if held.link != NULL:
                    held.link.held -= 1
                    if held.link.held == 0:
                        commits.forget(held.link)
                        link_mark(held.link)    # a draining connection may close once this is sent
                    link_drop(held.link)
                if held.object != NULL:
                    Py_DECREF(<object>held.object)
        if problem is not None:
            raise problem
        return 0

    cdef int refuse(self, held_t* held, str why) except -1:
        """A line has given up what this waited for: refuses it, instead of confirming it."""
        if held.kind == HELD_SEND:
            (<Session>held_object(held, HELD_SEND)).refuse(held.packet_id, held.line)
        elif held.kind == HELD_NOTIFY:
            (<Waiter>held_object(held, HELD_NOTIFY)).on_given_up(held.line, held.position, 0, 0, why)
        elif held.kind == HELD_CALL:
            self.cold = True
            call = <object>held_object(held, HELD_CALL)
            if isinstance(call, tuple):
                (call[0]() if call[1] is None else call[1](why))
        elif held.link.owner != NULL and held.link.open:
            self.cold = True
            (<Waiter>link_owner(held.link)).on_given_up(held.line, held.position, held.packet_type, held.packet_id, why)
        elif held.kind == HELD_ACK and held.object != NULL and self.commits.why_code:
            # A queue has refused a publish of QoS 2 whose connection has ended. The client does not know, and sends it
            # again, here or where its session is by then: it goes to the queue again, and to nobody who has it. What is
            # given up keeps its identifier: some may have it.
            self.cold = True
            (<Session>held_object(held, HELD_ACK)).complete(held.packet_id)
        return 0

    # ---------------------------------------------------------------- inspection

    def take_unlogged_drops(self) -> list:
        """[(session, messages)] of sessions for which messages were dropped, for lack of room, since the last call."""
        cdef Session session
        drops = [(session, session.unlogged_drops) for session in self.ledger.sessions_with_drops]
        for session in self.ledger.sessions_with_drops:
            session.unlogged_drops = 0
        self.ledger.sessions_with_drops.clear()
        return drops

    def counters(self) -> dict:
        """Every counter and gauge of the node, by the name of its field in memory/node.pxd."""
        cdef Topics topics
        result = dict(self.node.counters)
        result.update(self.node.gauges)
        for name in ("route_hits", "route_misses", "filters", "subscriptions"):
            result[name] = 0
        for namespace in self.namespaces.values():
            topics = <Topics>topics_of(namespace)
            result["route_hits"] += topics.routes.hits
            result["route_misses"] += topics.routes.misses
            result["filters"] += topics.trie.filters
            result["subscriptions"] += topics.trie.subscriptions
        result["retained"] = self.retained.count
        result["retained_bytes"] = self.retained.bytes
        result["retained_refused"] = self.retained.refused
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
    """Bytes of the QoS 0 PUBLISH without alias and identifiers, as link_publish encodes it."""
    cdef uint32_t properties = pub.body.properties_length + (5 if pub.body.expires_at else 0)
    cdef uint32_t remaining = 2 + pub.body.topic_length + pub.body.payload_length
    if v5:
        remaining += varint_size(properties) + properties
    return 1 + varint_size(remaining) + remaining
