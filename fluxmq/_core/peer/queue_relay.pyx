# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. A queue that another node owns. See peer/queue_relay.pxd. The relay and its consumers are one file, because
each pump and each settlement goes through both, and calls are direct only within a file."""
from collections import deque

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from fluxmq._core.errors import StorageError, UsageError
from fluxmq._core.hub.hub cimport Hub
from fluxmq._core.hub.origins cimport Use
from fluxmq._core.memory.commits cimport HELD_CALL, Commits, ticket_t
from fluxmq._core.memory.message cimport body_borrow, body_t, once_of, once_t, origin_of, origin_t, pub_t
from fluxmq._core.mqtt.consts cimport (
    REASON_IMPLEMENTATION_SPECIFIC_ERROR, REASON_SERVER_UNAVAILABLE, REASON_UNSPECIFIED_ERROR,
)
from fluxmq._core.peer.frames cimport PEER_ATTACH, PEER_CALL, PEER_COUNTS, PEER_VERB
from fluxmq._core.queue.claim cimport CLAIM_HELD, claim_t
from fluxmq._core.queue.cursor cimport Cursor
from fluxmq._core.queue.lanes cimport lane_of, log_index
from fluxmq._core.queue.log cimport Log, chunk_drop, record_t
from fluxmq._core.queue.queue cimport queue_mark
from fluxmq._core.queue.relay cimport (
    RELAY_AWAITED, RELAY_FORCED, RELAY_TAKEN, RELAY_UNAWAITED, VERB_EXTEND, VERB_NACK,
)
from fluxmq._core.queue.shared_room cimport ROOM_UNSHARED, SharedRoom
from fluxmq._core.wire.sizes cimport fit_u32

__all__ = ["QueueRelay", "RelayMember"]

cdef str TAKEN_BACK = "another consumer has this message by now, or will have it: its visibility timeout had passed"

cdef enum:
    ROOM_MAX = 4096             # what the owner may send beyond what a consumer holds
    AHEAD_MS = 4                # as long as the way from the owner's log to a consumer, and its answer's way back
    AHEAD_MIN = 16              # messages in that time from which on the consumer counts as fast


@cython.final
cdef class RelayMember:
    """Machine. See peer/queue_relay.pxd."""

    def __dealloc__(self):
        self.drop_waiting()
        free(self.waiting)

    cdef void drop_waiting(self) noexcept:
        cdef uint32_t i
        for i in range(self.waiting_count):
            chunk_drop(self.waiting[self.waiting_first + i].chunk)
        self.waiting_first = self.waiting_count = 0

    cdef int arrive(self, uint32_t log, uint64_t offset, uint16_t deliveries, chunk_t* chunk) except -1:
        """The owner has given it a message. Takes the caller's reference to the chunk."""
        if self.shared is not None:
            self.shared.stale = True
        try:
            if self.rests or log >= <uint32_t>len(self.group.cursors):
                self.return_one(log, offset, deliveries)    # it takes nothing more; or there is no such partition
            elif (self.pulls or not self.attached or self.waiting_count or not self.member.credit()
                    or not self.give(log, offset, deliveries, chunk)):
                self.keep(log, offset, deliveries, chunk)
        finally:
            chunk_drop(chunk)
        if self.shared is not None:
            if self.told_room() == 0:
                self.hungry_ms = self.relay.hub.node.mono_ms
            self.relay.queue.touch()
        return 0

    cdef bint give(self, uint32_t log, uint64_t offset, uint16_t deliveries, chunk_t* chunk) except -1:
        """Delivers it. 0: the consumer did not take it."""
        cdef bint taken = self.group.pass_on(<Cursor>self.group.cursors[log], offset, deliveries,
                                             <const record_t*>chunk.data, chunk, self.member)
        self.given += taken
        return taken

    cdef int return_one(self, uint32_t log, uint64_t offset, uint16_t deliveries) except -1:
        """The consumer has never seen it: as if the owner had not given it."""
        if self.number and self.relay.reaches():
            self.relay.outbox.take_settlement(self.relay.channel, self.number, VERB_NACK, deliveries, log, offset, 0,
                                              None)
        return 0

    cdef int return_waiting(self, uint32_t kept) except -1:
        """Gives back what waits, but the first ones."""
        cdef uint32_t i
        cdef arrived_t* first = self.waiting + self.waiting_first
        for i in range(kept, self.waiting_count):
            self.return_one(first[i].log, first[i].offset, first[i].deliveries)
        for i in range(kept, self.waiting_count):
            chunk_drop(first[i].chunk)
        self.waiting_count = min(self.waiting_count, kept)
        return 0

    cdef int watch(self) except -1:
        """The way to the owner looks at it once a second."""
        cdef PeerOutbox outbox = self.relay.outbox
        if outbox is not None and self.watched_by is not outbox:
            self.watched_by = outbox
            self.given_then = self.given
            outbox.waited.append(self)
        return 0

    def return_stalled(self) -> bool:
        """Gives back what waits for room, but as much as the consumer has got since the last time: another one may have
        it. The owner is told first that there is no room: what is given back must not be overtaken by what it has sent
        meanwhile. Called once a second while anything waits; False: nothing does any more."""
        cdef uint64_t gave = self.given - self.given_then
        cdef uint32_t least = 1 if self.group.parts else 0      # see room()
        cdef uint32_t keeps = max(least, fit_u32(min(gave, <uint64_t>0xFFFFFFFF)))
        if self.waiting_count <= keeps:
            self.halted = 0
        elif self.pulls or not self.attached or not self.relay.reaches():
            pass                                # its client has not asked, or the owner cannot hear
        elif self.halted == 0:
            self.tell_room(0)
            self.relay.outbox.take_barrier(self.relay.channel, False)
            self.halted = self.relay.channel.line.at - 1
        elif self.relay.channel.line.decided >= self.halted:
            self.return_waiting(keeps)
            self.halted = 0
        if self.shared is not None:
            self.shared.stale = True
        self.relay.queue.touch()
        self.given_then = self.given
        if self.waiting_count == 0:
            self.watched_by = None
        return self.waiting_count != 0

    cdef int keep(self, uint32_t log, uint64_t offset, uint16_t deliveries, chunk_t* chunk) except -1:
        cdef arrived_t* grown
        cdef uint32_t room, i
        if self.waiting_first + self.waiting_count == self.waiting_room:
            room = self.waiting_room if self.waiting_count * 2 <= self.waiting_room and self.waiting_room else (
                self.waiting_room * 2 + 8)
            grown = <arrived_t*>malloc(room * sizeof(arrived_t))
            if grown == NULL:
                raise MemoryError()
            for i in range(self.waiting_count):
                grown[i] = self.waiting[self.waiting_first + i]
            free(self.waiting)
            self.waiting = grown
            self.waiting_room = room
            self.waiting_first = 0
        chunk.refs += 1
        self.waiting[self.waiting_first + self.waiting_count] = arrived_t(offset, chunk, log, deliveries)
        self.waiting_count += 1
        self.watch()
        return 0

    cdef int give_waiting(self) except -1:
        cdef arrived_t one
        if self.number and not self.attached:
            return 0                            # the answer to ATTACH is behind them, and the client is told first
        if self.shared is not None:
            self.shared.stale = True
        while self.waiting_count and self.member.credit():
            one = self.waiting[self.waiting_first]
            if not self.give(one.log, one.offset, one.deliveries, one.chunk):
                return 0
            self.waiting_first += 1
            self.waiting_count -= 1
            chunk_drop(one.chunk)
        if self.waiting_count == 0:
            self.waiting_first = 0
        return 0

    cdef int withdrawn(self, uint32_t log, uint64_t offset) except -1:
        """The owner has taken a message back. If what the client does with it is on its way, that has no effect."""
        cdef uint32_t i, kept
        cdef uint64_t position
        cdef arrived_t one
        cdef claim_t* claim
        self.retell = True
        if self.shared is not None:
            self.shared.stale = True
        self.relay.queue.touch()
        if self.ordered:
            position = self.ordered.pop((log, offset), 0)
            if position and self.relay.reaches():
                self.relay.outbox.queues_refused(self.relay.channel.number, position,
                                                 REASON_IMPLEMENTATION_SPECIFIC_ERROR, TAKEN_BACK, False)
        if log >= <uint32_t>len(self.group.cursors):
            return 0
        claim = (<Cursor>self.group.cursors[log]).find(offset)
        if claim != NULL and claim.state == CLAIM_HELD and claim.member == <void*>self.member:
            self.member.withdraw(claim)
            self.group.drop_held(claim)
            return 0
        kept = 0
        for i in range(self.waiting_count):
            one = self.waiting[self.waiting_first + i]
            if one.offset == offset and one.log == log:
                chunk_drop(one.chunk)
                continue
            self.waiting[self.waiting_first + kept] = one
            kept += 1
        self.waiting_count = kept
        return 0

    cdef uint32_t room(self) noexcept:
        """How much it can take beyond what it holds, and what waits for it."""
        cdef uint32_t room
        if self.pulls or self.rests or self.waiting_count > self.ahead:
            return 0
        room = min(self.member.credit(), <uint32_t>ROOM_MAX) + self.ahead - self.waiting_count
        if self.group.parts:        # one may wait here: else partitions that are nearer would take all of the room
            return max(room, <uint32_t>1)
        return room

    cdef void look_ahead(self) noexcept:
        """Finds what may come while there is no room for it: as many as the consumer is done with in AHEAD_MS."""
        cdef int64_t now_ms = self.relay.hub.node.mono_ms
        cdef int64_t done = <int64_t>self.given - self.member.held
        cdef int64_t passed = now_ms - self.ahead_ms
        cdef int64_t ahead
        if passed < AHEAD_MS:
            return
        ahead = (done - self.done_then) * AHEAD_MS // passed
        self.ahead = fit_u32(min(ahead, <int64_t>ROOM_MAX)) if ahead >= AHEAD_MIN else 0
        self.done_then = done
        self.ahead_ms = now_ms

    cdef int tell(self) except -1:
        """Tells the owner how much the consumer may hold, if that differs much from what it knows."""
        cdef uint32_t room, known
        if not self.attached or self.pulls or self.number == 0:
            return 0
        self.look_ahead()
        if self.shared is not None:
            room = self.member.shared_room()
            if room != ROOM_UNSHARED:
                if self.shared.stale or room != self.shared.room_then or self.member.held != self.held_then:
                    self.shared.divide(room, self.relay.hub.node.mono_ms)
                return 0
        room = self.room()
        known = self.told_room()
        if not self.retell and (room == known or (room > known and known * 2 >= room)
                                or (room < known and room and known < 2 * room)):
            return 0
        return self.tell_room(room)

    # queue/shared_room

    cdef int tell_room(self, uint32_t room) except -1:
        self.retell = False
        if room:
            self.halted = 0         # something may come again
        if self.number == 0:
            return 0
        self.told = self.member.held + room
        return self.relay.outbox.take_credit(self.number, self.told)

    cdef uint32_t taken(self) noexcept:
        return self.member.held

    cdef uint32_t told_room(self) noexcept:
        cdef uint32_t gone = self.member.held + self.waiting_count
        return self.told - gone if self.number and not self.rests and self.told > gone else 0

    cdef uint32_t own_room(self) noexcept:
        return self.room() if self.relay.reaches() else 0     # also before it is attached: room_of

    cdef uint32_t waits(self) noexcept:
        return self.waiting_count

    cdef uint32_t may_wait(self) noexcept:
        return self.ahead

    cdef bint fixed(self) noexcept:
        return self.number != 0 and not self.attached

    cdef bint must_tell(self) noexcept:
        return self.retell and self.attached and not self.pulls and self.number != 0

    def wake(self):
        """See Taker."""
        self.relay.queue.touch()

    cdef int share_room(self) except -1:
        """It has joined its group, or knows what that is."""
        cdef object unit = self.group if self.group.mode == "shared" else self
        cdef SharedRoom shared = self.member.sharing()
        if self.pulls or shared is None or (self.shared is shared and self.unit is unit):
            return 0
        if self.shared is not None:
            self.shared.remove(self)
        self.unit = unit
        return shared.add(self)

    def keep_settled(self, tuple what not None):
        """Keeps what it did, which its owner may not know: see QueueRelay.keep_settled."""
        if self.settled is None:
            self.settled = []
        self.settled.append(what)
        self.relay.settled = True

    def keep_sent(self, list sent not None, bint again=False):
        """Keeps what it has told an owner that is gone, and may not be on its disk; again: one that is there, and has
        given it up. sent: oldest first; the last one of a message counts. Not if it has got the message again since:
        the owner has known then, and would take back what is named twice."""
        cdef set held = {(log, offset) for log, offset, _ in self.held()}
        for message, what in {what[2:4]: what for what in sent}.items():
            if message not in held:
                self.keep_settled(what)
        if again:
            self.relay.again = True
            self.relay.queue.touch()

    cdef int send_settled(self) except -1:
        """Tells the owner what it did while it was not attached: behind ATTACH, which has named these messages."""
        if self.settled is None or self.number == 0 or not self.relay.reaches():
            return 0
        settled, self.settled = self.settled, None
        for verb, deliveries, log, offset, ms, reason in settled:
            self.relay.outbox.take_settlement(self.relay.channel, self.number, verb, deliveries, log, offset, ms,
                                              reason)
        if self.member.number == 0:
            self.early = (self.early or []) + settled
        self.retell = True      # the owner has counted them as held
        return 0

    cdef void keep_early(self):
        """The owner was asked in vain: what it was told behind that had no effect."""
        if self.early is not None:
            self.settled = self.early + (self.settled or [])
            self.early = None
            self.relay.settled = True

    def held(self) -> list:
        """What it holds, what waits for room, and what it has settled and the owner does not know yet: [(index of the
        log in the queue, offset, deliveries)]."""
        cdef claim_t* claim = self.member.oldest
        cdef Cursor cursor
        found = []
        while claim != NULL:
            cursor = <Cursor>claim.cursor
            found.append((log_index(cursor.partition, fit_u32(lane_of(claim.offset)), self.relay.queue.lanes),
                          claim.offset, claim.deliveries))
            claim = claim.behind
        for i in range(self.waiting_count):
            found.append((self.waiting[self.waiting_first + i].log, self.waiting[self.waiting_first + i].offset,
                          self.waiting[self.waiting_first + i].deliveries))
        for settled in (self.early, self.settled):
            found += [(log, offset, deliveries) for _, deliveries, log, offset, _, _ in settled or ()]
        return found

    def take_settled(self) -> list:
        """Forgets what it has settled and the owner does not know yet, oldest first, and returns it: [(verb, whether it
        counts, deliveries, index of the log in the queue, offset, ms, reason or None)]."""
        found = [(flags & PEER_VERB, flags & PEER_COUNTS != 0, deliveries, log, offset, ms,
                  None if reason is None else reason.decode())
                 for settled in (self.early, self.settled)
                 for flags, deliveries, log, offset, ms, reason in settled or ()]
        self.early = self.settled = None
        return found

    def take_waiting(self) -> list:
        """Forgets what waits for room, and returns it: [(index of the log in the queue, offset, deliveries)]."""
        cdef uint32_t i
        found = [(self.waiting[self.waiting_first + i].log, self.waiting[self.waiting_first + i].offset,
                  self.waiting[self.waiting_first + i].deliveries) for i in range(self.waiting_count)]
        self.drop_waiting()
        return found

    def take(self) -> bool:
        """Gives a consumer that only pulls the message that has come for it. False: there is none."""
        cdef arrived_t one
        if self.waiting_count == 0:
            return False
        one = self.waiting[self.waiting_first]
        self.waiting_first += 1
        self.waiting_count -= 1
        try:
            if not self.give(one.log, one.offset, one.deliveries, one.chunk):
                self.return_one(one.log, one.offset, one.deliveries)
                return False
        finally:
            chunk_drop(one.chunk)
        return True

    def open(self):
        """The owner has attached it, and its client has been told: it may get messages."""
        self.attached = True
        self.retell = False
        self.early = None
        self.member.number = self.number
        self.send_settled()
        self.share_room()
        if self.shared is not None:
            self.shared.stale = True
        self.relay.queue.touch()


@cython.final
cdef class KeptPublish:
    """Value. See peer/queue_relay.pxd. Called when it is committed."""

    def __call__(self):
        self.decided = True
        self.relay.decide_kept()

    def refused(self, str why not None):
        """It was given up, or the owner refuses it."""
        self.refuse(self.relay.hub.commits.why_code, why)

    def given_up(self, str why not None):
        """What was ahead of it was. It was refused before."""
        self()

    cdef int refuse(self, uint16_t code, str why) except -1:
        self.line.refuse(self.position, code if code else <uint16_t>REASON_UNSPECIFIED_ERROR, why)
        self()
        return 0


@cython.final
cdef class Fence:
    """Value. What was sent to `outbox` until now is to be committed before `relay` sends more. Called when it is."""
    cdef QueueRelay relay
    cdef PeerOutbox outbox

    def __call__(self):
        self.relay.fences -= 1
        self.relay.may_flush()

    def given_up(self, str why not None):
        """Nobody waits for it any more. If that node is gone, nothing of it can come later. Else it may: what is kept
        here was published behind it, so it must not be ahead of it. Its publishers are refused as the earlier ones
        were."""
        if self.outbox.takes_queues():
            self.relay.refuse_kept(why)
        self()


@cython.final
cdef class QueueRelay(Relay):
    """Machine. queue: made to be forwarded (`elsewhere`)."""

    def __init__(self, Queue queue not None):
        self.queue = queue
        self.owner = ""
        self.consumers = []
        self.kept = []
        self.waits = deque()
        queue.forward_to(self)

    def set_owner(self, str owner not None, PeerOutbox outbox, uint64_t group=0):
        """owner: the node that has the messages. outbox: to it; None: it is away, or not known as the owner. group: see
        replication_group; another one is as another owner. What its consumers hold stays; they are to be attached
        anew."""
        cdef RelayMember one
        if outbox is self.outbox and self.owner == owner and self.group == group and self.reaches():
            return
        if outbox is not self.outbox or group != self.group:
            if self.reaches():
                # The former owner passes on what it gets, if it lives: then this comes twice, and has one effect.
                self.outbox.keep_settlements({one.number: one for one in self.consumers if one.number})
            self.fence()
            self.sent_in = 0
        for one in self.consumers:
            if one.number:
                self.outbox.members.pop(one.number, None)
                self.outbox.end_member(one.number)
                one.number = 0
                one.member.number = 0
            one.attached = False
            one.ordered = None              # positions of the line to the former owner, which it decides
            one.keep_early()
        self.owner = owner
        self.outbox = outbox
        self.group = group
        self.channel = None
        if outbox is not None:
            self.hub = outbox.hub
            self.channel = outbox.channel(self.group)

    @property
    def replication_group(self) -> int:
        """See peer/queue_relay.pxd: `group`."""
        return self.group

    def forget_held(self):
        """The owner is gone, and the messages with it: what consumers hold cannot be settled any more."""
        cdef RelayMember one
        cdef claim_t* claim
        for one in self.consumers:
            one.drop_waiting()
            one.settled = one.early = None
            while one.member.oldest != NULL:
                claim = one.member.oldest
                one.member.withdraw(claim)
                one.group.drop_held(claim)

    cdef bint reaches(self) noexcept:
        return self.outbox is not None and self.outbox.takes_queues()

    @property
    def reachable(self) -> bool:
        """Whether there is an owner that takes messages."""
        return self.reaches()

    # A publish must not overtake what went a longer way: see the top of peer/queue_relay.pxd.

    @property
    def keeping(self) -> bool:
        """Whether publishes are kept here for the time being."""
        return self.keepers + self.fences > 0

    @property
    def fenced(self) -> bool:
        """Whether something that was sent to an owner, this one or a former one, is to be committed first (fence)."""
        return self.fences > 0

    def keep(self):
        """Publishes are kept here until let_go()."""
        self.keepers += 1

    def let_go(self):
        """Ends one keep(): what was kept goes to the owner, unless something else keeps it."""
        self.keepers -= 1
        self.may_flush()

    def fence(self):
        """Publishes are kept here until what was sent to the owner is committed: at that node, and where that one has
        forwarded it. It lasts as long as a publisher may wait, if that node does not answer; then they are refused."""
        cdef ticket_t ticket
        if not self.reaches() or self.sent_in == 0:
            return
        if self.group == 0 and self.sent_in <= self.outbox.acknowledged_upto:
            return
        if self.group and self.sent_upto <= self.channel.told:
            return                          # an acknowledgement says nothing of the channel
        ticket = ticket_t(self.channel.line.gathering(), self.channel.line.number, 0, 0)
        self.outbox.take_barrier(self.channel, False)
        cdef Fence fence = Fence.__new__(Fence)
        fence.relay, fence.outbox = self, self.outbox
        self.fences += 1
        self.hub.commits.hold_at(ticket, HELD_CALL, NULL, (fence, fence.given_up), 0, 0)

    cdef int refuse_kept(self, str why) except -1:
        """What publishers wait for goes nowhere. They hear it in their turn: those ahead may not be answered yet."""
        cdef KeptPublish one
        for one in self.kept:
            if one.refusal is None and (one.awaited == RELAY_AWAITED or one.awaited == RELAY_FORCED):
                one.refusal = why
                one.line.refuse(one.position, REASON_UNSPECIFIED_ERROR, why)
        return 0

    cdef int may_flush(self) except -1:
        if self.keepers or self.fences or self.ended:
            return 0
        return self.flush(False)

    def flush_here(self):
        """The queue's messages are at this node now: it takes what was kept. The relay is not used any more."""
        cdef RelayMember consumer
        self.ended = True
        for consumer in self.consumers:
            if consumer.shared is not None:
                consumer.shared.remove(consumer)
        self.flush(True)
        self.give_line_back()

    cdef int flush(self, bint here) except -1:
        """What was kept goes to the owner; here: that is this node."""
        cdef list kept
        cdef KeptPublish one
        cdef uint64_t began = self.queue.ledger.commits.mark
        kept, self.kept = self.kept, []
        self.kept_bytes = 0
        for one in kept:
            self.settle_kept(one, began, here)
        if self.crowded is not None:        # its owner may be another one than when that was full
            self.crowded.ease()
            self.crowded = None
        if self.on_flushed is not None:
            self.on_flushed(self.queue)
        return 0

    cdef int decide_kept(self) except -1:
        cdef KeptPublish last = None
        while self.waits and (<KeptPublish>self.waits[0]).decided:
            last = self.waits.popleft()
        if last is not None:
            last.line.decide(last.position)
            self.give_line_back()
        return 0

    cdef int give_line_back(self) except -1:
        """If the relay is not used any more, and nobody waits for its line."""
        if self.ended and self.line is not None and self.line.decided + 1 == self.line.at:
            self.line.retire()
            self.line = None
        return 0

    cdef int settle_kept(self, KeptPublish one, uint64_t began, bint here) except -1:
        """Publishes what was kept, unless it was refused, and has its publisher hear what becomes of it. began: the
        mark before the first that is published now. A position that is refused is decided behind those ahead of it."""
        cdef body_t body
        cdef pub_t pub
        cdef origin_t origin
        cdef once_t once
        cdef Hub hub = self.hub
        cdef Commits commits = hub.commits
        cdef uint64_t since = commits.mark
        cdef int reason
        if one.refusal is None:
            memset(&pub, 0, sizeof(pub))
            body_borrow(&body, one.topic, one.properties, one.payload, one.expires_at, one.format)
            origin = origin_t(name=one.origin, use=one.use, packet_id=one.packet_id, spread=True, doubtful=one.doubtful)
            once = once_of(&origin)
            if one.origin:
                pub.once = &once
            try:
                hub.whole = one.whole
                if here:
                    reason = self.put_here(&body, one, &origin if one.origin else NULL)
                else:
                    reason = self.publish(&body, one.qos, one.awaited, &pub)
            finally:
                hub.whole = False
            if one.position == 0:
                return 0
            if reason:
                one.refusal = "" if here else self.queue.ledger.away_why or ""
                one.line.refuse(one.position, <uint16_t>reason, one.refusal)
        if one.refusal is None:
            if commits.hold_call((one, one.refused), since) == 0:
                one()
        elif commits.hold_call((one, one.given_up), began) == 0:
            one()
        return 0

    cdef int put_here(self, const body_t* body, KeptPublish one, origin_t* origin) except -1:
        """As PeerInbox.publish_to_queue. That this node has published it says nothing: it was kept."""
        cdef Queue queue = self.queue
        cdef Hub hub = self.hub
        cdef Commits commits = hub.commits
        cdef uint64_t written = commits.mark - commits.tickets
        cdef uint32_t mark = queue_mark(queue.identity)
        cdef Use known
        cdef int reason
        if body.expires_at and body.expires_at < hub.node.steady_ms:
            hub.node.counters.dropped_expired += 1
            return 0
        if origin != NULL:
            known = hub.origins.find(origin)
            if known is not None and mark in <tuple>known.groups:
                hub.ledger.wait_for_earlier(queue.line)
                return 0
            if hub.origins.is_late(origin):
                return 0
        try:
            if one.awaited == RELAY_FORCED:
                reason = queue.put_forced(body, one.qos)
            else:
                reason = queue.put(body, one.qos, NULL)
        except StorageError:
            reason = REASON_UNSPECIFIED_ERROR
        if reason:
            if one.awaited == RELAY_UNAWAITED or one.awaited == RELAY_TAKEN:
                queue.refused(&queue.counts.capture_lost)
                return 0
            return reason
        if origin != NULL:
            queue.note_origin(origin)
            hub.origins.note_group(origin, mark, commits.mark - commits.tickets != written and hub.ledger.active())
        return 0

    cdef int keep_one(self, const body_t* body, uint8_t qos, int awaited, const pub_t* pub) except -1:
        cdef Hub hub = self.hub
        cdef KeptPublish one = KeptPublish.__new__(KeptPublish)
        cdef origin_t* origin = origin_of(pub)
        cdef bint full = self.kept_bytes >= self.outbox.window_bytes
        if full and awaited == RELAY_UNAWAITED:
            awaited = RELAY_TAKEN           # as PeerOutbox.take_publish
        one.topic = PyBytes_FromStringAndSize(<const char*>body.topic, body.topic_length)
        one.properties = PyBytes_FromStringAndSize(<const char*>body.properties, body.properties_length)
        one.payload = PyBytes_FromStringAndSize(<const char*>body.payload, body.payload_length)
        one.expires_at = body.expires_at
        one.format = body.format
        one.qos = qos
        one.awaited = awaited
        one.whole = hub.whole
        one.relay = self
        if origin != NULL:
            origin.spread = True
            one.origin, one.use, one.packet_id = origin.name, origin.use, origin.packet_id
            one.doubtful = origin.doubtful
        if awaited:
            if self.line is None:
                self.line = hub.commits.open_line("publishes that wait for the owner of their queue")
            one.line = self.line
            one.position = self.line.give_one()
            self.waits.append(one)
        if full:
            hub.crowded = self.crowded = self.outbox
            hub.crowded_mark = hub.commits.mark
        self.kept.append(one)
        self.kept_bytes += body.topic_length + body.properties_length + body.payload_length
        return 0

    def room_of(self, Member member not None) -> int:
        """How many messages a consumer can take now, beyond what it holds. Raises KeyError."""
        cdef RelayMember one = self.of(member)
        cdef uint32_t room = member.shared_room()
        if one.shared is not None and room != ROOM_UNSHARED:
            return one.shared.first_room(one, room)
        return one.room()

    def attach(self, Member member not None, bytes data not None, uint32_t room=0) -> int:
        """Asks the owner to attach a consumer, which has joined its group here. room: which `data` tells, see room_of.
        Returns the number under which the answer comes. Raises UsageError if the owner is away."""
        cdef RelayMember one = self.of(member)
        if not self.reaches():
            raise UsageError(f"queue {self.queue.name!r} has no owner")
        if one.number:                      # a former question that was not answered, or refused
            self.outbox.members.pop(one.number, None)
            self.outbox.end_member(one.number)
            one.keep_early()
        one.number = self.outbox.next_number()
        one.halted = 0                      # a position of the line to a former owner
        if one.waiting_count:
            one.watch()
        member.number = 0                   # until the owner has attached it
        one.told = member.held + room
        self.outbox.members[one.number] = one
        self.outbox.take_call(self.channel, PEER_ATTACH, one.number, self.queue.identity, data)
        return one.number

    def call(self, bytes data not None, bint awaited=False) -> int:
        """A question to the owner, behind what it has got so far. Returns the number under which the answer comes.
        awaited: this gives a ticket, which the owner may refuse (PeerOutbox.refuse). Raises UsageError if the owner is
        away."""
        cdef uint32_t number
        if not self.reaches():
            raise UsageError(f"queue {self.queue.name!r} has no owner")
        number = self.outbox.next_number()
        self.outbox.hub.whole = True        # the owner refuses at the position before the call, in its frame
        try:
            if awaited:
                self.outbox.take_barrier(self.channel, True)
            self.outbox.take_call(self.channel, PEER_CALL, number, self.queue.identity, data)
        finally:
            self.outbox.hub.whole = False
        return number

    def publish_once(self, bytes topic not None, bytes payload not None, bytes properties not None, *, uint64_t name,
                     uint64_t use, int qos=1, int format=0, int64_t expires_at=0) -> int:
        """Publishes a dead letter with an origin, by which the owner knows it if it comes again, and gives a ticket.
        topic, properties: valid, encoded as `format`. Returns 0, or the MQTT 5 reason code of the refusal."""
        cdef body_t body
        cdef pub_t pub
        cdef origin_t origin
        cdef once_t once
        if not self.reaches():
            return REASON_SERVER_UNAVAILABLE
        memset(&pub, 0, sizeof(pub))
        body_borrow(&body, topic, properties, payload, expires_at, <uint8_t>format)
        origin = origin_t(name=name, use=use, packet_id=0, spread=True, doubtful=True)
        once = once_of(&origin)
        pub.once = &once
        return self.publish(&body, <uint8_t>qos, RELAY_FORCED, &pub)

    def release(self, uint64_t name, uint64_t use):
        """The message with this origin does not come again."""
        if self.reaches():
            self.outbox.release(name, 0, use)
            self.outbox.hub.touch()

    def of(self, Member member not None) -> RelayMember:
        """What this relay knows of a consumer. Raises KeyError."""
        cdef RelayMember one
        for one in self.consumers:
            if one.member is member:
                return one
        raise KeyError(member)

    def await_owner(self, Member member not None, uint32_t log, list offsets not None):
        """A client has settled these messages, or extended its claims on them, and waits for the last ticket that was
        given. It hears that it is refused if the owner has taken one of them back before. log: index in the queue.
        Raises KeyError."""
        cdef RelayMember one = self.of(member)
        cdef uint64_t position
        if not self.reaches():
            return
        one.ordered = {key: at for key, at in (one.ordered or {}).items() if at > self.channel.line.decided}
        position = self.channel.line.at - 1
        for offset in offsets:
            one.ordered[log, offset] = position

    cdef int publish(self, const body_t* body, uint8_t qos, int awaited, const pub_t* pub) except -1:
        if not self.reaches():
            self.queue.refused(&self.queue.counts.refused_away)
            self.queue.ledger.refused_away += 1
            self.queue.ledger.away_why = f"the queue is at node {self.owner}, which is away"
            return REASON_SERVER_UNAVAILABLE
        if self.refuses is not None and awaited == RELAY_AWAITED:
            self.queue.refused(&self.queue.counts.refused_away)
            self.queue.ledger.refused_elsewhere += 1
            self.queue.ledger.away_why = self.refuses
            return REASON_SERVER_UNAVAILABLE
        if self.keepers or self.fences:
            return self.keep_one(body, qos, awaited, pub)
        self.sent_in = self.outbox.newest() + 1
        self.sent_upto = self.channel.line.at
        return self.outbox.take_publish(self.channel, self.queue.identity, body, qos, awaited, pub)

    cdef int settle(self, object group, claim_t* claim, uint8_t verb, int64_t ms, bint counts, str reason) except -1:
        cdef Cursor cursor = <Cursor>claim.cursor
        cdef Member member = <Member>claim.member
        cdef uint32_t number = member.number
        cdef uint64_t offset = claim.offset
        cdef uint16_t deliveries = claim.deliveries
        cdef uint32_t log = log_index(cursor.partition, fit_u32(lane_of(offset)), self.queue.lanes)
        cdef bytes why = None if reason is None else reason.encode()
        cdef uint8_t flags = verb | (PEER_COUNTS if counts else 0)
        if verb != VERB_EXTEND:
            (<Group>group).drop_held(claim)
            self.queue.touch()
        if number == 0 or not self.reaches():
            return 0 if verb == VERB_EXTEND else self.keep_settled(member, (flags, deliveries, log, offset, ms, why))
        return self.outbox.take_settlement(self.channel, number, flags, deliveries, log, offset, ms, why)

    cdef int keep_settled(self, Member member, tuple what) except -1:
        """Keeps what a consumer has done until the owner has attached it: (verb and flags, deliveries, index of the
        log, offset, ms, reason). If it leaves before that, the owner gives the message to somebody else."""
        self.of(member).keep_settled(what)
        return 0

    cdef int barrier(self) except -1:
        if self.settled:
            self.send_settled(False)
        return self.outbox.take_barrier(self.channel, True) if self.reaches() else 0

    cdef int send_settled(self, bint attached) except -1:
        """What consumers have kept. attached: of those only whom the owner has attached."""
        cdef RelayMember one
        self.settled = False
        for one in self.consumers:
            if one.attached or not attached:
                one.send_settled()
            self.settled = self.settled or one.settled is not None
        return 0

    cdef int joined(self, object group, Member member, bint pulls) except -1:
        cdef RelayMember one = RelayMember.__new__(RelayMember)
        if member.mark == 0:
            member.mark = self.queue.ledger.next_identity()
        one.member = member
        one.group = <Group>group
        one.relay = self
        one.pulls = pulls
        self.consumers.append(one)
        one.share_room()
        return 0

    cdef int left(self, object group, Member member) except -1:
        cdef RelayMember one = self.of(member)
        self.consumers.remove(one)
        if one.shared is not None:
            one.shared.remove(one)
        one.return_waiting(0)
        one.send_settled()
        if one.number:
            self.outbox.members.pop(one.number, None)
            if self.reaches():
                self.outbox.take_detach(one.number, False)
        one.number = member.number = 0
        return 0

    cdef int rests(self, Member member) except -1:
        cdef RelayMember one = self.of(member)
        one.rests = True
        if one.shared is not None:
            one.shared.remove(one)
        one.return_waiting(0)
        if one.number and self.reaches():
            self.outbox.take_detach(one.number, True)
        return 0

    cdef int pump(self) except -1:
        cdef RelayMember one
        if self.again:
            self.again = False
            if self.reaches():
                self.send_settled(True)
        for one in self.consumers:
            if one.waiting_count and not one.pulls:
                one.give_waiting()
            if self.reaches():
                one.tell()
        if self.queue.readers and self.on_readers is not None:
            self.on_readers(self.queue)
        return 0
