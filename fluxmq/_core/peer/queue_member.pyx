# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. A consumer of another node, in a group of this one. See peer/queue_member.pxd.

It gets a message by a DELIVERY, which leaves when the claim is on the disk, and gives it back or settles it by a
SETTLE, which names the message and its number of deliveries: one that was given to somebody else meanwhile is not
meant.
"""
cimport cython
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.memory.commits cimport ticket_t
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.claim cimport CLAIM_HELD, DELIVER_REFUSED, DELIVER_TAKEN, claim_t
from fluxmq._core.queue.cursor cimport Cursor
from fluxmq._core.queue.group cimport Group
from fluxmq._core.queue.handover cimport let_go_of
from fluxmq._core.queue.lanes cimport lane_of, log_index
from fluxmq._core.queue.log cimport Log, record_t
from fluxmq._core.queue.relay cimport VERB_ACK, VERB_EXTEND, VERB_NACK
from fluxmq._core.wire.sizes cimport fit_u32

__all__ = ["PeerMember"]


cdef inline uint32_t index_of(Queue queue, Cursor cursor):
    return log_index(cursor.partition, fit_u32(lane_of(cursor.log.first)), queue.lanes)


@cython.final
cdef class PeerMember(Member):
    """Machine. outbox: to the node of the consumer, which has given it `number`, as none other of its own."""

    def __init__(self, PeerOutbox outbox not None, Queue queue not None, uint32_t number):
        self.outbox = outbox
        self.queue = queue
        self.number = number
        self.life = outbox.life
        outbox.hosted[number] = self

    def end(self):
        """It leaves its group: its node has said so, or is gone."""
        self.ending = True
        self.outbox.hosted.pop(self.number, None)
        if self.group is not None:
            (<Group>self.group).leave(self)

    def part(self):
        """The stream to its node stays broken: what it holds is ready again, with its count, and it gets nothing until
        rejoin(). Its node learns it when there is a stream again."""
        cdef Group group = <Group>self.group
        cdef claim_t* claim
        self.absent = True
        if group is None:
            return                      # the queue is moving
        while self.oldest != NULL:
            claim = self.oldest
            self.withdraw(claim)
            group.give_back(claim, 0, True)
        group.balance()
        self.queue.notify()

    def rejoin(self):
        """Ends part()."""
        if self.absent:
            self.absent = False
            if self.group is not None:
                (<Group>self.group).balance()
                self.queue.notify()

    def hold_again(self, uint32_t log, uint64_t offset, uint16_t deliveries):
        """Its node says that it holds this message since before it was attached here; if that is not so any more, the
        node hears of it."""
        cdef Group group = <Group>self.group
        if group is not None and log < <uint32_t>len(group.cursors):
            let_go_of(group, <Cursor>group.cursors[log], offset, deliveries)
        if group is None or log >= <uint32_t>len(group.cursors) or not group.hold_again(
                <Cursor>group.cursors[log], offset, deliveries, self):
            if self.outbox.takes_queues():
                self.outbox.take_withdrawal(self.number, log, offset, self.queue.line.number)
        elif group.line.number:             # whoever led before may have said that nobody holds it any more
            group.note_claim((<Cursor>group.cursors[log]).log.number, (<Cursor>group.cursors[log]).find(offset), self)

    def holds(self, uint32_t log, uint64_t offset, uint16_t deliveries) -> bool:
        """Whether it holds this message, in its delivery of this number. log: index in the queue."""
        return self.claim_at(log, offset, deliveries) != NULL

    cdef claim_t* claim_at(self, uint32_t log, uint64_t offset, uint16_t deliveries):
        cdef Group group = <Group>self.group
        cdef claim_t* claim
        if group is None or log >= <uint32_t>len(group.cursors):
            return NULL
        claim = (<Cursor>group.cursors[log]).find(offset)
        if (claim == NULL or claim.state != CLAIM_HELD or claim.member != <void*>self
                or claim.deliveries != deliveries):
            return NULL
        return claim

    cdef uint32_t credit(self) noexcept:
        if self.absent or not self.outbox.takes_queues() or self.held >= self.limit:
            return 0
        if self.outbox.full() or self.outbox.line_full(self.queue.line.number):
            self.outbox.starved = True
            return 0
        return self.limit - self.held

    cdef int deliver(self, claim_t* claim, const record_t* record) except -1:
        cdef Cursor cursor = <Cursor>claim.cursor
        if not self.outbox.takes_queues():
            return DELIVER_REFUSED
        # The claim is recorded at the end of this pump, so the next batch will not be empty.
        self.outbox.take_delivery(self.number, claim.deliveries, index_of(self.queue, cursor), record, cursor.log.now(),
                                  self.outbox.hub.commits.next_ticket(self.queue.line) if self.queue.awaits_claims
                                  else ticket_t(0, self.queue.line.number, 0, 0))
        return DELIVER_TAKEN

    cdef int withdraw(self, claim_t* claim) except -1:
        # It holds one less, and its node may have no more room for that: a client whose time is over has still not
        # acknowledged the message. The node says so when it has heard of it.
        if self.limit:
            self.limit -= 1
        if not self.ending and self.outbox.takes_queues():
            self.outbox.take_withdrawal(self.number, index_of(self.queue, <Cursor>claim.cursor), claim.offset,
                                        self.queue.line.number)
        return 0

    cdef void forget(self, claim_t* claim) noexcept:
        """An operator, or another consumer of this client, has settled it by its offset."""
        try:
            self.withdraw(claim)
        except Exception:
            pass                    # without memory for that: what its node says of it has no effect any more

    cdef int settle(self, uint8_t verb, uint16_t deliveries, uint32_t log, uint64_t first, uint32_t count, int64_t ms,
                    bint counts, str reason) except -1:
        cdef Group group = <Group>self.group
        cdef claim_t* claim
        cdef uint64_t offset
        for offset in range(first, first + count):
            claim = self.claim_at(log, offset, deliveries)
            if claim == NULL:
                continue
            if verb == VERB_ACK:
                group.settle(claim)
            elif verb == VERB_NACK:
                if ms < 0 and self.backoff is not None:
                    ms = self.backoff(self, deliveries)
                group.give_back(claim, ms, counts)
            elif verb == VERB_EXTEND:
                by_offset.extend(group, (<Cursor>claim.cursor).log.number, offset, ms)
            else:
                group.reject(claim, reason or "rejected")
        return 0
