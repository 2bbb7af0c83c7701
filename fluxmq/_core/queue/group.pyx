# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. Distributes messages among members; see queue/group.pxd. Beside it are the members and their partitions
(queue/balance.pyx), messages named by offset (queue/by_offset.pyx), and the head of a queue as AMQP defines it
(queue/amqp_head.pyx). Delivery and settlement are one file, because calls are direct only within a file.

Memory: none for a message never claimed; a claim_t for one that a member holds (limited per member, and by may_hold of
queue/claim.pxd) or that is ready again (limited by returned_max); a bit for one settled before an older one, in pages
of 8 KiB per 65 536 offsets.
"""
cimport cython
from libc.stdlib cimport free

from fluxmq._core.errors import UsageError

from fluxmq._core.disk.record_kinds cimport RECORD_CLAIM, RECORD_OWNER, RECORD_RETURN, RECORD_SETTLE
from fluxmq._core.memory.node cimport node_t
from fluxmq._core.queue.claim cimport (
    CLAIM_DYING, CLAIM_HELD, CLAIM_READY, CLAIM_WAITING, DELIVER_KEPT, DUE_DYING, DUE_DYING_RETRIES, busy_lane,
    claim_let_go, claim_member, enter, heap_push, heap_remove, may_hold,
)
from fluxmq._core.queue.log cimport NOTHING_WANTED, chunk_hold
from fluxmq._core.queue.policy cimport policy_of
from fluxmq._core.queue.relay cimport VERB_ACK, VERB_NACK, VERB_REJECT
from fluxmq._core.wire.primitives cimport put_u16, put_u32, put_u64

__all__ = ["Group"]

# Shared value of empty `members` and `pullers`, because many groups have none. Never changed in place.
cdef list NONE = []

cdef enum:
    DELIVERIES_MAX = 65535
    SCAN_MAX = 10000            # messages that one pump scans for one cursor without delivering any
    RETURNED_MIN = 1000         # returned messages allowed to a group even if the node's claims are used up


cdef inline bint is_over(const record_t* record, int64_t now, int64_t wall_ms, queue_policy_t policy) noexcept:
    """Whether the message has expired, by the rules of the policy. now: by the clock of its line."""
    return record.expires_at != 0 and (record.expires_at < now or (
        record.expires_at == now and not (policy.grants_instant and record.time_ms == wall_ms)))


# Members' claims point into cursors, so the garbage collector must not clear the cursors first.
@cython.no_gc_clear
@cython.final
cdef class Group(Members):
    """Machine. One group of one queue.

    number: its identifier on disk. mode: "shared" (any member gets any message), "exclusive" (a partition belongs to
    one member at a time) or "single" (all partitions belong to the oldest member). volatile: nothing is recorded. line:
    commit line of its records, that of its queue's logs; None: the journal.
    """

    def __cinit__(self, Ledger ledger not None, uint64_t number, bytes name not None, *, uint32_t returned_max=100_000,
                  uint32_t deliveries_max=0, str mode="shared", bint volatile=False, Line line=None):
        if mode not in ("shared", "exclusive", "single"):
            raise UsageError(f"a group is shared, exclusive or single, not {mode!r}")
        self.ledger = ledger
        self.line = ledger.commits.local if line is None else line
        self.number = number
        self.name = name
        self.mode = mode
        self.volatile = volatile or not ledger.keeps(self.line)
        self.returned_max = returned_max
        self.deliveries_max = deliveries_max
        self.cursors = []
        self.members = NONE
        self.pullers = NONE
        self.order = NONE
        self.reads_dead = True
        self.waiting.by_due = 1
        self.leases.by_due = 1

    def __dealloc__(self):
        free(self.dying.items)
        free(self.waiting.items)
        free(self.leases.items)

    def end(self):
        """The group has ended: frees its claims."""
        cdef Cursor cursor
        self.disband()
        for cursor in self.cursors:
            self.drop_claims(cursor)

    cdef int changed(self) except -1:
        """The next checkpoint must write the group. While it is dirty, its queue is dirty, or being handled by a
        checkpoint."""
        if not self.dirty:
            self.dirty = True
            if self.home is not None:
                self.home.note_change()
        return 0

    cdef int touch(self) except -1:
        self.changed()
        if self.owner is not None:
            self.owner.touch()
        return 0

    def set_policy(self, int number):
        """number: POLICY_*."""
        self.policy = policy_of(number)

    # ---------------------------------------------------------------- delivery

    cdef bint takes(self, Member member) except -1:
        if member.refused_in == self.pumps or member.credit() == 0:
            return 0
        if may_hold(&self.ledger.node, member.carrier, member.held, member.held_max):
            if member.limited and 2 * member.held <= member.limited_at:
                self.unlimit(member)
            return 1
        if not member.limited:
            member.limited = True
            member.limited_at = member.held
            self.ledger.node.gauges.limited += 1
            self.ledger.limited.append(member)
        return 0

    cdef bint may_claim(self) except -1:
        cdef uint32_t returned = self.claims - self.held
        if returned < self.returned_max and (
                returned < RETURNED_MIN or self.ledger.node.gauges.claims < self.ledger.node.claims_max):
            self.limited = False
            return 1
        self.held_back = True
        if not self.limited:
            self.limited = True
            self.ledger.limited.append(self)
        return 0

    cdef Member member_with_credit(self):
        """The next member with credit, in turn. The turn passes on when it gets a message (hand), not before."""
        cdef uint32_t count = <uint32_t>len(self.members)
        cdef uint32_t i
        cdef Member member
        if self.ranked:
            return self.ranked_with_credit()
        for i in range(count):
            member = <Member>self.members[(self.turn_member + i) % count]
            if self.takes(member):
                self.turn_next = (self.turn_member + i + 1) % count
                return member
        return None

    cdef Member ranked_with_credit(self):
        """As member_with_credit, highest priority first; members of equal priority take turns."""
        cdef uint32_t count = <uint32_t>len(self.members)
        cdef uint32_t first = 0
        cdef uint32_t end, i
        cdef Member member
        while first < count:
            end = first + 1
            while end < count and (<Member>self.members[end]).priority == (<Member>self.members[first]).priority:
                end += 1
            for i in range(end - first):
                member = <Member>self.members[first + (self.turn_member + i) % (end - first)]
                if self.takes(member):
                    self.turn_next = self.turn_member + i + 1
                    return member
            first = end
        return None

    cdef int pump(self) except -1:
        cdef uint32_t handed = 0
        cdef uint32_t at = self.busy_from(0)
        cdef Cursor cursor
        self.stalled = self.held_back = False
        self.pumps += 1
        while at < self.order_count:
            for cursor in <list>self.order[at]:
                if cursor.floor < cursor.log.first:
                    self.skip_to(cursor, cursor.log.first)
            at = self.busy_from(at + 1)
        if self.dying.count and not self.end_dying():
            self.stalled = True
            self.dying_first = not self.dying_first
        if not self.members:
            return 0
        if self.mode == "shared":
            self.pump_order(&handed)
        else:
            at = self.busy_from(0)
            while at < self.order_count:
                for cursor in <list>self.order[at]:
                    if cursor.owner is not None and self.is_free(cursor):
                        self.pump_cursor(cursor, cursor.owner, &handed)
                at = self.busy_from(at + 1)
        if self.dying.count and self.dying_first:
            self.end_dying()                    # again, because consumers may have replaced Log.wanted
        if self.held_back and self.may_claim():
            self.touch()                        # returned messages held back a lane, and have been delivered since
        return handed

    cdef int end_dying(self) except -1:
        """Ends DYING claims whose messages are in memory. 0: one must be read from disk first."""
        cdef claim_t* claim
        cdef Cursor cursor
        cdef chunk_t* chunk = NULL
        cdef uint64_t offset
        while self.dying.count:
            claim = self.dying.items[0]
            cursor = <Cursor>claim.cursor
            offset = claim.offset
            if (offset >= cursor.log.first and cursor.log.find(offset, &chunk) == NULL
                    and cursor.log.wanted != NOTHING_WANTED):
                return 0
            self.kill(cursor, offset, claim.deliveries,
                      self.dying_reasons.pop((cursor.log.number, offset), "rejected") if self.dying_reasons
                      else "rejected")
        return 1

    cdef uint32_t busy_from(self, uint32_t at) noexcept:
        if self.owner is None or self.owner.busy_lanes != self.order_count or at >= self.order_count:
            return at
        return self.order_count - 1 - busy_lane(self.owner.busy, <int>(self.order_count - 1 - at))

    cdef bint is_free(self, Cursor cursor):
        """Exclusive groups: whether only its owner holds messages of the partition, in any lane."""
        cdef Cursor lane
        for lane in self.cursors if self.lanes is None else <list>self.lanes[cursor.partition]:
            if lane.held and lane.holder is not None and lane.holder is not cursor.owner:
                return 0
        return 1

    cdef int pump_order(self, uint32_t* handed) except -1:
        """Serves lanes from the highest; in each lane partitions take turns, message by message."""
        cdef uint32_t i, count, before
        cdef uint32_t next_at = 0
        cdef Cursor cursor
        cdef list lane
        while True:
            next_at = self.busy_from(next_at)
            if next_at >= self.order_count:
                return 0
            lane = self.order[next_at]
            next_at += 1
            count = <uint32_t>len(lane)
            if count == 1:
                if self.pump_cursor(<Cursor>lane[0], None, handed):
                    return 0
                continue
            before = handed[0] + 1
            while handed[0] != before:
                before = handed[0]
                for i in range(count):
                    cursor = <Cursor>lane[(self.turn_cursor + i) % count]
                    if self.pump_one(cursor, handed):
                        return 0
                self.turn_cursor += 1

    cdef int pump_one(self, Cursor cursor, uint32_t* handed) except -1:
        """Delivers at most one message. 1: no member has credit."""
        cdef Member member
        cdef claim_t* claim
        cdef const record_t* record = NULL
        cdef chunk_t* chunk = NULL
        cdef bint stop = 0
        while True:
            member = self.member_with_credit()
            if member is None:
                return 1
            claim = self.ready_claim(cursor, &record, &chunk, &stop)
            if claim == NULL and not stop:
                if not self.may_claim():
                    return 0
                claim = self.fresh_claim(cursor, &record, &chunk, &stop)
            if claim == NULL:
                return 0
            if self.hand(cursor, claim, record, chunk, member):
                handed[0] += 1
                return 0

    cdef int pump_cursor(self, Cursor cursor, Member only, uint32_t* handed) except -1:
        """Delivers all messages of a log that members (or `only`) take. 1: no member has credit."""
        cdef Member member
        cdef claim_t* claim
        cdef const record_t* record = NULL
        cdef chunk_t* chunk = NULL
        cdef bint stop = 0
        while True:
            if only is not None:
                member = only if self.takes(only) else None
            else:
                member = self.member_with_credit()
            if member is None:
                return 1
            claim = self.ready_claim(cursor, &record, &chunk, &stop)
            if claim == NULL and not stop:
                if not self.may_claim():
                    return 0
                claim = self.fresh_claim(cursor, &record, &chunk, &stop)
            if claim == NULL:
                return 0
            handed[0] += self.hand(cursor, claim, record, chunk, member)

    cdef claim_t* ready_claim(self, Cursor cursor, const record_t** record, chunk_t** chunk, bint* stop) except? NULL:
        """Takes the oldest claim that is ready again out of its heap. stop: it must be read from disk first."""
        cdef claim_t* claim
        cdef const record_t* found
        cdef uint64_t offset
        while cursor.ready.count:
            claim = cursor.ready.items[0]
            offset = claim.offset
            found = NULL
            if offset >= cursor.log.first:
                found = cursor.log.find(offset, chunk)
                # A `wanted` offset above this one means that this message is not stored any more.
                if found == NULL and cursor.log.wanted != NOTHING_WANTED and cursor.log.wanted <= offset:
                    self.stalled = True
                    stop[0] = 1
                    return NULL
            if found == NULL or found.offset != offset:
                self.settle_offset(cursor, offset)      # retention has removed it
                continue
            self.ready_bytes -= found.payload_length
            if self.deliveries_max and claim.deliveries >= self.deliveries_max:
                self.kill(cursor, offset, claim.deliveries, "max_retries")
                continue
            if is_over(found, self.now(), self.ledger.node.now_ms, self.policy):
                self.kill(cursor, offset, claim.deliveries, "expired")
                continue
            heap_remove(&cursor.ready, claim)
            record[0] = found
            return claim
        return NULL

    cdef claim_t* fresh_claim(self, Cursor cursor, const record_t** record, chunk_t** chunk, bint* stop) except? NULL:
        """Claims the next message that was never claimed."""
        cdef const record_t* found
        cdef claim_t* claim
        cdef uint32_t looked = 0
        while cursor.next < cursor.log.next:
            if cursor.settled and cursor.is_settled(cursor.next):
                cursor.next += 1
                continue
            found = cursor.log.find(cursor.next, chunk)
            if found == NULL:
                if cursor.log.wanted != NOTHING_WANTED:
                    # Skips the gap, where nothing is stored. Otherwise, with a small cache, a read for the gap and one
                    # for the messages behind it would evict each other's chunks again and again.
                    cursor.pass_over(cursor.log.wanted)
                    self.stalled = True
                    stop[0] = 1
                return NULL
            cursor.pass_over(found.offset)
            self.ready_bytes -= found.payload_length
            if is_over(found, self.now(), self.ledger.node.now_ms, self.policy):
                cursor.next = found.offset + 1
                self.kill(cursor, found.offset, 0, "expired")
                continue
            if self.filter is not None and not self.filter.wants(found):
                cursor.next = found.offset + 1
                self.settle_offset(cursor, found.offset)
                looked += 1
                if looked >= SCAN_MAX:
                    self.touch()                        # continues in the next turn
                    return NULL
                continue
            claim = self.add_claim(cursor, found.offset)
            cursor.next = found.offset + 1
            record[0] = found
            return claim
        return NULL

    cdef claim_t* add_claim(self, Cursor cursor, uint64_t offset) except NULL:
        cdef claim_t* claim = cursor.add(offset)
        self.claims += 1
        self.ledger.node.gauges.claims += 1
        return claim

    cdef void drop_claim(self, claim_t* claim) noexcept:
        """Frees a claim that no member holds and no heap contains."""
        (<Cursor>claim.cursor).drop(claim)
        self.claims -= 1
        self.ledger.node.gauges.claims -= 1

    cdef void drop_claims(self, Cursor cursor) noexcept:
        cdef uint32_t i
        cdef claim_t* claim
        if cursor.table != NULL:
            for i in range(cursor.table_mask + 1):
                while cursor.table[i] != NULL:
                    claim = cursor.table[i]
                    self.unlink(claim)
                    self.drop_claim(claim)

    cdef int skip_to(self, Cursor cursor, uint64_t first) except -1:
        """Settles everything below `first`, which retention has removed, except claims that members hold."""
        while cursor.ready.count and cursor.ready.items[0].offset < first:
            self.settle_offset(cursor, cursor.ready.items[0].offset)
        if cursor.floor < first:
            while cursor.settled and cursor.floor < first:
                if cursor.is_settled_bit(cursor.floor):
                    cursor.settled -= 1
                cursor.set_floor(cursor.floor + 1)
            cursor.set_floor(first)
            cursor.advance()
        if cursor.next < first:
            cursor.next = first
        self.changed()
        return 0

    cdef int hand(self, Cursor cursor, claim_t* claim, const record_t* record, chunk_t* chunk, Member member) except -1:
        """Delivers a claim that is in no heap to a member. 0: refused; the member gets nothing more in this pump."""
        cdef int taken
        self.turn_member = self.turn_next
        claim.chunk = chunk
        claim.payload = record.payload_length
        chunk_hold(chunk)
        if claim.deliveries < DELIVERIES_MAX:
            claim.deliveries += 1
        self.hold(cursor, claim, member)
        taken = member.deliver(claim, record)
        if taken:
            if taken != DELIVER_KEPT:
                claim_let_go(claim)
            if self.owner is not None:
                self.owner.counts.delivered += 1
                self.owner.counts.redelivered += claim.deliveries > 1
            self.note_claim(cursor.log.number, claim, member)
            self.changed()
            return 1
        member.refused_in = self.pumps
        self.take_from_member(claim)
        claim.deliveries -= 1
        claim.due_ms = 0
        enter(claim, CLAIM_READY)
        heap_push(&cursor.ready, claim)
        self.ready_bytes += claim.payload
        return 0

    cdef bint pass_on(self, Cursor cursor, uint64_t offset, uint16_t deliveries, const record_t* record, chunk_t* chunk,
                      Member member) except -1:
        """In a group with `relay`: gives a member a message that its owner has claimed for it, in this delivery. 0: the
        member did not take it, and nobody here has it."""
        cdef claim_t* claim = cursor.find(offset)
        cdef bint taken = 0
        if claim != NULL and claim.member == <void*>member:
            claim.deliveries = deliveries       # it holds it already: the owner has given it once more
            return 1
        if claim != NULL:                       # another one had it: from a former owner, or it was taken back
            (<Member>claim_member(claim, CLAIM_HELD)).withdraw(claim)
            self.drop_held(claim)
        claim = self.add_claim(cursor, offset)
        claim.deliveries = deliveries - 1 if deliveries else 0
        try:
            taken = self.hand(cursor, claim, record, chunk, member)
        finally:
            if not taken:
                if claim.state == CLAIM_HELD:
                    self.drop_held(claim)
                else:
                    self.ready_bytes -= claim.payload
                    heap_remove(&cursor.ready, claim)
                    self.drop_claim(claim)
        return taken

    cdef int hold(self, Cursor cursor, claim_t* claim, Member member) except -1:
        """The member holds a claim that is in no heap."""
        enter(claim, CLAIM_HELD)
        claim.member = <void*>member
        claim.held_since = <uint32_t>(self.ledger.node.mono_ms // 1000)     # fits: 136 years of uptime
        claim.before = member.newest
        claim.behind = NULL
        if member.newest != NULL:
            member.newest.behind = claim
        else:
            member.oldest = claim
        member.newest = claim
        member.held += 1
        self.held += 1
        cursor.held += 1
        if member.carrier != NULL:
            member.carrier.claims += 1
        cursor.holder = member
        if member.lease_ms:
            claim.due_ms = self.ledger.node.mono_ms + member.lease_ms
            heap_push(&self.leases, claim)
        return 0

    cdef bint hold_again(self, Cursor cursor, uint64_t offset, uint16_t deliveries, Member member) except -1:
        """A member says that it holds a message since before this group knew it, in this delivery: it does, if nobody
        has got it since. Returns whether it does."""
        cdef claim_t* claim = cursor.find(offset)
        if claim == NULL or claim.state != CLAIM_READY or claim.deliveries != deliveries:
            return 0
        heap_remove(&cursor.ready, claim)
        self.ready_bytes -= claim.payload
        claim.due_ms = 0
        self.hold(cursor, claim, member)
        self.touch()
        return 1

    cdef void take_from_member(self, claim_t* claim) noexcept:
        cdef Member member = <Member>claim_member(claim, CLAIM_HELD)
        if claim.before != NULL:
            claim.before.behind = claim.behind
        else:
            member.oldest = claim.behind
        if claim.behind != NULL:
            claim.behind.before = claim.before
        else:
            member.newest = claim.before
        member.held -= 1
        self.held -= 1
        (<Cursor>claim.cursor).held -= 1
        if member.carrier != NULL:
            member.carrier.claims -= 1
        heap_remove(&self.leases, claim)
        claim_let_go(claim)
        claim.member = NULL
        claim.before = claim.behind = NULL

    cdef void unlink(self, claim_t* claim) noexcept:
        """Removes a claim from the heap or list that its state implies."""
        if claim.state == CLAIM_HELD:
            self.take_from_member(claim)
        elif claim.state == CLAIM_READY:
            heap_remove(&(<Cursor>claim.cursor).ready, claim)
        elif claim.state == CLAIM_DYING:
            heap_remove(&self.dying, claim)
            if self.dying_reasons:
                self.dying_reasons.pop(((<Cursor>claim.cursor).log.number, claim.offset), None)
        else:
            heap_remove(&self.waiting, claim)

    # ---------------------------------------------------------------- settlement

    cdef int drop_held(self, claim_t* claim) except -1:
        self.take_from_member(claim)
        self.drop_claim(claim)
        return 0

    cdef int settle(self, claim_t* claim) except -1:
        if self.relay is not None:
            return self.relay.settle(self, claim, VERB_ACK, 0, False, None)
        if self.owner is not None:
            self.owner.counts.settled += 1
        return self.settle_offset(<Cursor>claim.cursor, claim.offset)

    cdef int settle_offset(self, Cursor cursor, uint64_t offset) except -1:
        cdef claim_t* claim = cursor.find(offset)
        if claim != NULL:
            self.unlink(claim)
            self.drop_claim(claim)
        elif cursor.is_settled(offset):
            return 0
        if not cursor.is_settled(offset):
            cursor.mark(offset)
        self.note(RECORD_SETTLE, cursor.log.number, offset, 0)
        self.touch()
        return 0

    cdef int give_back(self, claim_t* claim, int64_t delay_ms, bint counts) except -1:
        cdef Cursor cursor = <Cursor>claim.cursor
        if self.relay is not None:
            return self.relay.settle(self, claim, VERB_NACK, delay_ms, counts, None)
        if counts and self.deliveries_max and claim.deliveries >= self.deliveries_max:
            return self.end_claim(claim, "max_retries")
        if claim.offset < cursor.log.first:             # purged meanwhile, so it cannot be delivered again
            return self.settle_offset(cursor, claim.offset)
        self.unlink(claim)
        self.ready_bytes += claim.payload
        if not counts and claim.deliveries:
            claim.deliveries -= 1
        claim.due_ms = self.now() + delay_ms if delay_ms > 0 else 0
        if claim.due_ms:
            enter(claim, CLAIM_WAITING)
            heap_push(&self.waiting, claim)
        else:
            enter(claim, CLAIM_READY)
            heap_push(&cursor.ready, claim)
        self.write_return(cursor, claim)
        self.touch()
        return 0

    cdef int reject(self, claim_t* claim, str reason) except -1:
        if self.relay is not None:
            return self.relay.settle(self, claim, VERB_REJECT, 0, False, reason)
        return self.end_claim(claim, reason)

    cdef int end_claim(self, claim_t* claim, str reason) except -1:
        cdef Cursor cursor = <Cursor>claim.cursor
        cdef chunk_t* chunk = NULL
        if (not self.reads_dead or claim.offset < cursor.log.first or cursor.log.find(claim.offset, &chunk) != NULL
                or cursor.log.wanted == NOTHING_WANTED):
            return self.kill(cursor, claim.offset, claim.deliveries, reason)
        # Recorded as a return that never becomes due, so that it is not delivered again after a crash.
        self.set_dying(cursor, claim, reason)
        self.write_return(cursor, claim)
        return self.touch()

    cdef int set_dying(self, Cursor cursor, claim_t* claim, str reason) except -1:
        self.unlink(claim)
        enter(claim, CLAIM_DYING)
        claim.due_ms = DUE_DYING_RETRIES if reason == "max_retries" else DUE_DYING
        if reason != "rejected":
            if self.dying_reasons is None:
                self.dying_reasons = {}
            self.dying_reasons[cursor.log.number, claim.offset] = reason
        heap_push(&self.dying, claim)
        return 0

    cdef int kill(self, Cursor cursor, uint64_t offset, uint16_t deliveries, str reason) except -1:
        """Calls on_dead, so that the engine can dead-letter the message in this batch, then settles it in any case."""
        if self.on_dead is not None:
            self.on_dead(self, cursor.log, offset, deliveries, reason)
        return self.settle_offset(cursor, offset)

    def tick(self) -> int | None:
        """Handles expired leases and elapsed delays. Returns the ms until the next one; None: there is none."""
        cdef int64_t mono = self.ledger.node.mono_ms
        cdef int64_t now = self.now()
        cdef claim_t* claim
        cdef object due = None
        while self.leases.count and self.leases.items[0].due_ms <= mono:
            claim = self.leases.items[0]
            (<Member>claim_member(claim, CLAIM_HELD)).withdraw(claim)
            self.give_back(claim, 0, True)
        while self.waiting.count and self.waiting.items[0].due_ms <= now:
            claim = self.waiting.items[0]
            if claim.offset < (<Cursor>claim.cursor).log.first:
                self.settle_offset(<Cursor>claim.cursor, claim.offset)
                continue
            heap_remove(&self.waiting, claim)
            enter(claim, CLAIM_READY)
            claim.due_ms = 0
            heap_push(&(<Cursor>claim.cursor).ready, claim)
            self.touch()
        if self.leases.count:
            due = self.leases.items[0].due_ms - mono
        if self.waiting.count:
            wait = self.waiting.items[0].due_ms - now
            due = wait if due is None else min(due, wait)
        return due

    cdef int64_t now(self) noexcept:
        return self.ledger.node.steady_ms + self.line.shift_ms

    cdef int move(self, Cursor cursor, uint64_t next) except -1:
        self.drop_claims(cursor)
        cursor.start_at(next)
        return 0

    cdef int keep_offsets(self) except -1:
        """At recovery, after replay: reserves every offset that was claimed or settled, even if its message is lost. A
        new message with such an offset would count as settled."""
        cdef Cursor cursor
        cdef uint64_t reach
        for cursor in self.cursors:
            reach = cursor.reach()
            if reach > cursor.log.next:
                cursor.log.replay(b"", reach)
        return 0

    @property
    def lag(self) -> int:
        """Number of messages not settled: never claimed, held, or ready again."""
        cdef Cursor cursor
        cdef uint64_t total = 0
        for cursor in self.cursors:
            if cursor.floor >= cursor.log.next:
                continue
            if cursor.floor >= cursor.log.first:
                total += cursor.log.next - cursor.floor - cursor.settled
            elif cursor.next > cursor.log.first:
                # Until the next pump, `count` may include messages that retention has removed.
                total += cursor.log.next - cursor.next + cursor.count
            else:
                total += cursor.log.next - cursor.log.first
        return total

    # ---------------------------------------------------------------- records

    cdef int note(self, uint8_t kind, uint64_t log, uint64_t offset, uint16_t deliveries) except -1:
        if self.volatile:
            return 0
        if (self.run_count and self.run_kind == kind and self.run_log == log and self.run_deliveries == deliveries
                and self.run_first + self.run_count == offset and self.run_count < RUN_MAX):
            self.run_count += 1
            return 0
        self.write_records()
        self.run_kind = kind
        self.run_log = log
        self.run_first = offset
        self.run_count = 1
        self.run_deliveries = deliveries
        return 0

    cdef int note_claim(self, uint64_t log, const claim_t* claim, Member member) except -1:
        cdef uint64_t life
        if self.line.number:
            life = member.life if member.life else self.ledger.life
            if self.run_kind == RECORD_CLAIM and (self.run_life != life or self.run_member != member.mark):
                self.write_records()
            self.run_life, self.run_member = life, member.mark
        return self.note(RECORD_CLAIM, log, claim.offset, claim.deliveries)

    cdef int say_owners(self) except -1:
        cdef dict owners, said
        if (self.mode == "shared" or self.parts or self.relay is not None
                or (self.home is not None and (self.home.is_copy() or self.home.rests()))):
            return 0
        owners = self.owners_said() if self.members else dict(self.expected or {})
        said, self.said = self.said or {}, owners
        if self.volatile or self.line.number == 0:
            return 0
        for partition, owner in owners.items():
            if said.get(partition) != owner:
                self.write_owner(partition, owner)
        for partition in said.keys() - owners.keys():
            self.write_owner(partition, (0, 0))
        return 0

    cdef bint home_rests(self) noexcept:
        return self.home is not None and self.home.rests()

    cdef int write_owner(self, uint32_t partition, tuple owner) except -1:
        cdef uint8_t* at = self.ledger.reserve(self.line, RECORD_OWNER, 28)
        at = put_u32(put_u64(at, self.number), partition)
        put_u64(put_u64(at, owner[0]), owner[1])
        self.ledger.recorded(self.line)
        return 0

    cdef int write_records(self) except -1:
        """Writes the record of the open run."""
        cdef uint8_t* at
        cdef uint32_t length = 28
        if self.run_count == 0:
            return 0
        if self.run_kind == RECORD_CLAIM:
            length = 46 if self.line.number else 30
        at = self.ledger.reserve(self.line, self.run_kind, length)
        at = put_u64(put_u64(put_u64(at, self.number), self.run_log), self.run_first)
        at = put_u32(at, self.run_count)
        if self.run_kind == RECORD_CLAIM:
            at = put_u16(at, self.run_deliveries)
            if self.line.number:
                put_u64(put_u64(at, self.run_life), self.run_member)
        self.run_count = 0
        self.ledger.recorded(self.line)
        return 0

    cdef int write_return(self, Cursor cursor, claim_t* claim) except -1:
        cdef uint8_t* at
        if self.volatile:
            return 0
        self.write_records()
        at = self.ledger.reserve(self.line, RECORD_RETURN, 34)
        at = put_u64(put_u64(put_u64(at, self.number), cursor.log.number), claim.offset)
        at = put_u16(at, claim.deliveries)
        put_u64(at, <uint64_t>claim.due_ms)
        self.ledger.recorded(self.line)
        return 0

    def held_longest(self, Member member not None):
        """How many seconds its oldest unsettled message has been with a member; None: it has none."""
        if member.oldest == NULL:
            return None
        return max(self.ledger.node.mono_ms // 1000 - member.oldest.held_since, 0)

    def flush_records(self):
        """For the cold half: writes the records of changes made outside of a pump."""
        if self.relay is not None:
            self.relay.barrier()
        self.write_records()
