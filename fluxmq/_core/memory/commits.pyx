# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False
"""Machine. Lines, tickets, and the waits for them. See memory/commits.pxd.

A ring is released from its front. A wait for a position that is decided already, or is older than that of the ring's
last wait, is released after those before it: later than possible, but never too early.

It is one file because a line and its Commits call each other for each ticket, and calls are direct only within a file.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdlib cimport calloc, free, malloc, realloc

from fluxmq._core.debug cimport count_live
from fluxmq._core.disk.journal_format cimport BATCH_BYTES_MAX, RECORD_HEADER_BYTES, put_u32_le
from fluxmq._core.memory.link cimport link_drop
from fluxmq._core.memory.message cimport live
from fluxmq._core.memory.namespace cimport Namespace
from fluxmq._core.wire.sizes cimport fit_u32

from fluxmq._core.errors import CorruptError, StorageError, UsageError
from fluxmq._core.memory.namespace import ROOT

__all__ = ["Commits", "Line", "Waiter"]

cdef enum:
    GATHER_BYTES_MIN = 4096
    GIVEN_UP_MAX = 1024             # ranges kept per line; a line gives up when its leader or peer changes
    REFUSED_MAX = 1024              # refusals before those are dropped that nobody waits for


cdef class Waiter:
    """See memory/commits.pxd."""

    cdef int on_committed(self, uint32_t line, uint64_t position) except -1:
        raise NotImplementedError

    cdef int on_given_up(self, uint32_t line, uint64_t position, uint8_t packet_type, uint16_t packet_id,
                         str why) except -1:
        raise NotImplementedError


cdef void entry_free(entry_t* entry) noexcept:
    count_live(live.waits, -1)
    free(entry)


cdef void drop(held_t* held) noexcept:
    """Drops a wait that will not be released: the node stopped before its line decided."""
    cdef entry_t* entry
    cdef link_t* link
    if held.kind != HELD_ENTRY:
        if held.link != NULL:
            held.link.held -= 1
            link_drop(held.link)
        Py_XDECREF(held.object)
        return
    entry = <entry_t*>held_object(held, HELD_ENTRY)
    entry.missing -= 1
    if entry.missing:
        return
    link = entry.held.link
    if link == NULL:
        drop(&entry.held)
        entry_free(entry)
        return
    link.refs += 1
    while link.order.head != NULL and (<entry_t*>link.order.head).missing == 0:     # also those that waited behind it
        entry = <entry_t*>link.order.head
        link.order.head = entry.next
        drop(&entry.held)
        entry_free(entry)
    if link.order.head == NULL:
        link.order.tail = NULL
    link_drop(link)


@cython.final
@cython.no_gc_clear             # deallocation drops the waits, which needs the fields
cdef class Line:
    """Handle. Lines other than the node's journal are driven from outside: `submit` takes the changes given so far,
    `commit` and `give_up` report their outcome."""

    def __dealloc__(self):
        self.drop_waits()               # its Commits may be gone, or the collector may have cleared the list of lines
        free(self.held)
        free(self.gather)

    cdef uint8_t* reserve(self, uint8_t kind, uint32_t length) except NULL:
        cdef size_t end = self.gather_length + RECORD_HEADER_BYTES + length
        cdef size_t room = max(self.gather_room * 2, <size_t>GATHER_BYTES_MIN)
        cdef uint8_t* at
        if self.closed:
            raise UsageError(f"line {self.name!r} takes nothing: it is closed")
        if end > BATCH_BYTES_MAX:
            raise StorageError(f"more than {BATCH_BYTES_MAX} bytes wait to be handed to {self.name}")
        if end > self.gather_room:
            while room < end:
                room *= 2
            at = <uint8_t*>realloc(self.gather, room)
            if at == NULL:
                raise MemoryError()
            self.gather = at
            self.gather_room = room
        at = self.gather + self.gather_length
        at[0] = kind
        put_u32_le(at + 1, length)
        self.gather_length = end
        if not self.given:
            self.begin()                # the next submit includes it even if nothing waits for it
        return at + RECORD_HEADER_BYTES

    def namespace(self, uint64_t number) -> Namespace | None:
        """The namespace with this number in records of the line; None: it has ended. Raises CorruptError for a number
        that no record has defined."""
        try:
            return self.namespaces[number]
        except KeyError:
            raise CorruptError(f"namespace {number} has no name in line {self.name!r}") from None

    def name_namespace(self, uint64_t number, Namespace namespace):
        """Defines a number that records use for the namespace; None: it has ended, and the number is not reused."""
        former = self.namespaces.get(number)
        if former is not None:
            self.namespace_numbers.pop(former, None)
        self.namespaces[number] = namespace
        if namespace is not None:
            self.namespace_numbers[namespace] = number

    cdef uint64_t gathering(self) noexcept:
        return self.journal.gathering if self.journal is not None else self.at

    cdef uint64_t newest(self) noexcept:
        if self.journal is not None:
            # The gathering batch may be empty; an empty one is never submitted.
            return self.journal.gathering if self.journal.gather.records else self.journal.gathering - 1
        return self.at if self.given else self.at - 1

    cdef int begin(self) except -1:
        self.given = True
        if self.group != 0 and self.commits != NULL:
            (<Commits>self.commits).touched.append(self)
        return 0

    cdef uint64_t done(self) noexcept:
        return self.journal.durable if self.journal is not None else self.decided

    cdef bint releases(self) noexcept:
        return self.held_count != 0 and self.held[self.held_head].position <= self.done()

    cdef str refusal(self, uint64_t position, uint32_t span, uint16_t* code):
        cdef uint64_t at
        if self.refused:
            for at in range(position - span, position + 1):
                found = self.refused.get(at)
                if found is not None:
                    code[0] = found[0]
                    return found[1]
        if self.given_up is not None:
            for first, last, why in self.given_up:
                if first <= position and last >= position - span:
                    return why
        return None

    cdef uint64_t give_one(self) except? 0:
        cdef uint64_t position = (<Commits>self.commits).give(self)
        self.given = False
        self.at += 1
        return position

    cdef held_t* push(self) except NULL:
        cdef held_t* grown
        cdef size_t room, i
        if self.held_count == self.held_room:
            room = self.held_room * 2 if self.held_room else 256
            grown = <held_t*>malloc(room * sizeof(held_t))
            if grown == NULL:
                raise MemoryError()
            for i in range(self.held_count):
                grown[i] = self.held[(self.held_head + i) & (self.held_room - 1)]
            free(self.held)
            self.held = grown
            self.held_head = 0
            self.held_room = room
        self.held_count += 1
        return &self.held[(self.held_head + self.held_count - 1) & (self.held_room - 1)]

    cdef void pop(self) noexcept:
        self.held_head = (self.held_head + 1) & (self.held_room - 1)
        self.held_count -= 1

    cdef void drop_waits(self) noexcept:
        cdef held_t held
        while self.held_count:
            held = self.held[self.held_head]
            self.pop()
            drop(&held)

    cdef int decide(self, uint64_t upto) except -1:
        if self.number == 0:
            raise UsageError("line 0 is the journal, which says itself what is durable")
        if upto >= self.at:
            raise UsageError(f"line {self.name!r} has not submitted position {upto}: the next one is {self.at}")
        if upto <= self.decided:
            return 0                # reported before
        self.decided = upto
        return (<Commits>self.commits).moved_on(self) if self.commits != NULL else 0

    def hear(self, int64_t line_ms, int64_t steady_ms):
        """The line's clock was at line_ms when something was submitted that this node has now, at steady_ms of its own:
        its clock is never behind that, and never goes back. Raises UsageError for the journal."""
        if self.number == 0:
            raise UsageError("line 0 has the node's clock")
        if not self.timed or line_ms - steady_ms > self.shift_ms:
            self.shift_ms = line_ms - steady_ms
        self.timed = True

    @property
    def committed(self) -> int:
        """Everything up to this position is committed or given up."""
        return self.done()

    @property
    def undecided(self) -> int:
        """Number of positions that were given, and are neither committed nor given up."""
        return max(self.newest(), self.done()) - self.done()

    @property
    def waiting(self) -> int:
        """Number of waits in its ring."""
        return self.held_count

    def give(self) -> int:
        """Gives a change to the line and moves the mark: returns its position. Raises UsageError if the line is
        closed."""
        if self.commits == NULL:
            raise UsageError(f"line {self.name!r} is of a node that has ended")
        return (<Commits>self.commits).give(self)

    def submit(self) -> tuple:
        """Takes everything given since the last submit as one batch: (position, records), the latter for
        `journal_format.iter_records`; (0, b""): nothing was given. Call it at the end of a turn, after queues were
        pumped."""
        if not self.given:
            return 0, b""
        records = PyBytes_FromStringAndSize(<char*>self.gather, self.gather_length)
        self.given = False
        self.gather_length = 0
        self.at += 1
        return self.at - 1, records

    def commit(self, uint64_t upto):
        """Everything up to this position is committed, except what was given up. Raises UsageError if it was never
        submitted."""
        self.decide(upto)

    def give_up(self, str why not None, uint64_t upto=0):
        """Gives up everything undecided up to a position (0: everything given so far). why: the reason, shown to
        clients and users. Raises UsageError if the position was never submitted."""
        cdef uint64_t first = self.decided + 1
        if upto == 0:
            self.submit()
            upto = self.at - 1
        if upto < first:
            return
        if upto < self.at:
            if self.given_up is None:
                self.given_up = []
            self.given_up.append((first, upto, why))
            del self.given_up[:-GIVEN_UP_MAX]
        self.decide(upto)

    def refuse(self, uint64_t position, uint16_t code, str why not None):
        """This position is refused, whatever becomes of the others: not decided yet. code: a reason for the client, not
        0; why: a sentence. Raises UsageError for a position that was decided or never submitted."""
        if position <= self.decided or position >= self.at:
            raise UsageError(f"line {self.name!r} cannot refuse position {position}: {self.decided} is decided, the "
                             f"next one is {self.at}")
        if self.refused is None:
            self.refused = {}
            self.refused_max = REFUSED_MAX
        elif len(self.refused) >= self.refused_max:
            self.forget_refused()
        self.refused[position] = code, why

    cdef int forget_refused(self) except -1:
        """Drops what nobody waits for any more."""
        cdef size_t i
        cdef const held_t* held
        cdef uint64_t first = self.decided + 1
        for i in range(self.held_count):
            held = &self.held[(self.held_head + i) & (self.held_room - 1)]
            first = min(first, held.position - held.span)
        self.refused = {at: found for at, found in self.refused.items() if at >= first}
        self.refused_max = max(<size_t>REFUSED_MAX, 2 * <size_t>len(self.refused))
        return 0

    def close(self, str why not None):
        """Gives up what is undecided; the line accepts nothing from now on."""
        if self.number == 0:
            raise UsageError("line 0 is the journal and stays")
        self.give_up(why)
        self.closed = True


    def retire(self):
        """Nobody gives it anything any more, so it may be opened again under another name, when all who wait have heard
        what became of it. Raises UsageError for a line with something undecided, and for one that has records, which
        somebody may apply."""
        if self.undecided or self.closed or self.group or self.timed or self.gather_room:
            raise UsageError(f"line {self.name!r} cannot be opened again under another name")
        if self.commits != NULL:
            (<Commits>self.commits).spare.append(self)


@cython.final
@cython.no_gc_clear
cdef class Commits:
    """Machine. One per Hub. journal: the node's, or None if nothing is durable."""

    def __cinit__(self, Journal journal):
        self.lines = []
        self.spare = []
        self.moved = []
        self.touched = []
        self.alone = True
        self.root = Namespace(ROOT)
        self.local = self.open_line("journal")
        self.local.journal = journal

    def __dealloc__(self):
        cdef Line line
        self.end()
        for line in self.lines:
            line.commits = NULL
        free(self.given)
        free(self.needed)

    def open_line(self, str name not None, uint32_t group=0) -> Line:
        """Opens another line, or again one that was retired. name: for messages to users. group: see Line.group."""
        cdef Line line
        if group == 0:
            line = self.take_spare(name, <uint64_t>-1)
            if line is not None:
                return line
        return self.new_line(name, group)

    cdef Line open_behind(self, str name, uint64_t position):
        cdef Line line = self.take_spare(name, position)
        if line is None:
            line = self.new_line(name, 0)
        line.at = position + 1
        line.decided = position
        return line

    cdef Line take_spare(self, str name, uint64_t position):
        """A line that was retired, and has had no position behind this one: links know those that they have waited
        for."""
        cdef Line line
        for line in self.spare:
            if line.held_count == 0 and line.at - 1 <= position:    # else somebody has not heard what became of it
                self.spare.remove(line)
                line.name = name
                line.given_up = line.refused = None
                return line
        return None

    cdef Line new_line(self, str name, uint32_t group):
        cdef Line line = Line.__new__(Line)
        line.number = <uint32_t>len(self.lines)
        line.name = name
        line.group = group
        line.commits = <void*>self
        line.at = 1
        line.room = <uint64_t>-1
        line.retaining = {}
        line.namespaces = {0: self.root}
        line.namespace_numbers = {self.root: 0}
        self.lines.append(line)
        self.alone = line.number == 0
        return line

    def take_touched(self) -> list:
        """The lines of groups that were given something since this was called last, some of them more than once: who
        runs the groups submits them at the end of the turn."""
        touched = self.touched
        if touched:
            self.touched = []
        return touched

    # ---------------------------------------------------------------- tickets

    cdef uint64_t give(self, Line line) except? 0:
        cdef given_t* grown
        cdef uint32_t room
        if line.closed or line.number == 0:
            raise UsageError(f"line {line.name!r} takes nothing: " + ("it is closed" if line.closed else
                                                                      "the journal takes records"))
        if self.given_count == self.given_room:
            room = self.given_room * 2 if self.given_room else 64
            grown = <given_t*>realloc(self.given, room * sizeof(given_t))
            if grown == NULL:
                raise MemoryError()
            self.given = grown
            self.given_room = room
        if not line.given:
            line.begin()
        self.mark += 1
        self.tickets += 1
        line.mark = self.mark
        self.given[self.given_count] = given_t(self.mark, line.at, line.number)
        self.given_count += 1
        return line.at

    cdef void take_back(self, uint64_t mark) noexcept:
        cdef Line line
        self.mark = mark
        while self.given_count and self.given[self.given_count - 1].mark > mark:
            self.given_count -= 1
            self.tickets -= 1
            line = <Line>self.lines[self.given[self.given_count].line]
            line.mark = min(line.mark, mark)

    cdef void end_turn(self) noexcept:
        self.given_count = 0
        self.turn_mark = self.mark

    cdef bint is_done(self, ticket_t ticket) noexcept:
        if ticket.line == 0:
            return ticket.position <= self.local.done()
        return ticket.position <= (<Line>self.lines[ticket.line]).decided

    cdef str refusal_of(self, ticket_t ticket, uint16_t* code):
        return (<Line>self.lines[ticket.line]).refusal(ticket.position, ticket.span, code)

    cdef ticket_t next_ticket(self, Line line) noexcept:
        return ticket_t(line.gathering(), line.number, 1, 0)

    cdef int need(self, ticket_t ticket) except -1:
        """Adds a ticket to `needed`, unless one that it has includes it."""
        cdef uint32_t i
        cdef uint64_t first
        for i in range(self.needed_count):
            if self.needed[i].line != ticket.line:
                continue
            if ticket.own and self.needed[i].own:
                first = min(self.needed[i].position - self.needed[i].span, ticket.position - ticket.span)
                self.needed[i].position = max(self.needed[i].position, ticket.position)
                self.needed[i].span = fit_u32(self.needed[i].position - first)
                return 0
            if not ticket.own and ticket.position <= self.needed[i].position:
                return 0            # otherwise it stays by itself: only its own positions may be refused to an answer
        return self.need_also(ticket)

    cdef int need_also(self, ticket_t ticket) except -1:
        cdef ticket_t* grown
        cdef uint32_t room
        if self.needed_count == self.needed_room:
            room = self.needed_room * 2 if self.needed_room else 16
            grown = <ticket_t*>realloc(self.needed, room * sizeof(ticket_t))
            if grown == NULL:
                raise MemoryError()
            self.needed = grown
            self.needed_room = room
        self.needed[self.needed_count] = ticket
        self.needed_count += 1
        return 0

    cdef int collect(self, uint64_t since) except -1:
        cdef uint64_t others = 0
        cdef uint32_t i
        cdef uint16_t code = 0
        cdef Line line
        self.needed_count = 0
        if self.mark == since:
            return 0
        if self.alone and self.needed_room:     # fast path: the journal is the only line
            self.needed[0] = ticket_t(self.local.newest(), 0, 1, 0)
            self.needed_count = self.needed[0].position > self.local.done()
            return self.needed_count
        if since > self.mark:           # it was taken back
            since = 0
        if since < self.turn_mark:      # older than `given`: the newest position of a line includes all of it
            for line in self.lines:
                if (line.mark > since or line.number == 0) and (
                        line.newest() > line.done() or line.refusal(line.newest(), 0, &code) is not None):
                    self.need(ticket_t(line.newest(), line.number, 1, fit_u32(max(line.newest() - line.done(), 1) - 1)))
            return self.needed_count
        i = self.given_count            # tickets since the mark are at the end
        while i and self.given[i - 1].mark > since:
            i -= 1
            others += 1
            line = <Line>self.lines[self.given[i].line]
            if self.given[i].position > line.decided or line.refusal(self.given[i].position, 0, &code) is not None:
                self.need(ticket_t(self.given[i].position, line.number, 1, 0))
        if self.mark - since > others and self.local.newest() > self.local.done():
            self.need(ticket_t(self.local.newest(), 0, 1, 0))
        return self.needed_count

    # ---------------------------------------------------------------- waiting

    cdef int note(self, link_t* link, ticket_t ticket) except -1:
        """Later answers of this link will wait for the ticket too."""
        cdef ticket_t* newest
        cdef uint32_t i, room
        if ticket.line == 0:
            link.held_upto = max(link.held_upto, ticket.position)
            return 0
        if link.order == NULL:
            link.order = <order_t*>calloc(1, sizeof(order_t))
            if link.order == NULL:
                raise MemoryError()
        newest = <ticket_t*>link.order.newest
        for i in range(link.order.count):
            if newest[i].line == ticket.line:
                newest[i].position = max(newest[i].position, ticket.position)
                return 0
        if link.order.count == link.order.room:
            room = link.order.room * 2 if link.order.room else 2
            newest = <ticket_t*>realloc(newest, room * sizeof(ticket_t))
            if newest == NULL:
                raise MemoryError()
            link.order.newest = newest
            link.order.room = room
        newest[link.order.count] = ticket
        link.order.count += 1
        return 0

    cdef int need_elders(self, link_t* link) except -1:
        """Adds the tickets of the link's earlier answers that wait in the rings, outside its own queue. A decided
        ticket counts while its ring is not empty, because those answers may not have been released yet."""
        cdef ticket_t* newest
        cdef uint32_t i
        cdef Line line
        if link.held == 0:
            return 0
        if link.held_upto and (link.held_upto > self.local.done() or self.local.held_count):
            self.need(ticket_t(link.held_upto, 0, 0, 0))
        if link.order != NULL:
            newest = <ticket_t*>link.order.newest
            for i in range(link.order.count):
                line = <Line>self.lines[newest[i].line]
                if newest[i].position > line.decided or line.held_count:
                    self.need(ticket_t(newest[i].position, newest[i].line, 0, 0))
        return 0

    cdef int wait_in(self, Line line, held_t* held) except -1:
        held.line = line.number
        line.push()[0] = held[0]
        if line.number and held.position <= line.decided:
            self.moved_on(line)
        return 0

    cdef int enter(self, held_t* held) except -1:
        """Makes an entry, in the link's own queue if there is a link, with a wait in the ring of each needed line."""
        cdef link_t* link = held.link
        cdef entry_t* entry
        cdef held_t part
        cdef uint32_t i
        if link != NULL and link.order == NULL and self.needed_count:
            link.order = <order_t*>calloc(1, sizeof(order_t))
            if link.order == NULL:
                raise MemoryError()
        entry = <entry_t*>calloc(1, sizeof(entry_t))
        if entry == NULL:
            raise MemoryError()
        count_live(live.waits, 1)
        entry.held = held[0]
        entry.missing = self.needed_count
        if self.needed_count == 0 and (link.order == NULL or link.order.head == NULL):
            self.may_leave(entry)           # behind entries that are ready but not released yet
            return 0
        for i in range(self.needed_count):
            part = held_t(self.needed[i].position, NULL, <PyObject*>entry, 0, 0, HELD_ENTRY, 0, 0,
                          self.needed[i].own != 0, self.needed[i].span)
            self.wait_in(<Line>self.lines[self.needed[i].line], &part)
            if link != NULL:
                self.note(link, self.needed[i])
        if link != NULL:
            if link.order.head == NULL:
                link.order.head = entry
            else:
                (<entry_t*>link.order.tail).next = entry
            link.order.tail = entry
        return 0

    cdef int hold(self, uint8_t kind, link_t* link, object obj, uint8_t packet_type, uint16_t packet_id,
                  uint8_t reason, uint64_t since) except -1:
        cdef held_t held = held_t(0, link, NULL, 0, packet_id, kind, packet_type, reason, 0, 0)
        cdef Line line = self.local
        if self.alone or (self.given_count == 0 and link.order == NULL and self.turn_mark <= since <= self.mark):
            # Fast path: the journal is the only line involved.
            if self.mark != since:
                held.position = line.newest()
            held.position = max(held.position, link.held_upto)
            if held.position <= line.done() and link.held == 0:
                return 0
            link.held_upto = held.position
            line.push()[0] = held
            if obj is not None:
                Py_INCREF(obj)
                line.held[(line.held_head + line.held_count - 1) & (line.held_room - 1)].object = <PyObject*>obj
            link.refs += 1
            link.held += 1
            self.waiting += 1
            return 1
        self.collect(since)
        return self.hold_needed(kind, link, obj, packet_type, packet_id, reason)

    cdef int hold_needed(self, uint8_t kind, link_t* link, object obj, uint8_t packet_type, uint16_t packet_id,
                         uint8_t reason) except -1:
        cdef held_t held = held_t(0, link, NULL, 0, packet_id, kind, packet_type, reason, 0, 0)
        self.need_elders(link)
        if self.needed_count == 0 and link.held == 0:
            return 0
        if obj is not None:
            Py_INCREF(obj)
            held.object = <PyObject*>obj
        link.refs += 1
        if self.needed_count == 1:          # all earlier answers of the link are before it in that ring
            held.position = self.needed[0].position
            held.own = self.needed[0].own != 0
            held.span = self.needed[0].span
            self.note(link, self.needed[0])
            self.wait_in(<Line>self.lines[self.needed[0].line], &held)
        else:
            self.enter(&held)
        link.held += 1
        self.waiting += 1
        return 1

    cdef int hold_at(self, ticket_t ticket, uint8_t kind, link_t* link, object obj, uint8_t packet_type,
                     uint16_t packet_id) except -1:
        cdef held_t held = held_t(ticket.position, link, <PyObject*>obj, 0, packet_id, kind, packet_type, 0, 1,
                                  ticket.span)
        cdef Line line = self.local if ticket.line == 0 else <Line>self.lines[ticket.line]
        if link != NULL:
            self.note(link, ticket)
        self.wait_in(line, &held)
        Py_INCREF(obj)
        if link != NULL:
            link.refs += 1
            link.held += 1
        self.waiting += 1
        return 0

    cdef int hold_call(self, object call, uint64_t since) except -1:
        return self.queue_call(call) if self.collect(since) else 0

    cdef int hold_all(self, object call) except -1:
        self.collect(self.turn_mark)
        if self.local.newest() > self.local.done():
            self.need(ticket_t(self.local.newest(), 0, 1, 0))
        return self.queue_call(call) if self.needed_count else 0

    cdef int queue_call(self, object call) except -1:
        """Queues a call behind all needed tickets."""
        cdef held_t held = held_t(0, NULL, <PyObject*>call, 0, 0, HELD_CALL, 0, 0, 1, 0)
        if self.needed_count == 1:
            held.position, held.span = self.needed[0].position, self.needed[0].span
            self.wait_in(<Line>self.lines[self.needed[0].line], &held)
        else:
            self.enter(&held)
        Py_INCREF(call)
        self.waiting += 1
        return 1

    # ---------------------------------------------------------------- releasing

    cdef int moved_on(self, Line line) except -1:
        if not line.moved:
            line.moved = True
            self.moved.append(line)
        if self.owner != NULL:
            (<Waiter>self.owner).on_committed(line.number, line.decided)
        return 0

    cdef void may_leave(self, entry_t* entry) noexcept:
        entry.next = NULL
        if self.ready == NULL:
            self.ready = entry
        else:
            self.ready_last.next = entry
        self.ready_last = entry

    cdef int count_down(self, Line line, held_t* held) except -1:
        """One ticket of an entry is decided. Entries at the front of the link's queue that miss none become ready."""
        cdef entry_t* entry = <entry_t*>held_object(held, HELD_ENTRY)
        cdef order_t* order
        cdef uint16_t code = 0
        if held.own and line.refusal(held.position, held.span, &code) is not None:
            entry.given_up = 1 + line.number
            entry.held.position = held.position
            entry.held.span = held.span
        entry.missing -= 1
        if entry.missing:
            return 0
        if entry.held.link == NULL:
            self.may_leave(entry)
            return 0
        order = entry.held.link.order
        while order.head != NULL and (<entry_t*>order.head).missing == 0:
            entry = <entry_t*>order.head
            order.head = entry.next
            if order.head == NULL:
                order.tail = NULL
            self.may_leave(entry)
        return 0

    cdef int take(self, held_t* out) except -1:
        cdef Line line
        cdef entry_t* entry
        self.why = None
        self.why_code = 0
        while True:
            if self.ready != NULL:
                entry = self.ready
                self.ready = entry.next
                out[0] = entry.held
                if entry.given_up:
                    out.line = entry.given_up - 1
                    # A refusal may be forgotten while this waits for another line.
                    self.why = (<Line>self.lines[out.line]).refusal(out.position, out.span, &self.why_code) or "refused"
                entry_free(entry)
                self.waiting -= 1
                return 1
            line = self.local
            if line.held_count == 0 or line.held[line.held_head].position > line.done():
                if not self.moved:
                    return 0
                line = <Line>self.moved[len(self.moved) - 1]
                if line.held_count == 0 or line.held[line.held_head].position > line.decided:
                    line.moved = False
                    self.moved.pop()
                    continue
            out[0] = line.held[line.held_head]
            line.pop()
            if out.kind == HELD_ENTRY:
                self.count_down(line, out)
                continue
            if out.own and (line.given_up is not None or line.refused):
                self.why = line.refusal(out.position, out.span, &self.why_code)
            self.waiting -= 1
            return 1

    cdef void end(self) noexcept:
        cdef Line line
        cdef entry_t* entry
        for line in self.lines:
            line.drop_waits()
        while self.ready != NULL:
            entry = self.ready
            self.ready = entry.next
            drop(&entry.held)
            entry_free(entry)
        self.waiting = 0

    cdef void forget(self, link_t* link) noexcept:
        if link.order != NULL and link.order.head == NULL:
            free(link.order.newest)
            free(link.order)
            link.order = NULL
