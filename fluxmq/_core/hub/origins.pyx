# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. The origins of messages that this node has had. See hub/origins.pxd."""
cimport cython

from fluxmq._core.disk.record_kinds cimport RECORD_ORIGIN, RECORD_ORIGIN_END
from fluxmq._core.errors import CorruptError
from fluxmq._core.queue.queue cimport Queue, queue_mark

__all__ = ["Origins", "Use", "read_origin"]


def read_origin(bytes key not None, bytes value=None) -> tuple:
    """(name, packet identifier, use, mark, flags, missed, had, groups) of a row without the first byte of its key, or
    of an ORIGIN record; value None: of an ORIGIN_END record, with 0 for what is not there. Raises CorruptError."""
    if value is None and len(key) == 8:
        return int.from_bytes(key, "big"), None, 0, 0, 0, (), (), ()
    if len(key) != 18:
        raise CorruptError(f"the origin of a message has {len(key)} bytes")
    name, packet_id, use = (int.from_bytes(key[:8], "big"), int.from_bytes(key[8:10], "big"),
                            int.from_bytes(key[10:], "big"))
    if value is None:
        return name, packet_id, use, 0, 0, (), (), ()
    flags = value[8] if len(value) > 8 else ~0
    at, lists = 9, []
    for flag in (ORIGIN_HAD, ORIGIN_GROUPS):
        end = at
        if flags & flag:
            end = at + 4 + 8 * int.from_bytes(value[at:at + 4], "big")
            at += 4
        lists.append(numbers_of(value[at:end]))
        at = end
    if flags & ~ORIGIN_FLAGS or len(value) < at or (len(value) - at) % 8:
        raise CorruptError(f"what is known of the origin of a message has {len(value)} bytes, or unknown flags")
    return (name, packet_id, use, int.from_bytes(value[:8], "big"), flags & (ORIGIN_PUBLISHED | ORIGIN_BROUGHT),
            numbers_of(value[at:]), *lists)


cdef tuple numbers_of(bytes data):
    return tuple([int.from_bytes(data[at:at + 8], "big") for at in range(0, len(data), 8)])


cdef bytes bytes_of(tuple numbers):
    return b"".join([number.to_bytes(8, "big") for number in numbers])


FRESH_GONE_MIN = 64         # of uses that are gone, before the list of those of this life is made anew
RELEASED_MAX = 1 << 16      # a node that stands still may have copies of more: those come twice

# In Use.groups, beside the mark of a queue: it has come here behind the message, and has not had it.
ABSENT = 1 << 32


@cython.final
cdef class Use:
    """Value. One use of a packet identifier, or a will, that this node has had."""

    cdef bint had_by(self, uint64_t session) except -1:
        """Whether the session with this number on disk has had the message, if it wants it."""
        if session <= self.mark and not self.flags & ORIGIN_BROUGHT and session not in self.missed:
            return True
        return session in self.had

    cdef bint has_group(self, uint32_t group) except -1:
        """Whether this node has seen to it that a member of a share group gets the message: it has published it in this
        life, or it has it for the group."""
        return group in self.groups or (self.flags & ORIGIN_PUBLISHED and not self.former)

    cdef bint has_queue(self, uint32_t mark) except -1:
        """Whether a queue of this node has the message. That the publisher's former node has published it says nothing
        of that: this queue may have refused it."""
        return mark in self.groups or (self.flags & (ORIGIN_PUBLISHED | ORIGIN_BROUGHT) == ORIGIN_PUBLISHED
                                       and (ABSENT | mark) not in self.groups)

    cdef bytes value(self):
        cdef bytes lists = b"".join([len(each).to_bytes(4, "big") + bytes_of(each)
                                     for each in (self.had, self.groups) if each])
        return (self.mark.to_bytes(8, "big")
                + bytes([self.flags | (ORIGIN_HAD if self.had else 0) | (ORIGIN_GROUPS if self.groups else 0)]) + lists
                + bytes_of(self.missed))


cdef bytes key_of(uint64_t name, uint16_t packet_id, uint64_t use):
    return name.to_bytes(8, "big") + packet_id.to_bytes(2, "big") + use.to_bytes(8, "big")


@cython.final
cdef class Origins:
    """Machine. ledger: of the node."""

    def __cinit__(self, Ledger ledger not None):
        self.ledger = ledger
        self.names = {}
        self.fresh = []
        self.changed = {}
        self.ended = {}
        self.released = {}
        self.over = Use.__new__(Use)
        self.over.mark = ~<uint64_t>0
        self.over.flags = ORIGIN_PUBLISHED
        self.over.missed = self.over.had = self.over.groups = ()

    def __len__(self) -> int:
        """Number of uses."""
        return sum([len(uses) for of_name in self.names.values() for uses in of_name.values()])

    cdef Use find(self, const origin_t* origin):
        cdef dict of_name = self.names.get(origin.name)
        cdef Use use
        if of_name is not None:
            for use in of_name.get(origin.packet_id, ()):
                if (use.use == origin.use and use.use) or (not use.former and (use.use == 0 or origin.use == 0)):
                    return use
        return None

    cdef bint is_late(self, const origin_t* origin) except -1:
        return (self.expecting or self.forwarding) and origin.use != 0 and (
            origin.name, origin.packet_id, origin.use) in self.released

    cdef uint64_t use_of(self, uint64_t name, uint16_t packet_id, bint former) except? 0xFFFFFFFFFFFFFFFF:
        cdef dict of_name = self.names.get(name)
        cdef uint64_t found = 0
        cdef Use use
        if of_name is not None:
            for use in of_name.get(packet_id, ()):
                if use.use and (not use.former or (former and found == 0)):
                    found = use.use
        return found

    cdef int note(self, const origin_t* origin, Use known, uint64_t mark, bint published, list missed, list took,
                  bint recorded) except -1:
        if known is None:
            known = self.put(origin.name, origin.packet_id, origin.use)
        elif not recorded and not missed and not took and not known.flags & ORIGIN_BROUGHT:
            known.spread = known.spread or origin.spread
            known.again = known.again or origin.doubtful
            return 0
        known.again = known.again or origin.doubtful
        if published and known.groups and max(known.groups) >= ABSENT:     # the queues here have got it now
            known.groups = tuple([group for group in known.groups if group < ABSENT])
            recorded = recorded or self.ledger.active()
        known.mark = mark
        known.flags &= ~<uint8_t>ORIGIN_BROUGHT
        known.missed = () if missed is None else tuple(missed)
        if took is not None:
            known.groups = (*known.groups, *took)
        known.former = False
        known.spread = known.spread or origin.spread or not published
        if published:
            known.flags |= ORIGIN_PUBLISHED
        if recorded or known.recorded:
            self.record(origin.name, origin.packet_id, known)
        return 0

    cdef int note_group(self, const origin_t* origin, uint32_t group, bint recorded) except -1:
        cdef Use known = self.find(origin)
        if known is None:
            known = self.put(origin.name, origin.packet_id, origin.use)
            known.flags = ORIGIN_BROUGHT
        known.spread = True
        known.again = known.again or origin.doubtful
        if group not in known.groups:
            known.groups = (*known.groups, group)
        if recorded or known.recorded:
            self.record(origin.name, origin.packet_id, known)
        return 0

    cdef int record(self, uint64_t name, uint16_t packet_id, Use use) except -1:
        use.recorded = True
        self.touch(name, packet_id, use.use)
        self.ledger.write(RECORD_ORIGIN, key_of(name, packet_id, use.use) + use.value())
        return 0

    cdef bint end(self, uint64_t name, uint16_t packet_id, uint64_t use) except -1:
        cdef dict of_name = self.names.get(name)
        cdef Use each
        cdef bint spread = False
        cdef bint found = False
        if self.watching and not self.overrun:
            self.ended.setdefault((name, packet_id), set()).add(use)
            if len(self.ended) > RELEASED_MAX:
                self.ended.clear()
                self.overrun = True
        if self.expecting and use:
            self.note_released(name, packet_id, use, ())        # also if it was never here
        if of_name is None:
            return True
        for each in list(of_name.get(packet_id, ())):
            if use == 0 or each.use == use or each.use == 0:
                found = True
                spread = spread or each.spread
                if each.use and (self.expecting or (self.forwarding and each.again)):
                    # What this node has published all its queues have that want it.
                    self.note_released(name, packet_id, each.use,
                                       None if each.flags & ORIGIN_PUBLISHED else each.groups)
                if each.recorded:
                    self.ledger.write(RECORD_ORIGIN_END, key_of(name, packet_id, each.use))
                self.drop(name, packet_id, each.use)
        return spread or not found

    cdef int note_released(self, uint64_t name, uint16_t packet_id, uint64_t use, tuple groups) except -1:
        self.released[name, packet_id, use] = groups
        if len(self.released) > RELEASED_MAX:
            del self.released[next(iter(self.released))]
        return 0

    cdef Use put(self, uint64_t name, uint16_t packet_id, uint64_t use):
        cdef Use made = Use.__new__(Use)
        cdef dict of_name = self.names.get(name)
        if of_name is None:
            of_name = self.names[name] = {}
        cdef list left = []
        cdef Use each
        made.name, made.packet_id, made.use = name, packet_id, use
        made.missed = made.had = made.groups = ()
        for each in of_name.get(packet_id, ()):
            if each.use != use:
                left.append(each)
            else:
                self.forgotten(each)
        left.append(made)
        of_name[packet_id] = left
        self.fresh.append(made)
        return made

    cdef int forgotten(self, Use use) except -1:
        use.gone = True
        if not use.loaded:
            self.fresh_gone += 1
            if self.fresh_gone > FRESH_GONE_MIN and 2 * self.fresh_gone > <size_t>len(self.fresh):
                self.fresh = [each for each in self.fresh if not (<Use>each).gone]
                self.fresh_gone = 0
        return 0

    cdef int drop(self, uint64_t name, object packet_id, uint64_t use) except -1:
        """packet_id None: all of the name's. use: exactly this one."""
        cdef dict of_name = self.names.get(name)
        cdef Use each
        cdef list left
        if of_name is None:
            return 0
        for identifier in list(of_name) if packet_id is None else [packet_id] if packet_id in of_name else []:
            left = []
            for each in of_name[identifier]:
                if packet_id is not None and each.use != use:
                    left.append(each)
                    continue
                self.forgotten(each)
                for queue in self.ledger.in_lines.pop((name, identifier, each.use), ()):
                    (<Queue>queue).origin_over((name, identifier, each.use))
                if each.recorded:
                    self.touch(name, identifier, each.use)
            if left:
                of_name[identifier] = left
            else:
                del of_name[identifier]
        if not of_name:
            del self.names[name]
        return 0

    cdef int touch(self, uint64_t name, uint16_t packet_id, uint64_t use) except -1:
        self.changed[key_of(name, packet_id, use)] = None
        return 0

    # ---------------------------------------------------------------- for the cold half

    def known(self) -> list:
        """The names of which there are any."""
        return list(self.names)

    def uses(self, uint64_t name) -> dict:
        """Of a name: packet identifier -> uses."""
        return {packet_id: [(<Use>each).use for each in uses] for packet_id, uses in self.names.get(name, {}).items()}

    def had_by(self, uint64_t session) -> list:
        """What a session with this number on disk has had, as far as it wanted it, of what was not released: [(name,
        packet identifier, use)]. Of a former life of this node only what other nodes have confirmed since (confirm)."""
        cdef Use each
        return [(name, packet_id, (<Use>each).use) for name, of_name in self.names.items()
                for packet_id, uses in of_name.items() for each in uses
                if not (<Use>each).former and (<Use>each).had_by(session)]

    def absent(self, uint64_t session):
        """The session with this number on disk enters the index, and was not there in this life of the node: what came
        in this life it has not had. What is kept for it elsewhere may bring that yet."""
        cdef Use each
        for each in self.fresh:
            if not each.gone and each.had_by(session) and session not in each.had:
                each.missed = (*each.missed, session)
                if each.recorded:
                    self.record(each.name, each.packet_id, each)

    def own(self, uint64_t name) -> list:
        """What this node has published, or published before the session with this incarnation has moved here, and was
        not released: [(packet identifier, use)]."""
        cdef Use each
        return [(packet_id, (<Use>each).use) for packet_id, uses in self.names.get(name, {}).items() for each in uses
                if not (<Use>each).former and (<Use>each).flags & ORIGIN_PUBLISHED]

    def took(self, uint64_t name, uint16_t packet_id, uint64_t use, uint32_t group) -> bool:
        """Whether this node has seen to it that a member of a share group, by its mark, gets a message."""
        cdef origin_t origin = origin_t(name=name, use=use, packet_id=packet_id, spread=False, doubtful=False)
        cdef Use known = self.find(&origin)
        return known is not None and known.has_group(group)

    def of_group(self, uint32_t group) -> list:
        """What a share group or a queue with this mark has had and was not released: [(name, packet identifier,
        use)]."""
        cdef Use each
        return [(name, packet_id, (<Use>each).use) for name, of_name in self.names.items()
                for packet_id, uses in of_name.items() for each in uses if group in (<Use>each).groups]

    def of_queue(self, uint32_t mark) -> list:
        """What a queue of this node has had, as of_group; also what this node has published, which it has if it wants
        it."""
        cdef Use each
        return [(name, packet_id, (<Use>each).use) for name, of_name in self.names.items()
                for packet_id, uses in of_name.items() for each in uses if (<Use>each).has_queue(mark)]

    def lead(self, Queue queue not None, list had not None):
        """This node leads the queue from now on, which has had these (of_queue)."""
        for key in had:
            self.ledger.in_lines.setdefault(key, {})[queue] = None
        self.queue_came(queue_mark(queue.identity), had)

    def queue_came(self, uint32_t mark, list had not None):
        """A queue has come from another node, where it has had these (of_queue). What this node has published before it
        did not take itself: the queue has not had the rest of that."""
        cdef Use use
        cdef set known = set(had)
        for name, packet_id, number in had:
            self.bring_group(name, packet_id, number, mark)
        for name, of_name in self.names.items():
            for packet_id, uses in of_name.items():
                for use in uses:
                    if (name, packet_id, use.use) not in known and use.has_queue(mark):
                        use.groups = (*[group for group in use.groups if group != mark], ABSENT | <uint64_t>mark)
                        if use.recorded or self.ledger.active():
                            self.record(name, packet_id, use)

    def bring_group(self, uint64_t name, uint16_t packet_id, uint64_t use, uint32_t group):
        """A queue has come from another node, where it has had this."""
        cdef origin_t origin = origin_t(name=name, use=use, packet_id=packet_id, spread=True, doubtful=True)
        cdef set ended = self.ended.get((name, packet_id), set())
        if use not in ended and 0 not in ended and not self.overrun:
            self.note_group(&origin, group, self.ledger.active())

    def bring(self, uint64_t name, uint16_t packet_id, uint64_t use, uint64_t session=0):
        """A session has come from another node, where this was not released. session: its number, if it has had the
        message there; 0: it is the publisher, and that node has published it."""
        cdef Use each
        cdef Use found = None
        cdef set ended = self.ended.get((name, packet_id), set())
        if use in ended or 0 in ended or (ended and use == 0) or self.overrun:
            return
        for each in self.names.get(name, {}).get(packet_id, ()):
            if each.use == use:
                found = each
        if found is None or (found.former and use == 0):        # what it was then may have been released
            found = self.put(name, packet_id, use)
            found.flags = ORIGIN_BROUGHT
            found.spread = True
        found.former = False
        if session == 0:
            found.flags |= ORIGIN_PUBLISHED
        elif not found.had_by(session):
            found.had = (*found.had, session)
        if self.ledger.active():
            self.record(name, packet_id, found)

    def take_back(self, uint64_t name, uint16_t packet_id, uint64_t use, uint64_t session):
        """This was released, and brought too late for anybody to tell of it: bring() of this session is undone."""
        cdef Use each
        for each in self.names.get(name, {}).get(packet_id, ()):
            if each.use == use and session in each.had:
                each.had = tuple([number for number in each.had if number != session])
                if each.flags == ORIGIN_BROUGHT and not each.had and not each.groups:
                    if each.recorded:
                        self.ledger.write(RECORD_ORIGIN_END, key_of(name, packet_id, use))
                    self.drop(name, packet_id, use)
                elif each.recorded:
                    self.record(name, packet_id, each)
                return

    def confirm(self, uint64_t name, uint16_t packet_id, uint64_t use):
        """The node that has the publisher's session says that this was not released while this node was away."""
        cdef Use each
        for each in self.names.get(name, {}).get(packet_id, ()):
            if each.use == use and use:
                each.former = False

    def watch(self, bint begin):
        """A session is being taken over, or is no longer: what is released meanwhile is not brought any more. Of more
        than RELEASED_MAX packet identifiers nobody remembers which: nothing is brought then until the last one ends."""
        self.watching += 1 if begin else -1
        if self.watching == 0:
            self.ended.clear()
            self.overrun = False

    def expect(self, bint begin):
        """The former node of a publisher that has moved may still send copies of what it has published, or has no such
        copies any more. Copies of what is released meanwhile are for nobody."""
        self.expecting += 1 if begin else -1
        if self.expecting + self.forwarding == 0:
            self.released.clear()

    def expect_forwarded(self, bint begin):
        """A queue comes from another node, through which copies of what was published to it may come, or there are no
        such copies any more. Copies of what is released meanwhile are for nobody."""
        self.forwarding += 1 if begin else -1
        if self.expecting + self.forwarding == 0:
            self.released.clear()

    def released_of(self, uint32_t mark) -> list:
        """What a queue with this mark has had and was released, of which copies may come: [(name, packet identifier,
        use)]."""
        return [key for key, groups in self.released.items() if groups is None or mark in groups]

    def bring_released(self, uint32_t mark, list released not None):
        """A queue has come from another node, where it has had these (released_of)."""
        for name, packet_id, use in released:
            self.note_released(name, packet_id, use, (mark,))

    def release(self, uint64_t name, uint64_t use):
        """A dead letter with this origin does not come again."""
        self.end(name, 0, use)

    def forget(self, uint64_t name):
        """The session or will is no more."""
        cdef Use each
        if name in self.names:
            if any([(<Use>each).recorded for uses in self.names[name].values() for each in uses]):
                self.ledger.write(RECORD_ORIGIN_END, name.to_bytes(8, "big"))
            self.drop(name, None, 0)

    def forget_former(self, uint64_t name):
        """The session has come from another node, which may have released what this node had in a former life."""
        cdef Use each
        for packet_id, uses in list(self.names.get(name, {}).items()):
            for each in list(uses):
                if each.former:
                    self.ledger.write(RECORD_ORIGIN_END, key_of(name, packet_id, each.use))
                    self.drop(name, packet_id, each.use)

    def load(self, bytes rest not None, bytes value not None):
        """Reads a row of the view; rest: its key without the first byte. Raises CorruptError."""
        cdef Use use
        name, packet_id, number, mark, flags, missed, had, groups = read_origin(rest, value)
        use = self.put(name, packet_id, number)
        use.mark, use.flags, use.missed, use.had, use.groups = mark, flags, missed, had, groups
        use.recorded = use.former = use.loaded = use.spread = True
        self.fresh.pop()        # put() has just added it

    def replay(self, int kind, uint64_t name, bytes body not None):
        """Applies an ORIGIN or ORIGIN_END record of the journal; body: behind the name. Raises CorruptError."""
        cdef bytes key = name.to_bytes(8, "big") + body[:10]
        if kind == RECORD_ORIGIN:
            self.load(key, body[10:])
            self.changed[key] = None
        else:
            _, packet_id, use, *_ = read_origin(name.to_bytes(8, "big") + body)
            self.drop(name, packet_id, use)

    def export(self) -> tuple:
        """(puts, deletes) for the view: what changed since the last call."""
        cdef Use each
        cdef bytes key
        cdef list puts = []
        cdef list deletes = []
        changed, self.changed = self.changed, {}
        for key in changed:
            name, packet_id, number, *_ = read_origin(key)
            for each in self.names.get(name, {}).get(packet_id, ()):
                if each.use == number and each.recorded:
                    puts.append((b"o" + key, each.value()))
                    break
            else:
                deletes.append(b"o" + key)
        return puts, deletes
