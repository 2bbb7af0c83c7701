# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. Readers of streams. See queue/stream.pxd."""
cimport cython

from fluxmq._core.errors import UsageError
from fluxmq._core.memory.link cimport link_drop, link_hold
from fluxmq._core.queue.by_offset cimport seek
from fluxmq._core.queue.claim cimport claim_free, claim_new, may_hold
from fluxmq._core.queue.log cimport NOTHING_WANTED, chunk_t

__all__ = ["Feed", "StreamReader"]

cdef enum:
    BURST_MAX = 2000            # messages of one reader in one pump, so that a replay does not delay the others


cdef class Feed:
    """Machine. A base class: see queue/stream.pxd."""

    cdef int pump(self) except -1:
        raise NotImplementedError


cdef class StreamReader:
    """Machine. A subclass implements the delivery.

    log: of a stream. position: first offset to deliver. group: one without members that has a cursor of this log, or
    None.
    """

    def __init__(self, Log log not None, uint64_t position, *, Group group=None, bint manual=False,
                 Filter filter=None):
        self.log = log
        self.next = self.acknowledged = max(position, log.first)
        self.group = group
        self.manual = manual
        self.filter = filter

    def __dealloc__(self):
        cdef claim_t* claim
        while self.oldest != NULL:          # the node has ended without leave(); its counters do not matter
            claim = self.oldest
            self.oldest = claim.behind
            claim_free(claim)
        if self.carrier != NULL:
            link_drop(self.carrier)

    cdef void carried_by(self, link_t* link) noexcept:
        link_hold(link)
        self.carrier = link

    cdef bint takes(self) except -1:
        """Limits the remembered deliveries, which include those acknowledged behind one that never is."""
        cdef Ledger ledger = self.log.ledger
        cdef uint32_t most = self.held_max if self.held_max else ledger.node.member_claims_max
        if may_hold(&ledger.node, self.carrier, self.remembered, most):
            if self.limited and 2 * self.remembered <= most:
                self.unlimit()
            return 1
        if not self.limited:
            self.limited = True
            ledger.node.gauges.limited += 1
            ledger.limited.append(self)
        return 0

    cdef void unlimit(self) noexcept:
        if self.limited:
            self.limited = False
            self.log.ledger.node.gauges.limited -= 1

    cdef uint32_t credit(self) noexcept:
        return 0

    cdef int deliver(self, claim_t* claim, const record_t* record) except -1:
        raise NotImplementedError

    cdef bint keeps(self) noexcept:
        return 1

    cdef int pump(self) except -1:
        """Delivers while there is credit. Returns how many."""
        cdef uint32_t room = self.credit()
        cdef uint32_t done = 0
        cdef uint32_t looked = 0
        cdef chunk_t* chunk = NULL
        cdef const record_t* record = NULL
        cdef claim_t* claim
        self.stalled = False
        if self.paused:
            return 0
        while done < room:
            if looked >= BURST_MAX:
                if self.owner is not None:
                    self.owner.touch()
                break
            if record != NULL:
                record = self.log.following(chunk, record)
            if record == NULL:
                record = self.log.find(self.next, &chunk)
            if record == NULL:
                self.stalled = self.log.wanted != NOTHING_WANTED
                break
            looked += 1
            if (record.expires_at and record.expires_at <= self.log.now()) or (
                    self.filter is not None and not self.filter.wants(record)):
                self.pass_over(record.offset)
                continue
            claim = NULL
            if self.keeps():
                if not self.takes():
                    break
                claim = self.remember(record.offset)
            if not self.deliver(claim, record):
                if claim != NULL:
                    self.take_back(claim)
                break
            self.next = record.offset + 1
            if claim == NULL and self.held == 0:
                self.acknowledged = self.next
            done += 1
        if self.owner is not None:
            self.owner.counts.delivered += done
            if done and done == room and not self.keeps():
                self.owner.touch()          # nothing is acknowledged, so nobody else asks whether there is room
        return done

    cdef void pass_over(self, uint64_t offset) noexcept:
        self.next = offset + 1
        if self.held == 0:
            self.acknowledged = self.next

    cdef claim_t* remember(self, uint64_t offset) except NULL:
        cdef claim_t* claim = claim_new()
        claim.offset = offset
        claim.member = <void*>self
        claim.state = CLAIM_STREAM
        claim.before = self.newest
        if self.newest != NULL:
            self.newest.behind = claim
        else:
            self.oldest = claim
        self.newest = claim
        self.held += 1
        self.remembered += 1
        self.log.ledger.node.gauges.claims += 1
        if self.carrier != NULL:
            self.carrier.claims += 1
        return claim

    cdef void drop(self, claim_t* claim) noexcept:
        self.remembered -= 1
        self.log.ledger.node.gauges.claims -= 1
        if self.carrier != NULL:
            self.carrier.claims -= 1
        claim_free(claim)

    cdef void take_back(self, claim_t* claim) noexcept:
        """Takes back the newest delivery, which was not made."""
        self.newest = claim.before
        if self.newest != NULL:
            self.newest.behind = NULL
        else:
            self.oldest = NULL
        self.held -= 1
        self.drop(claim)

    cdef int acknowledge(self, claim_t* claim) except -1:
        cdef claim_t* oldest
        claim.state = CLAIM_STREAM_DONE
        self.held -= 1
        while self.oldest != NULL and self.oldest.state == CLAIM_STREAM_DONE:
            oldest = self.oldest
            self.oldest = oldest.behind
            if self.oldest != NULL:
                self.oldest.before = NULL
            else:
                self.newest = NULL
            self.drop(oldest)
        self.acknowledged = self.oldest.offset if self.oldest != NULL else self.next
        if self.owner is not None:
            self.owner.touch()
        return 0

    cdef void forget(self) noexcept:
        """The connection has ended: unacknowledged messages are delivered again to the next reader from the
        position."""
        cdef claim_t* claim
        while self.oldest != NULL:
            claim = self.oldest
            self.oldest = claim.behind
            self.drop(claim)
        self.newest = NULL
        self.held = 0
        self.unlimit()

    def go_on_in(self, Log log not None):
        """The stream has come to this node, or has left it: `log` has the same messages, with the same offsets; or the
        last ones are undone, and others will have their offsets."""
        cdef claim_t* claim
        cdef claim_t* before = NULL
        self.log = log
        self.stalled = False
        if self.next <= log.next:
            return
        self.next = log.next
        self.acknowledged = min(self.acknowledged, log.next)
        claim = self.oldest
        while claim != NULL and claim.offset < log.next:
            before = claim
            claim = claim.behind
        if before == NULL:
            self.oldest = NULL
        else:
            before.behind = NULL
        self.newest = before
        while claim != NULL:
            self.held -= 1
            before, claim = claim, claim.behind
            self.drop(before)

    def commit(self, uint64_t next):
        """Sets the group's position, from which other readers and a restart continue. Raises UsageError without a
        group."""
        if self.group is None:
            raise UsageError("this reader has no group, so nobody would find its position again")
        seek(self.group, self.log.number, max(next, self.log.first))

    def auto_commit(self) -> bool:
        """Commits what is acknowledged, unless `manual`. Returns whether the position moved."""
        if self.manual or self.group is None:
            return False
        for cursor in self.group.cursors:
            if cursor.log_number == self.log.number and cursor.next < self.acknowledged:
                self.commit(self.acknowledged)
                return True
        return False
