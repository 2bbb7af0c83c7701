# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. The members of a group; see queue/balance.pxd."""
cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from fluxmq._core.errors import UsageError

from fluxmq._core.queue.claim cimport Member, claim_t
from fluxmq._core.queue.cursor cimport Cursor
from fluxmq._core.queue.log cimport Log

__all__ = ["Members"]


@cython.no_gc_clear
cdef class Members:
    """Machine. Base class of Group."""

    def add_cursor(self, Log log not None, uint32_t partition=0, next=None):
        """Adds a log, which the group reads from `next` on; None: from its oldest message."""
        cdef Cursor cursor = Cursor(log, partition, log.first if next is None else <uint64_t>next)
        self.cursors.append(cursor)
        if len(self.cursors) == 1:              # fast path: nearly all groups have one log
            self.order = [self.cursors]
            self.order_count = 1
            self.balance()
            self.touch()
            return
        if self.lanes is None:
            self.lanes = {(<Cursor>self.cursors[0]).partition: [self.cursors[0]]}
        self.lanes.setdefault(partition, []).append(cursor)
        lanes = sorted({c.log.lane for c in self.cursors}, reverse=True)
        self.order = [[c for c in self.cursors if c.log.lane == lane] for lane in lanes]
        self.order_count = <uint32_t>len(lanes)
        self.balance()
        self.touch()

    def add_cursors(self, list logs not None, uint32_t lanes, bint at_end=False):
        """Adds the logs of a queue (Queue.logs), from their oldest messages on, or at_end: only later messages."""
        cdef Py_ssize_t at
        for at in range(len(logs)):
            self.add_cursor(<Log?>logs[at], <uint32_t>at // lanes, (<Log>logs[at]).next if at_end else None)

    def join(self, Member member not None):
        """Adds a member, which gets messages from the next pump on."""
        if member.group is not None:
            raise UsageError("a member is in one group at a time")
        self.admit(member)
        if not self.members:
            self.members = []           # an empty list may be shared by many groups
        self.members.append(member)
        if self.ranked or member.priority != (<Member>self.members[0]).priority:
            self.rank()                 # otherwise they stay in the order in which they joined, without sorting
        self.balance()
        self.touch()

    def attach(self, Member member not None):
        """Pull-only member (basic.get): no push delivery, not counted as a consumer. amqp_head.pull serves it."""
        if member.group is not None:
            raise UsageError("a member is in one group at a time")
        self.admit(member)
        self.add_puller(member)

    cdef int add_puller(self, Member member) except -1:
        if not self.pullers:
            self.pullers = []
        self.pullers.append(member)
        return 0

    cdef void admit(self, Member member) noexcept:
        member.group = self
        member.refused_in = 0
        if member.held_max == 0:
            member.held_max = self.ledger.node.member_claims_max

    def rest(self, Member member not None):
        """Cancelled consumer (basic.cancel): no push delivery any more; it keeps its claims until they are settled."""
        if member not in self.members:
            return
        self.members.remove(member)
        self.add_puller(member)
        self.left(member)

    def leave(self, Member member not None):
        """Removes a member; its messages are ready again at once."""
        if member.group is not self:
            return
        while member.oldest != NULL:
            member.withdraw(member.oldest)
            self.give_back(member.oldest, 0, True)
        (self.members if member in self.members else self.pullers).remove(member)
        member.group = None
        self.unlimit(member)
        self.left(member)

    cdef int left(self, Member member) except -1:
        cdef Cursor cursor
        for cursor in self.cursors:
            if cursor.holder is member:         # its claims no longer block the partition's next owner
                cursor.holder = None
        if self.ranked:
            self.rank()
        self.balance()
        return self.touch()

    def disband(self):
        """Removes all members and pullers."""
        for member in self.members + self.pullers:
            self.leave(member)

    cdef int rank(self) except -1:
        """Sorts members by priority, and those of equal priority by age."""
        cdef Member member
        self.ranked = False
        for member in self.members:
            self.ranked = self.ranked or member.priority != (<Member>self.members[0]).priority
        if self.ranked:
            self.members.sort(key=lambda one: -one.priority)
        return 0

    cdef int balance(self) except -1:
        """Exclusive groups: assigns each partition an owner; owners keep partitions while the load is even."""
        cdef Cursor cursor
        cdef Member member = None
        if not self.members:
            for cursor in self.cursors:
                cursor.owner = None
            return 0
        partitions = sorted({cursor.partition for cursor in self.cursors})
        owners = {}
        if self.mode == "single":
            for cursor in self.cursors:
                member = cursor.owner                   # the owner keeps all partitions until it leaves
                break
            owners = dict.fromkeys(partitions, member if member in self.members else self.members[0])
        elif self.mode == "exclusive":
            share, extra = divmod(len(partitions), len(self.members))       # `extra` members get one more than `share`
            loads = {id(member): 0 for member in self.members}
            for cursor in self.cursors:
                member = cursor.owner
                if member is None or member.group is not self or cursor.partition in owners:
                    continue
                load = loads[id(member)]
                if load < share or (load == share and extra):
                    extra -= load == share
                    owners[cursor.partition] = member
                    loads[id(member)] += 1
            for partition in partitions:
                if partition not in owners:
                    owners[partition] = least = min(self.members, key=lambda one: loads[id(one)])
                    loads[id(least)] += 1
        for cursor in self.cursors:
            cursor.owner = owners.get(cursor.partition)
        return 0

    def set_mode(self, str mode not None):
        """Sets the mode of a group without members. Raises UsageError for an unknown mode, or if there are members."""
        if self.members or mode not in ("shared", "exclusive", "single"):
            raise UsageError("a group becomes shared, exclusive or single while it has no members")
        self.mode = mode
        self.balance()
        self.touch()

    def owners(self) -> dict:
        """Owners in an exclusive group: partition -> member."""
        return {cursor.partition: (<Cursor>cursor).owner for cursor in self.cursors}

    cdef Cursor cursor_of(self, uint64_t log_number):
        cdef Cursor cursor
        for cursor in self.cursors:
            if cursor.log.number == log_number:
                return cursor
        return None

    cdef void unlimit(self, Member member) noexcept:
        if member.limited:
            member.limited = False
            self.ledger.node.gauges.limited -= 1

    cdef int give_back(self, claim_t* claim, int64_t delay_ms, bint counts) except -1:
        raise NotImplementedError

    cdef int touch(self) except -1:
        raise NotImplementedError
