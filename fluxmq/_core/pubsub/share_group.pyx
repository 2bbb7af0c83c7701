# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. Share groups; see pubsub/share_group.pxd."""
cimport cython
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from fluxmq._core.memory.message cimport GROUP_MARK, ids_drop, ids_hold, ids_new

from zlib import crc32

__all__ = ["GroupTaker", "ShareGroup"]


cdef class GroupTaker:
    """Machine. A base class."""

    cdef int forward_group(self, pub_t* pub, bytes group, bytes filter) except -1:
        return 0


cdef uint32_t group_mark(bytes name, bytes filter) except? 0:
    return <uint32_t>crc32(b"$share/" + name + b"/" + filter) | <uint32_t>GROUP_MARK


cdef int set_ids(member_t* member, uint32_t identifier, uint32_t mark) except -1:
    """Of a new member_t: its identifier (0: none) without and with the mark."""
    cdef uint32_t[2] items
    items[0] = identifier if identifier else mark
    items[1] = mark
    member.ids[1] = ids_new(items, 2 if identifier else 1)
    member.ids[0] = ids_new(&identifier, 1) if identifier else NULL
    member.ids[2] = member.ids[1]
    ids_hold(member.ids[1])
    return 0


cdef void drop_ids(member_t* member) noexcept:
    cdef int i
    for i in range(3):
        ids_drop(member.ids[i])
        member.ids[i] = NULL


@cython.final
cdef class ShareGroup:
    """Machine. The members of one `$share/<name>/<filter>`, MQTT 5.0 section 4.8.2.

    Each message goes to one member. On one node: in turn over those that can take it now, else in turn over the
    connected ones, else (QoS 1 and 2) in turn over the sessions that are away. connected: how many of the members are
    connected here, kept by the engine for the choice between nodes.
    """

    def __cinit__(self, bytes name not None, bytes filter not None):
        self.sessions = []
        self.takers = []
        self.name = name
        self.filter = filter
        self.mark = group_mark(name, filter)

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self.count):     # the collector may have emptied `sessions`
            drop_ids(&self.members[i])
        free(self.members)
        free(self.far)

    def __len__(self):
        return len(self.sessions)

    # ---------------------------------------------------------------- members of this node

    def join(self, Session session not None, uint8_t options, uint32_t identifier) -> bool:
        """Adds a member, or changes its options. Returns whether it is new."""
        cdef member_t* grown
        cdef Py_ssize_t i
        for i in range(len(self.sessions)):
            if self.sessions[i] is session:
                drop_ids(&self.members[i])
                set_ids(&self.members[i], identifier, self.mark)
                self.members[i].options = options
                return False
        if <uint32_t>len(self.sessions) == self.capacity:
            grown = <member_t*>realloc(self.members, (self.capacity * 2 + 4) * sizeof(member_t))
            if grown == NULL:
                raise MemoryError()
            self.members = grown
            self.capacity = self.capacity * 2 + 4
        i = len(self.sessions)
        set_ids(&self.members[i], identifier, self.mark)
        self.members[i].options = options
        self.sessions.append(session)
        self.count += 1
        return True

    def leave(self, Session session not None) -> bool:
        """Removes a member. Returns whether it was one."""
        cdef Py_ssize_t i, j
        for i in range(len(self.sessions)):
            if self.sessions[i] is session:
                drop_ids(&self.members[i])
                for j in range(i, len(self.sessions) - 1):
                    self.members[j] = self.members[j + 1]
                del self.sessions[i]
                self.count -= 1
                return True
        return False

    cdef int deliver(self, pub_t* pub) except -1:
        cdef uint32_t count = <uint32_t>len(self.sessions)
        cdef uint32_t i, at
        cdef uint32_t connected = count
        cdef uint32_t away = count
        cdef uint32_t chosen = count
        cdef Session session
        for i in range(count):
            at = (self.turn + i) % count
            session = <Session>self.sessions[at]
            if session.link == NULL:
                if away == count:
                    away = at
                continue
            if connected == count:
                connected = at
            if session.link.pending <= session.link.high and not session.queued and (
                    pub.qos == 0 or session.outstanding < session.window):
                chosen = at
                break
        if chosen == count:
            chosen = connected if connected < count else away
        if chosen == count:
            return 0
        self.turn = chosen + 1
        session = <Session>self.sessions[chosen]
        return session.deliver(pub, self.members[chosen].options, self.members[chosen].ids[pub.qos])

    # ---------------------------------------------------------------- other nodes

    def tell(self, GroupTaker taker not None, uint32_t connected, uint32_t away):
        """What another node has: members that are connected, and, if none is, those that are away. Both 0: none."""
        cdef far_t* grown
        cdef uint32_t i
        for i in range(<uint32_t>len(self.takers)):
            if self.takers[i] is taker:
                break
        else:
            if connected == 0 and away == 0:
                return
            i = <uint32_t>len(self.takers)
            if i == self.far_capacity:
                grown = <far_t*>realloc(self.far, (i * 2 + 4) * sizeof(far_t))
                if grown == NULL:
                    raise MemoryError()
                self.far = grown
                self.far_capacity = i * 2 + 4
            memset(&self.far[i], 0, sizeof(far_t))
            self.takers.append(taker)
        self.far[i].connected = connected
        self.far[i].away = away
        if connected == 0 and away == 0:
            self.forget(i)

    cdef void forget(self, uint32_t i) noexcept:
        cdef uint32_t j
        self.credit += self.far[i].credit       # the sum of all stays 0
        for j in range(i, <uint32_t>len(self.takers) - 1):
            self.far[j] = self.far[j + 1]
        del self.takers[i]

    def told(self) -> list:
        """[(taker, connected, away)] of the other nodes."""
        return [(self.takers[i], self.far[i].connected, self.far[i].away) for i in range(len(self.takers))]

    cdef int spread(self, pub_t* pub) except -1:
        cdef uint32_t count = <uint32_t>len(self.takers)
        cdef uint32_t here = min(self.connected, <uint32_t>len(self.sessions))
        cdef uint32_t chosen = count            # this node
        cdef uint32_t i
        cdef int64_t total = here
        cdef int64_t weight
        cdef bint away
        for i in range(count):
            total += self.far[i].connected
        away = total == 0
        if away:
            if pub.qos == 0 and count:
                return self.deliver(pub)        # drops it, and counts that
            here = <uint32_t>len(self.sessions)
            total = here
            for i in range(count):
                total += self.far[i].away
            if total == 0:
                return 0
        self.credit += here
        for i in range(count):
            weight = self.far[i].away if away else self.far[i].connected
            self.far[i].credit += weight
            # A node without members must not be chosen, although it may have credit from before.
            if weight and (self.far[i].credit > (self.credit if chosen == count else self.far[chosen].credit)
                           or (chosen == count and here == 0)):
                chosen = i
        if chosen == count:
            self.credit -= total
            return self.deliver(pub)
        self.far[chosen].credit -= total
        (<GroupTaker>self.takers[chosen]).forward_group(pub, self.name, self.filter)
        return 2 + <int>chosen
