# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. The members of a group; see queue/balance.pxd."""
cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from fluxmq._core.errors import UsageError

from fluxmq._core.queue.claim cimport Member, claim_t
from fluxmq._core.queue.cursor cimport Cursor
from fluxmq._core.queue.log cimport Log
from fluxmq._core.wire.sizes cimport fit_u32

__all__ = ["Members", "part_owner"]


cdef inline uint64_t mixed(uint64_t x) noexcept nogil:
    """The finalizer of splitmix64."""
    x = (x ^ x >> 30) * <uint64_t>0xBF58476D1CE4E5B9
    x = (x ^ x >> 27) * <uint64_t>0x94D049BB133111EB
    return x ^ x >> 31


def part_owner(list marks not None, uint32_t part, uint32_t parts) -> int:
    """Which of the members with these marks, all different, gets a partition (`part` of `parts`) of an exclusive group
    whose partitions are at several nodes.

    Each partition goes to the member with the highest score for it that may have one more: none has more than one more
    than another. Nodes that know the same members find the same, in whatever order they know them, and a member that
    comes or goes changes little for the others."""
    cdef uint32_t share = parts // <uint32_t>len(marks)
    cdef uint32_t extra = parts % <uint32_t>len(marks)     # so many have one more
    cdef uint32_t at, load
    cdef uint64_t mark = 0
    cdef dict loads = dict.fromkeys(marks, 0)
    for at in range(part + 1):
        for one in sorted(marks, key=lambda each: (mixed(<uint64_t>each + (at + 1) * <uint64_t>0x9E3779B97F4A7C15),
                                                   each), reverse=True):
            load = loads[one]
            if load < share or (load == share and extra):
                extra -= load == share
                loads[one] = load + 1
                mark = one
                break
    return mark


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
            self.add_cursor(<Log?>logs[at], fit_u32(at) // lanes, (<Log>logs[at]).next if at_end else None)

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
        if self.relay is not None:
            self.relay.joined(self, member, False)

    def attach(self, Member member not None):
        """Pull-only member (basic.get): no push delivery, not counted as a consumer. amqp_head.pull serves it."""
        if member.group is not None:
            raise UsageError("a member is in one group at a time")
        self.admit(member)
        self.add_puller(member)
        if self.relay is not None:
            self.relay.joined(self, member, True)

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
        if member.mark == 0 and self.mode != "shared":
            member.mark = self.ledger.next_identity()

    def rest(self, Member member not None):
        """Cancelled consumer (basic.cancel): no push delivery any more; it keeps its claims until they are settled."""
        if member not in self.members:
            return
        self.members.remove(member)
        self.add_puller(member)
        self.left(member)
        if self.relay is not None:
            self.relay.rests(member)

    def leave(self, Member member not None):
        """Removes a member; its messages are ready again at once."""
        if member.group is not self:
            return
        while member.oldest != NULL:
            member.withdraw(member.oldest)
            if self.relay is None:
                self.give_back(member.oldest, 0, True)
            else:
                self.drop_held(member.oldest)   # the owner gives back what the member had
        if self.relay is not None:
            self.relay.left(self, member)
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
        cdef list members = [member for member in self.members if not member.absent] or self.members
        if not members:
            for cursor in self.cursors:
                cursor.owner = None
            return self.say_owners()
        if self.expected is not None:
            self.welcome(members)
        partitions = sorted({cursor.partition for cursor in self.cursors} - (self.expected or {}).keys())
        owners = {}
        if self.mode == "single":
            for cursor in self.cursors:
                member = cursor.owner                   # the owner keeps all partitions until it leaves
                break
            owners = dict.fromkeys(partitions, member if member in members else members[0])
        elif self.mode == "exclusive" and self.parts:
            mark = part_owner(list({(<Member>one).mark for one in members}), self.part, self.parts)
            for member in members:
                if member.mark == mark:
                    owners = dict.fromkeys(partitions, member)
        elif self.mode == "exclusive":
            share, extra = divmod(len(partitions), len(members))        # `extra` members get one more than `share`
            loads = {id(member): 0 for member in members}
            for cursor in self.cursors:
                member = cursor.owner
                if member is None or id(member) not in loads or cursor.partition in owners:
                    continue
                load = loads[id(member)]
                if load < share or (load == share and extra):
                    extra -= load == share
                    owners[cursor.partition] = member
                    loads[id(member)] += 1
            for partition in partitions:
                if partition not in owners:
                    owners[partition] = least = min(members, key=lambda one: loads[id(one)])
                    loads[id(least)] += 1
        for cursor in self.cursors:
            cursor.owner = owners.get(cursor.partition)
        return self.say_owners()

    cdef int welcome(self, list members) except -1:
        """Gives partitions to those of the members who are expected."""
        cdef Cursor cursor
        cdef Member member
        cdef dict known = {(member.life if member.life else self.ledger.life, member.mark): member
                           for member in members}
        for cursor in self.cursors:
            cursor.owner = known.get(self.expected.get(cursor.partition), cursor.owner)
        # Of this node's members all are here.
        self.expected = {partition: owner for partition, owner in self.expected.items()
                         if owner not in known and (owner[0] == 0 or owner[0] != self.ledger.life)} or None
        return 0

    def expect(self, dict owners not None):
        """The group is about to be this node's: these were the owners of partitions (owners_said). Members that are
        none of them get no messages of these before expect_nobody()."""
        self.said = dict(owners) if owners else None
        self.expected = self.said

    def expect_none_of(self, has_ended not None):
        """has_ended: called with the life of a node; its members do not come any more."""
        if self.expected is not None:
            self.expected = {partition: owner for partition, owner in self.expected.items()
                             if not has_ended(owner[0])} or None
            self.balance()
            self.touch()

    def expect_nobody(self):
        """Whoever owned partitions has had time to come."""
        self.expected = None
        self.balance()
        self.touch()

    def owners_said(self) -> dict:
        """Who owns which partition: partition -> (life, member); of a copy, as heard."""
        cdef Cursor cursor
        if self.mode == "shared" or self.parts:
            return {}
        if not self.members:        # while a queue rests, those who leave it are not taken down
            return dict((self.expected if self.home_rests() else self.said) or {})
        return {**(self.expected or {}), **{
            cursor.partition: (cursor.owner.life if cursor.owner.life else self.ledger.life, cursor.owner.mark)
            for cursor in self.cursors if cursor.owner is not None}}

    def set_mode(self, str mode not None):
        """Sets the mode of a group without members; of another node's queue, what the owner says. Raises UsageError for
        an unknown mode, or if there are members."""
        if (self.members and self.relay is None) or mode not in ("shared", "exclusive", "single"):
            raise UsageError("a group becomes shared, exclusive or single while it has no members")
        if mode == self.mode:
            return
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

    cdef int drop_held(self, claim_t* claim) except -1:
        raise NotImplementedError

    cdef int say_owners(self) except -1:
        raise NotImplementedError

    cdef int write_owner(self, uint32_t partition, tuple owner) except -1:
        raise NotImplementedError

    cdef bint home_rests(self) noexcept:
        return 0

    cdef int touch(self) except -1:
        raise NotImplementedError
