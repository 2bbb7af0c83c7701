# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. A session's hot operations: deliver, acknowledge, resume. The states are drawn in pubsub/session.pxd.

Nothing here calls Python code, so a route may be walked while sessions change their state.
It is one file because window, queue and replay are one state machine: each transition takes room that the others need,
or frees it.
"""
cimport cython
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from types import MappingProxyType

from fluxmq._core.errors import ProtocolError

from fluxmq._core.debug cimport check, is_transition
from fluxmq._core.disk.record_kinds cimport RECORD_COMPLETED, RECORD_RECEIVED, RECORD_RELEASED, RECORD_SETTLED
from fluxmq._core.memory.commits cimport HELD_SEND, ticket_t
from fluxmq._core.memory.link cimport link_ack, link_drop, link_hold, link_publish
from fluxmq._core.memory.message cimport body_bytes, ids_drop, ids_hold, msg_hold, pub_own
from fluxmq._core.memory.namespace cimport Namespace, lacks_room
from fluxmq._core.mqtt.consts cimport PUBLISH, PUBREL, REASON_PACKET_IDENTIFIER_NOT_FOUND, REASON_PROTOCOL_ERROR
from fluxmq._core.pubsub.routes cimport hop_t, own_hop
from fluxmq._core.pubsub.trie cimport SUB_NO_LOCAL, SUB_QOS_MASK, SUB_RETAIN_AS_PUBLISHED

__all__ = ["TRANSITIONS", "ClaimKeeper", "Replay", "Session", "SessionFacts"]

STATES = ("FREE", "HELD", "SENT", "WAITING", "RELEASE_HELD", "RELEASED", "UNSENT")       # by number
TRANSITIONS = {
    ("FREE", "send"): "SENT",
    ("FREE", "record"): "HELD",
    ("HELD", "commit"): "SENT",
    ("HELD", "refuse"): "FREE",
    ("HELD", "attach"): "UNSENT",
    ("SENT", "PUBACK"): "FREE",
    ("SENT", "PUBREC"): "RELEASED",
    ("SENT", "record PUBREC"): "RELEASE_HELD",
    ("SENT", "PUBREC with an error, too large"): "FREE",
    ("SENT", "attach"): "WAITING",
    ("WAITING", "attach"): "WAITING",
    ("WAITING", "window"): "SENT",
    ("UNSENT", "attach"): "UNSENT",
    ("UNSENT", "window"): "SENT",
    ("RELEASE_HELD", "commit"): "RELEASED",
    ("RELEASE_HELD", "attach"): "RELEASE_HELD",
    ("RELEASED", "attach"): "RELEASE_HELD",
    ("RELEASED", "PUBCOMP"): "FREE",
}

cdef bint may_follow(uint8_t state, uint8_t after) noexcept:
    return is_transition(STATES, TRANSITIONS, state, after)

cdef inline void enter(slot_t* slot, uint8_t state) noexcept:
    check(may_follow(slot.state, state))        # in a debug build
    slot.state = state

cdef inline bint in_flight(const slot_t* slot) noexcept:
    """Whether the message was sent over this connection; otherwise an acknowledgement belongs to an earlier message or
    is late."""
    return slot.state == SLOT_SENT or slot.state == SLOT_RELEASE_HELD or slot.state == SLOT_RELEASED


NO_SUBSCRIPTIONS = MappingProxyType({})

cdef enum:
    SLOTS_MIN = 16
    QUEUE_MIN = 16
    RECEIVED_BYTES = 8192       # one bit for each of 65 536 packet identifiers
    DUP = 0x08
    PACKET_IDS_KEPT = 512       # of one record


cdef class ClaimKeeper:
    """Machine. See pubsub/session.pxd; the queues of MQTT clients are in queue/session_member.pyx."""

    cdef int on_acknowledged(self, void* claim, uint8_t reason) except -1:
        raise NotImplementedError

    cdef int on_abandoned(self, void* claim, bint sent) except -1:
        raise NotImplementedError

    cdef int on_room(self) except -1:
        raise NotImplementedError


cdef class Replay:
    """Machine. See pubsub/session.pxd; what it does is in pubsub/retained_replay.pyx."""

    cdef int on_room(self, Session session) except -1:
        raise NotImplementedError

    cdef int on_attach(self, Session session) except -1:
        raise NotImplementedError


cdef class SessionFacts:
    """Base class of what the engine keeps beside each session (fluxmq/engine/sessions/state.py): its numbers."""

    def __cinit__(self, *_):
        self.version = 4


# Its end needs the ledger: the collector may free cycles, but not take that away before.
@cython.no_gc_clear
@cython.final
@cython.no_gc_clear     # __dealloc__ needs the ledger; the cycle with `data` breaks on the other side
cdef class Session:
    """Machine. One client's session, MQTT 5.0 section 4.1.

    name: client identifier (UTF-8). number: its identifier on disk, 0 if it is not stored.
    """

    def __cinit__(self, bytes name not None, Namespace namespace not None, uint64_t number, Ledger ledger not None):
        self.name = name
        self.namespace = namespace
        self.number = number
        self.ledger = ledger
        self.journalled = number != 0 and ledger.active()
        self.node = &ledger.node
        self.window = 1
        self.queue_max = 1000
        self.queue_bytes_max = 64 << 20

    def __dealloc__(self):
        # The keeper may be deallocated together with this session, and be cleared already.
        self.claim_keeper = None
        self.clear()

    cpdef clear(self):
        """The session has ended: releases all messages, the link and all memory but the object itself."""
        cdef uint32_t i
        cdef entry_t entry
        if self.link != NULL:           # not leave_link(): nobody gets the session
            link_drop(self.link)
            self.link = NULL
        self.detach()
        self.replay = self.moving = self.unanswered = None
        self.sharing = 0
        if self.slots != NULL:
            for i in range(self.slots_mask + 1):
                if self.slots[i].packet_id:
                    self.slot_free(&self.slots[i])
            free(self.slots)
            self.slots = NULL
        while self.pop(&entry):
            self.ledger.forget(entry.msg)
            ids_drop(entry.ids)
        free(self.queue)
        free(self.received)
        self.queue = NULL
        self.received = NULL
        self.slots_mask = self.queue_mask = self.outstanding = self.received_count = 0

    @property
    def subscriptions(self) -> Mapping[bytes, tuple[int, int]]:
        """By filter, `$share/…/` included: options of SUBSCRIBE and Subscription Identifier (0: none), MQTT 5.0 section
        3.8. Not to be changed: see keep_subscription() and forget_subscription()."""
        return NO_SUBSCRIPTIONS if self.filters is None else self.filters

    def keep_subscription(self, bytes filter not None, int options, uint32_t identifier):
        """Adds a subscription, or replaces the one to this filter [MQTT-3.8.4-3]. The trie is the hub's."""
        if self.filters is None:
            self.filters = {}
        self.filters[filter] = options, identifier

    def forget_subscription(self, bytes filter not None) -> bool:
        """Whether there was one."""
        if self.filters is None or self.filters.pop(filter, None) is None:
            return False
        if not self.filters:
            self.filters = None
        return True

    def set_number(self, uint64_t number):
        """Sets the session's identifier on disk; once."""
        self.number = number

    @property
    def connected(self) -> bool:
        return self.link != NULL

    @property
    def inflight(self) -> int:
        """Number of messages in the window: sent or about to be, and not completely acknowledged."""
        return self.slots_used

    # ---------------------------------------------------------------- deliver

    cdef int deliver_hop(self, pub_t* pub, const hop_t* hop) except -1:
        """deliver() by the subscriptions that match: those with No Local do not match what this client publishes."""
        if hop.options & SUB_NO_LOCAL and pub.source == <void*>self:
            hop = own_hop(hop)
            if hop == NULL:
                return 0
        return self.deliver(pub, hop.options, hop.ids)

    cdef int deliver(self, pub_t* pub, uint8_t options, ids_t* ids) except -1:
        """Delivers a publish to this session. 1: sent or queued; 0: dropped, and counted."""
        cdef uint8_t qos = options & SUB_QOS_MASK
        cdef uint8_t first
        cdef link_t* link = self.link
        cdef int64_t written
        if pub.qos < qos:
            qos = pub.qos
        first = <uint8_t>(PUBLISH << 4 | qos << 1)
        if pub.retain and options & SUB_RETAIN_AS_PUBLISHED:
            first |= 1
        if qos:
            return self.deliver_now(pub_own(pub), first, ids)
        if link == NULL:
            self.node.counters.dropped_no_connection += 1
            return 0
        if link.pending > link.high:
            link.choked = 1
            link.dropped += 1
            self.node.counters.dropped_buffer_full += 1
            self.lose()
            return 0
        written = link_publish(link, &pub.body, first, 0, ids)
        if written <= 0:
            self.node.counters.dropped_too_large += 1
            return 0
        self.node.counters.packets_sent[PUBLISH] += 1
        self.node.counters.messages_sent[0] += 1
        return 1

    cdef int deliver_now(self, msg_t* msg, uint8_t first, ids_t* ids) except -1:
        """QoS 1 and 2: sends at once if nothing is queued before it, else queues it."""
        cdef link_t* link = self.link
        self.sequence_last += 1
        if (link == NULL or self.queued or not self.has_room(msg) or link.pending > link.high
                or self.resend_next < self.resend_count):
            return self.enqueue(msg, first, ids, self.sequence_last)
        return self.send_new(msg, first, ids, self.sequence_last)

    cdef int deliver_retained(self, pub_t* pub, uint8_t qos, ids_t* ids) except -1:
        """Delivers a message retained before this client subscribed; the caller has checked takes_retained(). It is not
        queued behind the line, whose messages were published later. qos: of the subscription."""
        if pub.qos < qos:
            qos = pub.qos
        if qos == 0:
            return self.deliver(pub, SUB_RETAIN_AS_PUBLISHED, ids)
        self.sequence_last += 1
        return self.send_new(pub_own(pub), <uint8_t>(PUBLISH << 4 | qos << 1 | 1), ids, self.sequence_last)

    cdef bint takes_retained(self, bint in_window, size_t bytes_max) noexcept:
        """Whether a retained message may be sent now; bytes_max: limit of the bytes pending in the link."""
        cdef link_t* link = self.link
        return (link != NULL and link.pending <= bytes_max
                and (not in_window or (self.outstanding < self.window and self.resend_next >= self.resend_count
                                       and (self.window_bytes == 0 or self.window_bytes < self.queue_bytes_max))))

    cdef int send_new(self, msg_t* msg, uint8_t first, ids_t* ids, uint64_t sequence) except -1:
        """Puts a message of QoS 1 or 2 into the window, which has room, and sends it."""
        cdef slot_t* slot = self.slot_new()
        msg_hold(msg)
        ids_hold(ids)
        self.put_message(slot, msg)
        slot.ids = ids
        slot.first = first
        slot.sequence = sequence
        if self.journalled:
            if (first >> 1 & 3) == 2 or self.held:
                # It takes its place in the window now and is sent once it is on disk; so are those behind it.
                enter(slot, SLOT_HELD)
                self.outstanding += 1
                self.held += 1
                self.hold(slot)
                self.ledger.add_target(self.number, sequence, slot.packet_id, first, ids)
                self.dirty = 1
                return 1
            if not self.send_slot(slot, 0):
                return 0
            self.ledger.add_target(self.number, sequence, slot.packet_id, first, ids)
            self.dirty = 1
            return 1
        return self.send_slot(slot, 0)

    cdef bint keeps_packet_id(self, uint16_t packet_id) noexcept:
        return <uint16_t>(self.packet_id_kept - packet_id) < PACKET_IDS_KEPT

    cdef int keep_packet_ids(self, uint16_t packet_id) except -1:
        """Packet identifiers of queue messages are not recorded, because a crash returns these to their queues. But
        the client remembers QoS 2 identifiers until they are released, across connections, and would take a different
        message with such an identifier for a repetition [MQTT-4.3.3-10]. So a range of possibly used identifiers is
        recorded, and after a crash assignment continues behind it. Encoded as a SENT record without a message, which an
        earlier version skips."""
        self.packet_id_kept = <uint16_t>(packet_id + PACKET_IDS_KEPT - 1)
        self.ledger.write_sent(self.number, 0, self.packet_id_kept)
        self.dirty = 1
        return 0

    cdef int hold(self, slot_t* slot) except -1:
        """Makes the slot, and later messages, wait for the batch that will contain its record."""
        cdef ticket_t ticket = self.ledger.commits.next_ticket(self.ledger.commits.local)
        self.held_upto = ticket.position
        slot.line = 0
        return self.ledger.commits.hold_at(ticket, HELD_SEND, NULL, self, PUBLISH, slot.packet_id)

    cdef int deliver_claim(self, msg_t* msg, uint8_t first, ids_t* ids, void* claim, ticket_t ticket) except -1:
        """Delivers a queue's message; the queue has checked for room before. ticket: of a record, written by the end of
        this turn, that must be committed first; position 0: none. A message behind one that waits for the journal waits
        too. A message that waits for another line is ordered only with others of that line, so that a stalled line
        delays nothing else. Returns 0: it cannot be sent, and the claim belongs to the caller again.
        """
        cdef slot_t* slot = self.slot_new()
        msg_hold(msg)
        ids_hold(ids)
        self.put_message(slot, msg)
        slot.ids = ids
        slot.first = first
        slot.sequence = 0
        slot.claim = claim
        self.claimed += 1
        if self.journalled and (first >> 1 & 3) == 2 and not self.keeps_packet_id(slot.packet_id):
            self.keep_packet_ids(slot.packet_id)
            if ticket.line == 0:
                ticket = self.ledger.commits.next_ticket(self.ledger.commits.local)
        if ticket.position and ticket.line == 0:
            self.held_upto = max(ticket.position, self.held_upto)
        if ticket.position or self.held:
            if ticket.line == 0:
                # At least the batch that earlier messages wait for, which is not empty.
                ticket.position = max(ticket.position, self.held_upto)
                self.held += 1
            enter(slot, SLOT_HELD)
            slot.line = ticket.line
            self.outstanding += 1
            self.link.awaited += body_bytes(&msg.body)
            self.ledger.commits.hold_at(ticket, HELD_SEND, NULL, self, PUBLISH, slot.packet_id)
            return 1
        slot.claim = NULL               # a message that is too large is reported by the return value, not on_abandoned
        if not self.send_slot(slot, 0):
            return 0
        slot.claim = claim
        return 1

    cdef int drop_claims(self) except -1:
        """The connection has ended: returns the messages of queues."""
        cdef uint32_t i
        cdef slot_t* slot
        cdef void* claim
        cdef bint sent
        if self.claimed == 0:
            return 0
        for i in range(self.slots_mask + 1):
            slot = &self.slots[i]
            if slot.packet_id and slot.sequence == 0:
                claim = slot.claim
                sent = slot.state != SLOT_HELD
                slot.claim = NULL
                self.slot_free(slot)
                if claim != NULL and self.claim_keeper is not None:
                    self.claim_keeper.on_abandoned(claim, sent)
        return 0

    cdef int acknowledge_claim(self, slot_t* slot, uint8_t reason) except -1:
        cdef void* claim = slot.claim
        slot.claim = NULL
        self.slot_free(slot)
        self.outstanding -= 1
        return self.claim_keeper.on_acknowledged(claim, reason) if claim != NULL else 0

    cdef void forget_claim(self, void* claim) noexcept:
        """The queue has taken a claim back. Its packet identifier stays in use until the client acknowledges it."""
        cdef uint32_t i, at
        if self.slots != NULL:
            # A consumer loses its claims from the oldest on, and slots are in the order of claims: so each search
            # starts where the last one ended.
            for i in range(self.slots_mask + 1):
                at = (self.forget_at + i) & self.slots_mask
                if self.slots[at].claim == claim:
                    self.slots[at].claim = NULL
                    self.forget_at = at + 1
                    return

    cdef int lose(self) except -1:
        """Counts a message dropped for lack of room, until Hub.take_unlogged_drops, for the log."""
        if self.unlogged_drops == 0:
            self.ledger.sessions_with_drops.append(self)
        self.unlogged_drops += 1
        return 0

    cdef int enqueue(self, msg_t* msg, uint8_t first, ids_t* ids, uint64_t sequence) except -1:
        cdef size_t size = body_bytes(&msg.body)
        cdef Namespace namespace = self.namespace
        cdef bint lacks = lacks_room(namespace, size)
        while (lacks or self.queued >= self.queue_max
               or (self.queued and self.queued_bytes + size > self.queue_bytes_max)):
            self.dropped += 1
            self.node.counters.dropped_queue_full += 1
            namespace.refused_bytes += lacks
            self.lose()
            # If other users of the namespace fill it, dropping messages of this session does not help.
            if self.queue_rejects or (lacks and (not self.queued or namespace.bytes + <int64_t>size > <int64_t>(
                    namespace.bytes_max + self.queued_bytes))):
                return 0
            self.drop_oldest()
            lacks = lacks_room(namespace, size)
        self.push(msg, first, ids, sequence)
        if self.journalled:
            self.ledger.add_target(self.number, sequence, 0, first, ids)
            self.dirty = 1
        return 1

    cdef int push(self, msg_t* msg, uint8_t first, ids_t* ids, uint64_t sequence) except -1:
        """Appends a message to the line; takes its own references."""
        cdef size_t size = body_bytes(&msg.body)
        cdef entry_t* entry
        if self.queue == NULL or self.queued > self.queue_mask:
            self.grow_queue(1)
        entry = &self.queue[(self.queue_head + self.queued) & self.queue_mask]
        msg_hold(msg)
        ids_hold(ids)
        entry.msg = msg
        entry.ids = ids
        entry.first = first
        entry.sequence = sequence
        self.queued += 1
        self.queued_bytes += size
        self.namespace.bytes += <int64_t>size
        self.node.gauges.queued += 1
        self.node.gauges.queued_bytes += size
        return 0

    cdef int grow_queue(self, uint32_t more) except -1:
        """Makes room for more entries behind those in the line."""
        cdef uint32_t capacity = self.queue_mask + 1 if self.queue != NULL else QUEUE_MIN
        cdef entry_t* grown
        cdef uint32_t i
        while capacity < self.queued + more:
            capacity *= 2
        grown = <entry_t*>malloc(capacity * sizeof(entry_t))
        if grown == NULL:
            raise MemoryError()
        for i in range(self.queued):
            grown[i] = self.queue[(self.queue_head + i) & self.queue_mask]
        free(self.queue)
        self.queue = grown
        self.queue_head = 0
        self.queue_mask = capacity - 1
        return 0

    cdef int pop(self, entry_t* out) noexcept:
        """Removes the head of the line; its references pass to the caller. 0: empty."""
        cdef size_t size
        if not self.queued:
            return 0
        out[0] = self.queue[self.queue_head & self.queue_mask]
        self.queue_head = (self.queue_head + 1) & self.queue_mask
        size = body_bytes(&out.msg.body)
        self.queued -= 1
        self.queued_bytes -= size
        self.namespace.bytes -= <int64_t>size
        self.node.gauges.queued -= 1
        self.node.gauges.queued_bytes -= size
        return 1

    cdef int drop_oldest(self) except -1:
        cdef entry_t entry
        if self.pop(&entry):
            if self.journalled:
                if entry.msg.id:
                    self.ledger.write_sequence(RECORD_SETTLED, self.number, entry.sequence)
                else:               # queued by the publish under way, whose record is not written yet
                    self.ledger.drop_target(self.number, entry.sequence)
                self.dirty = 1
            self.ledger.forget(entry.msg)
            ids_drop(entry.ids)
        return 0

    # ---------------------------------------------------------------- window

    cdef slot_t* slot_new(self) except NULL:
        """The slot of a free packet identifier, [MQTT-2.2.1-3]; the caller sets the other fields."""
        cdef slot_t* slot
        if self.slots == NULL or self.slots_used * 2 > self.slots_mask:
            self.grow_slots()
        while True:
            self.packet_id_last = <uint16_t>(self.packet_id_last + 1)
            if self.packet_id_last == 0:
                continue
            slot = &self.slots[self.packet_id_last & self.slots_mask]
            if slot.packet_id == 0:
                break
        slot.packet_id = self.packet_id_last
        self.slots_used += 1
        self.node.gauges.inflight += 1
        return slot

    cdef int grow_slots(self) except -1:
        cdef uint32_t count = (self.slots_mask + 1) * 2 if self.slots != NULL else SLOTS_MIN
        cdef slot_t* grown = <slot_t*>calloc(count, sizeof(slot_t))
        cdef uint32_t i
        if grown == NULL:
            raise MemoryError()
        if self.slots != NULL:
            for i in range(self.slots_mask + 1):
                if self.slots[i].packet_id:
                    grown[self.slots[i].packet_id & (count - 1)] = self.slots[i]
            free(self.slots)
        self.slots = grown
        self.slots_mask = count - 1
        return 0

    cdef slot_t* slot_find(self, uint16_t packet_id) noexcept:
        cdef slot_t* slot
        if self.slots == NULL or packet_id == 0:
            return NULL
        slot = &self.slots[packet_id & self.slots_mask]
        return slot if slot.packet_id == packet_id else NULL

    cdef void slot_free(self, slot_t* slot) noexcept:
        self.drop_message(slot)
        ids_drop(slot.ids)
        if slot.sequence == 0 and self.claimed:
            self.claimed -= 1
        memset(slot, 0, sizeof(slot_t))
        self.slots_used -= 1
        self.node.gauges.inflight -= 1

    cdef void put_message(self, slot_t* slot, msg_t* msg) noexcept:
        """Sets the slot's message; the caller's reference passes to the slot."""
        slot.msg = msg
        self.window_bytes += body_bytes(&msg.body)

    cdef void drop_message(self, slot_t* slot) noexcept:
        if slot.msg == NULL:
            return
        self.window_bytes -= body_bytes(&slot.msg.body)
        if slot.state == SLOT_HELD and slot.sequence == 0 and self.link != NULL:
            self.link.awaited -= body_bytes(&slot.msg.body)
        self.ledger.forget(slot.msg)
        slot.msg = NULL

    cdef bint has_room(self, msg_t* msg) noexcept:
        """Whether another message may be in flight. Messages in flight are kept until they are acknowledged, so their
        bytes are limited like those of the line; a single message is always allowed."""
        return self.outstanding < self.window and (
            self.window_bytes == 0 or self.window_bytes + body_bytes(&msg.body) <= self.queue_bytes_max)

    cdef int settle(self, slot_t* slot, uint8_t reason) except -1:
        if slot.sequence == 0:
            return self.acknowledge_claim(slot, reason)
        if self.journalled:
            self.ledger.write_sequence(RECORD_SETTLED, self.number, slot.sequence)
            self.dirty = 1
        self.slot_free(slot)
        self.outstanding -= 1
        if self.claim_keeper is not None:
            self.claim_keeper.on_room()
        if self.replay is not None:
            self.replay.on_room(self)
        return 0

    cdef int send_slot(self, slot_t* slot, uint8_t dup) except -1:
        """Writes the PUBLISH of a slot. 0: over the client's Maximum Packet Size, so it was dropped [MQTT-3.1.2-25]."""
        cdef int64_t written = link_publish(self.link, &slot.msg.body, slot.first | dup, slot.packet_id, slot.ids)
        cdef void* claim
        if written < 0:
            raise MemoryError()
        if slot.state != SLOT_HELD:
            self.outstanding += 1
        if slot.sequence == 0:
            self.drop_message(slot)         # never sent again on this connection, and the queue keeps the message
        enter(slot, SLOT_SENT)
        if written == 0:
            self.node.counters.dropped_too_large += 1
            claim = slot.claim
            slot.claim = NULL
            self.slot_free(slot)
            self.outstanding -= 1
            if claim != NULL:
                self.claim_keeper.on_abandoned(claim, True)
            return 0
        self.node.counters.packets_sent[PUBLISH] += 1
        self.node.counters.messages_sent[slot.first >> 1 & 3] += 1
        return 1

    cdef int pump(self) except -1:
        """Sends what window and buffer allow: first messages to repeat after a reconnect, then the line, in order."""
        cdef link_t* link = self.link
        cdef slot_t* slot
        cdef entry_t entry
        cdef uint64_t sequence
        cdef uint32_t window = self.window
        if link == NULL:
            return 0
        while self.resend_next < self.resend_count:
            slot = self.slot_find(self.resend[self.resend_next])
            if slot != NULL and (slot.state == SLOT_WAITING or slot.state == SLOT_UNSENT):
                if self.outstanding >= self.window or link.pending > link.high:
                    return 0
                sequence = slot.sequence
                if not self.send_slot(slot, DUP if slot.state == SLOT_WAITING else 0) and self.journalled:
                    self.ledger.write_sequence(RECORD_SETTLED, self.number, sequence)
                    self.dirty = 1
            elif slot != NULL and slot.state == SLOT_RELEASE_HELD:
                enter(slot, SLOT_RELEASED)
                link_ack(link, PUBREL, slot.packet_id, 0)
            self.resend_next += 1
        if self.resend != NULL:
            free(self.resend)
            self.resend = NULL
            self.resend_count = self.resend_next = 0
        if self.sharing and self.outstanding < window:
            self.odd ^= 1
            window -= (window - self.outstanding + self.odd) // 2
        while (self.queued and link.pending <= link.high and self.outstanding < window
               and self.has_room(self.queue[self.queue_head & self.queue_mask].msg)):
            self.pop(&entry)
            if entry.msg.body.expires_at and entry.msg.body.expires_at <= self.node.steady_ms:
                self.node.counters.dropped_expired += 1
                if self.journalled:
                    self.ledger.write_sequence(RECORD_SETTLED, self.number, entry.sequence)
                    self.dirty = 1
                self.ledger.forget(entry.msg)
                ids_drop(entry.ids)
                continue
            slot = self.slot_new()
            self.put_message(slot, entry.msg)
            slot.ids = entry.ids
            slot.first = entry.first
            slot.sequence = entry.sequence
            if self.journalled:
                self.dirty = 1
                self.ledger.write_sent(self.number, slot.sequence, slot.packet_id)
                if (slot.first >> 1 & 3) == 2 or self.held:
                    enter(slot, SLOT_HELD)
                    self.outstanding += 1
                    self.held += 1
                    self.hold(slot)
                    continue
            if not self.send_slot(slot, 0) and self.journalled:
                self.ledger.write_sequence(RECORD_SETTLED, self.number, entry.sequence)
        return 0

    cdef int release(self, uint16_t packet_id, uint32_t line) except -1:
        """The record is committed: sends the PUBLISH, or PUBREL, with this identifier."""
        cdef slot_t* slot = self.slot_find(packet_id)
        cdef uint64_t sequence
        if slot == NULL or self.link == NULL:
            return 0
        if slot.state == SLOT_HELD:
            if slot.line != line:
                return 0            # the wait was for an earlier connection's message with the same identifier
            self.held -= line == 0
            sequence = slot.sequence
            if not self.send_slot(slot, 0) and sequence:
                self.ledger.write_sequence(RECORD_SETTLED, self.number, sequence)
                self.dirty = 1
                self.pump()         # its place in the window is free, and no acknowledgement will follow
                if self.replay is not None:
                    self.replay.on_room(self)
        elif slot.state == SLOT_RELEASE_HELD:
            enter(slot, SLOT_RELEASED)
            link_ack(self.link, PUBREL, packet_id, 0)
        return 0

    cdef int refuse(self, uint16_t packet_id, uint32_t line) except -1:
        """The claim of a queue's message was given up before it was sent: frees its slot."""
        cdef slot_t* slot = self.slot_find(packet_id)
        cdef void* claim
        if slot == NULL or self.link == NULL or slot.state != SLOT_HELD or slot.line != line:
            return 0
        claim = slot.claim
        slot.claim = NULL
        self.held -= line == 0
        self.outstanding -= 1
        self.slot_free(slot)
        if claim != NULL:
            self.claim_keeper.on_abandoned(claim, False)
        self.pump()
        return 1

    # ---------------------------------------------------------------- acknowledgements from the client

    cdef int on_puback(self, uint16_t packet_id, uint8_t reason) except -1:
        cdef slot_t* slot = self.slot_find(packet_id)
        if slot == NULL or not in_flight(slot):
            return 0
        if (slot.first >> 1 & 3) != 1:
            raise ProtocolError(REASON_PROTOCOL_ERROR, f"PUBACK for packet identifier {packet_id}, which is in flight "
                                                       f"with QoS 2 [MQTT-4.3.3-5]")
        self.settle(slot, reason)
        if self.queued or self.resend_count:
            self.pump()
        return 1

    cdef int on_pubrec(self, uint16_t packet_id, uint8_t reason) except -1:
        cdef slot_t* slot = self.slot_find(packet_id)
        if slot != NULL and in_flight(slot) and (slot.first >> 1 & 3) == 1:
            raise ProtocolError(REASON_PROTOCOL_ERROR, f"PUBREC for packet identifier {packet_id}, which is in flight "
                                                       f"with QoS 1 [MQTT-4.3.2-5]")
        if slot == NULL or not in_flight(slot):
            if reason < 0x80:
                link_ack(self.link, PUBREL, packet_id, REASON_PACKET_IDENTIFIER_NOT_FOUND)
            return 0
        if reason >= 0x80:
            if slot.state == SLOT_SENT:
                self.settle(slot, reason)
                self.pump()
            return 1
        if slot.state == SLOT_RELEASED:
            link_ack(self.link, PUBREL, packet_id, 0)
            return 1
        if slot.state == SLOT_RELEASE_HELD:
            return 1
        self.drop_message(slot)
        ids_drop(slot.ids)
        slot.ids = NULL
        if self.journalled and slot.sequence:
            enter(slot, SLOT_RELEASE_HELD)
            self.ledger.write_sequence(RECORD_RELEASED, self.number, slot.sequence)
            self.ledger.commits.hold_at(self.ledger.commits.next_ticket(self.ledger.commits.local), HELD_SEND, NULL,
                                        self, PUBREL, packet_id)
            self.dirty = 1
        else:
            enter(slot, SLOT_RELEASED)
            link_ack(self.link, PUBREL, packet_id, 0)
        if self.queued:
            self.pump()         # there may be room for its bytes
        return 1

    cdef int on_pubcomp(self, uint16_t packet_id) except -1:
        cdef slot_t* slot = self.slot_find(packet_id)
        if slot == NULL or not in_flight(slot):
            return 0
        if slot.state != SLOT_RELEASED:
            raise ProtocolError(REASON_PROTOCOL_ERROR, f"PUBCOMP for packet identifier {packet_id}, for which no "
                                                       f"PUBREL was sent [MQTT-4.3.3-5]")
        self.settle(slot, 0)
        if self.queued or self.resend_count:
            self.pump()
        return 1

    # ---------------------------------------------------------------- inbound QoS 2

    cdef bint has_received(self, uint16_t packet_id) noexcept:
        return self.received != NULL and (self.received[packet_id >> 3] >> (packet_id & 7) & 1) != 0

    cdef int receive(self, uint16_t packet_id) except -1:
        """Remembers an inbound QoS 2 identifier until its PUBREL, [MQTT-4.3.3-10]."""
        if self.received == NULL:
            self.received = <uint8_t*>calloc(1, RECEIVED_BYTES)
            if self.received == NULL:
                raise MemoryError()
        self.received[packet_id >> 3] |= <uint8_t>(1 << (packet_id & 7))
        self.received_count += 1
        if self.journalled:
            self.ledger.write_packet_id(RECORD_RECEIVED, self.number, packet_id)
            self.dirty = 1
        return 0

    cdef int complete(self, uint16_t packet_id) except -1:
        """PUBREL received. 0: the identifier is unknown."""
        if not self.has_received(packet_id):
            return 0
        self.received[packet_id >> 3] &= <uint8_t>~(1 << (packet_id & 7))
        self.received_count -= 1
        if self.journalled:
            self.ledger.write_packet_id(RECORD_COMPLETED, self.number, packet_id)
            self.dirty = 1
        return 1

    # ---------------------------------------------------------------- connect and disconnect

    cdef void attach(self, link_t* link, uint32_t window):
        """The client connected over `link`: repeats what is unacknowledged, in order [MQTT-4.4.0-1], then the line."""
        cdef uint32_t i
        cdef slot_t* slot
        self.detach()
        link_hold(link)
        self.link = link
        self.window = window
        self.outstanding = 0
        self.held = 0
        if self.slots_used:
            order = []
            for i in range(self.slots_mask + 1):
                slot = &self.slots[i]
                if slot.packet_id:
                    order.append((slot.sequence, slot.packet_id))
                    if slot.msg != NULL:
                        enter(slot, SLOT_UNSENT if slot.state in (SLOT_HELD, SLOT_UNSENT) else SLOT_WAITING)
                    else:
                        enter(slot, SLOT_RELEASE_HELD)
                        self.outstanding += 1
            order.sort()
            self.resend = <uint16_t*>malloc(len(order) * sizeof(uint16_t))
            if self.resend == NULL:
                raise MemoryError()
            for i in range(<uint32_t>len(order)):
                self.resend[i] = order[i][1]
            self.resend_count = <uint32_t>len(order)
            self.resend_next = 0
        self.pump()
        if self.replay is not None:
            self.replay.on_attach(self)

    cdef int leave_link(self) except -1:
        cdef link_t* link = self.link
        self.link = NULL
        try:
            if self.unanswered is not None and self.unanswered.count == 0:
                self.unanswered = None
            if link.held and link.order != NULL:
                if self.unanswered is None:
                    self.unanswered = Tickets(self.ledger.commits)
                self.unanswered.add_answers(link)
        finally:
            link_drop(link)
        return 0

    cpdef int detach(self) except -1:
        """The client has disconnected: the session keeps only what it needs for the client's return."""
        if self.link != NULL:
            self.leave_link()
        self.drop_claims()
        if self.slots_used == 0:
            free(self.slots)
            self.slots = NULL
            self.slots_mask = 0
        if self.received_count == 0:
            free(self.received)
            self.received = NULL
        free(self.resend)
        self.resend = NULL
        self.resend_count = self.resend_next = 0
        return 0

    # ---------------------------------------------------------------- at start, from disk

    cdef int restore_queued(self, msg_t* msg, uint8_t first, ids_t* ids, uint64_t sequence) except -1:
        return self.push(msg, first, ids, sequence)

    cdef slot_t* restore_slot(self, uint16_t packet_id) except NULL:
        """The slot for an identifier that was in flight; the caller sets all other fields."""
        cdef slot_t* slot
        while self.slots == NULL or (self.slots[packet_id & self.slots_mask].packet_id not in (0, packet_id)):
            self.grow_slots()
        slot = &self.slots[packet_id & self.slots_mask]
        if slot.packet_id == packet_id:
            self.slot_free(slot)
        slot.packet_id = packet_id
        self.slots_used += 1
        self.node.gauges.inflight += 1
        self.packet_id_last = self.packet_id_kept if self.keeps_packet_id(packet_id) else packet_id
        return slot

    cdef bint take_queued(self, uint64_t sequence, entry_t* out) noexcept:
        """Removes the entry with a sequence from the line; its references pass to the caller. 0: not found."""
        cdef uint32_t i, at
        for i in range(self.queued):
            at = (self.queue_head + i) & self.queue_mask
            if self.queue[at].sequence == sequence:
                break
        else:
            return 0
        out[0] = self.queue[at]
        while i:                    # close the gap from the front; nearly always it is the first entry
            self.queue[(self.queue_head + i) & self.queue_mask] = (
                self.queue[(self.queue_head + i - 1) & self.queue_mask])
            i -= 1
        self.queue[self.queue_head & self.queue_mask] = out[0]
        return self.pop(out)

    cpdef mark_received(self, uint16_t packet_id, bint received):
        """Inbound QoS 2: sets whether the identifier awaits its PUBREL."""
        cdef bint journalled = self.journalled
        self.journalled = False
        try:
            if received and not self.has_received(packet_id):
                self.receive(packet_id)
            elif not received:
                self.complete(packet_id)
        finally:
            self.journalled = journalled

    # ---------------------------------------------------------------- from another node

    cdef int put_behind(self, uint64_t place, const entry_t* entries, uint32_t count) except -1:
        """Puts entries, whose references pass to the line, behind those with sequences up to `place` and in front of
        all others. They and the others get new sequences, so that sequences grow along the line."""
        cdef uint32_t at = 0
        cdef uint32_t i
        cdef size_t size = 0
        if self.queue == NULL or self.queued + count > self.queue_mask + 1:
            self.grow_queue(count)
        while at < self.queued and self.queue[(self.queue_head + at) & self.queue_mask].sequence <= place:
            at += 1
        for i in range(self.queued, at, -1):
            self.queue[(self.queue_head + i - 1 + count) & self.queue_mask] = (
                self.queue[(self.queue_head + i - 1) & self.queue_mask])
        for i in range(count):
            self.queue[(self.queue_head + at + i) & self.queue_mask] = entries[i]
            size += body_bytes(&entries[i].msg.body)
        self.queued += count
        for i in range(at, self.queued):
            self.sequence_last += 1
            self.queue[(self.queue_head + i) & self.queue_mask].sequence = self.sequence_last
        self.queued_bytes += size
        self.namespace.bytes += <int64_t>size
        self.node.gauges.queued += count
        self.node.gauges.queued_bytes += size
        return 0

    cdef int trim(self) except -1:
        """The line may be longer than it may be here: drops the oldest messages, as enqueue does."""
        while not self.queue_rejects and self.queued and (self.queued > self.queue_max or (
                self.queued > 1 and self.queued_bytes > self.queue_bytes_max)):
            self.dropped += 1
            self.node.counters.dropped_queue_full += 1
            self.lose()
            self.drop_oldest()
        return 0
