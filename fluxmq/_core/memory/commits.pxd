"""Answers wait here until what they confirm is committed. docs/decisions/0006-commit-lines.md has the reasons.

A line is a source of commits. Each change given to it gets a position, and the line reports up to which position all
are decided: committed, or given up with a reason. The journal is line 0; its positions are the numbers of its batches
(only this module relies on that). A ticket is (line, position): the commit that an answer waits for.

    a verb records ──► mark + 1 ─┐
    a verb gives to a line ──────┴─► answer since the mark ──► its tickets ──► one, and all of the link is in that line:
                                                                               the end of the line's ring
                                                                           └─► several: an entry of the link's own queue
                                                                               and a wait in the ring of each line
    a line commits ──► take() ──► Hub.release lets it go

Order: the answers of a link are released in the order in which they began to wait (hold). A wait by hold_at needs one
ticket only and not those of earlier answers; answers held after it are released after it.
"""
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.debug cimport check
from fluxmq._core.disk.journal cimport Journal
from fluxmq._core.memory.link cimport link_t, order_t
from fluxmq._core.memory.namespace cimport Namespace

cdef enum:
    HELD_ACK = 1            # link: write the acknowledgement
    HELD_SEND = 2           # session: its QoS 2 PUBLISH, PUBREL, or a queue's message under this packet id may leave
    HELD_CALL = 3           # call a Python callable; or (call, refused) of two
    HELD_BYTES = 4          # link: write a bytes object (SUBACK, UNSUBACK, CONNACK)
    HELD_NOTIFY = 5         # Waiter: call on_committed(line, position), or on_given_up
    HELD_ENTRY = 6          # an entry_t of a link's queue or of a call waits for one ticket less (only in this module)

cdef struct ticket_t:
    uint64_t position       # 0: no wait
    uint32_t line
    uint32_t own            # in Commits.needed: the answer's own change; 0: only that of an earlier answer
    uint32_t span           # the answer waits for so many positions before it, too: each of them may be refused

cdef struct held_t:
    uint64_t position
    link_t* link            # counted, or NULL
    PyObject* object        # owned, or NULL; of HELD_ENTRY an entry_t
    uint32_t line
    uint16_t packet_id
    uint8_t kind
    uint8_t packet_type
    uint8_t reason
    uint8_t own             # the position is that of its own change, not only that of an earlier answer
    uint32_t span           # as of the ticket

# What is held in this way, for a cast to its class.
cdef inline PyObject* held_object(const held_t* held, uint8_t kind) noexcept:
    check(held.kind == kind)
    return held.object

cdef struct entry_t:        # waits for tickets of several lines
    entry_t* next           # in the link's queue, or in Commits.ready
    held_t held
    uint32_t missing        # number of tickets not decided yet
    uint32_t given_up       # 1 + the line that gave up one of its own tickets; 0: none did

cdef struct given_t:        # a ticket of another line than the journal
    uint64_t mark           # Commits.mark when it was given
    uint64_t position
    uint32_t line

cdef class Waiter:
    """Base class: gets a callback when a position is decided."""
    # HELD_NOTIFY: everything up to the position is decided.
    cdef int on_committed(self, uint32_t line, uint64_t position) except -1
    # HELD_NOTIFY: the position was given up. For the owner of a link: the change that an answer confirms (packet_type,
    # packet_id; 0: HELD_BYTES) was given up, so the answer must be replaced by a refusal.
    cdef int on_given_up(self, uint32_t line, uint64_t position, uint8_t packet_type, uint16_t packet_id,
                         str why) except -1

cdef inline bint is_waiter(void* it) noexcept:
    return isinstance(<object>it, Waiter)

# The owner of a link, which is a Waiter, for a cast to its class. It must have one.
cdef inline PyObject* link_owner(const link_t* link) noexcept:
    check(is_waiter(link.owner))
    return <PyObject*>link.owner

cdef class Line:
    """A source of commits. Made by Commits.open_line."""
    cdef readonly uint32_t number
    cdef readonly str name              # for messages to users
    cdef readonly uint32_t group        # whose line it is, alike at every node; 0: the journal, and lines without disk
    cdef readonly bint closed           # accepts nothing any more, and nothing waits for it
    cdef Journal journal                # of line 0 on a node that has one; else None
    cdef void* commits                  # borrowed: the Commits that made it; NULL once that is gone
    cdef uint64_t at                    # position of the changes that are gathered now
    cdef bint given                     # there are any
    cdef public uint64_t room           # of a group: so many bytes may be gathered now; more is refused to publishers
    cdef uint8_t* gather                # other lines than the journal: records of those changes
    cdef size_t gather_length
    cdef size_t gather_room
    cdef uint64_t decided               # everything up to here is committed or given up
    cdef uint64_t mark                  # Commits.mark when it was given the newest of its tickets; 0: none yet
    cdef list given_up                  # (first, last, why) of recent positions given up
    cdef dict refused                   # position -> (reason, why): the others up to it may be committed; or None
    cdef size_t refused_max             # how many of these are kept before those that nobody waits for are dropped
    cdef bint moved                     # in Commits.moved
    # The line's clock is the node's steady clock plus this; deadlines in its records, and in what is made of them, are
    # in it. 0 for the journal.
    cdef readonly int64_t shift_ms
    cdef bint timed                     # shift_ms was heard, or is this node's own word
    cdef readonly dict retaining        # number -> Log: those that keep what is not committed (queue/lend.pyx)
    cdef readonly dict namespaces       # number in records -> Namespace, None: it has ended; 0 is "/"
    cdef readonly dict namespace_numbers    # the reverse
    cdef held_t* held                   # ring, released from the front
    cdef size_t held_head
    cdef size_t held_count
    cdef size_t held_room               # a power of two

    # Room for one record, as Journal.reserve. Raises StorageError; UsageError if the line is closed.
    cdef uint8_t* reserve(self, uint8_t kind, uint32_t length) except NULL
    cdef uint64_t gathering(self) noexcept      # position of a change given now
    cdef uint64_t newest(self) noexcept         # the last position that has a change; 0: none yet
    cdef int begin(self) except -1              # the first change of those that are gathered now
    cdef uint64_t done(self) noexcept           # everything up to it is decided
    cdef bint releases(self) noexcept           # something that waits for it is decided, and is not released yet
    # Why it, or one of `span` positions before it, was given up or refused; None: it was not. code: the reason of a
    # refusal, as given to refuse(); 0: of none.
    cdef str refusal(self, uint64_t position, uint32_t span, uint16_t* code)
    # Gives a change, as Commits.give, with a position of its own, which counts as submitted.
    cdef uint64_t give_one(self) except? 0
    cdef held_t* push(self) except NULL
    cdef void pop(self) noexcept
    cdef void drop_waits(self) noexcept         # none of them is released
    cdef int decide(self, uint64_t upto) except -1
    cdef int forget_refused(self) except -1

cdef class Commits:
    cdef readonly uint64_t mark         # grows with every record and ticket; compare two values to detect changes
    cdef readonly uint64_t tickets      # number of tickets of other lines than the journal so far
    cdef readonly size_t waiting        # answers, deliveries and calls not released yet
    cdef readonly Line local            # line 0
    cdef readonly Namespace root        # "/"
    cdef bint alone                     # there is no other line
    cdef list lines
    cdef list spare                     # lines that were retired: for some of them somebody may wait still
    cdef list moved                     # other lines that may have decided positions which take() has not seen
    cdef list touched                   # lines of groups that were given something since take_touched()
    cdef void* owner                    # borrowed Waiter whose on_committed is called when another line has; or NULL
    cdef given_t* given                 # since `turn_mark`
    cdef uint32_t given_count
    cdef uint32_t given_room
    cdef uint64_t turn_mark             # `given` has only tickets given after this mark
    cdef ticket_t* needed               # result of collect(), and what else the answer at hand needs
    cdef uint32_t needed_count
    cdef uint32_t needed_room
    cdef entry_t* ready                 # entries to be released, in order
    cdef entry_t* ready_last
    cdef str why                        # why the last result of take() was given up; None: it was committed
    cdef uint16_t why_code              # the reason of a refusal (Line.refuse); 0: there is none

    # As open_line, for a line whose next position is the one behind this.
    cdef Line open_behind(self, str name, uint64_t position)
    cdef Line take_spare(self, str name, uint64_t position)
    cdef Line new_line(self, str name, uint32_t group)
    # A change was given to a line in this turn: returns its position. Raises UsageError for a closed line.
    cdef uint64_t give(self, Line line) except? 0
    # Resets the mark, so that nothing waits for what was given since.
    cdef void take_back(self, uint64_t mark) noexcept
    # Puts the undecided tickets since the mark, one per line, into `needed`. Returns how many.
    cdef int collect(self, uint64_t since) except -1
    # Queues an answer of a link behind its earlier answers and the tickets since the mark. 0: it need not wait and was
    # not queued. `obj`: depends on the kind.
    cdef int hold(self, uint8_t kind, link_t* link, object obj, uint8_t packet_type, uint16_t packet_id,
                  uint8_t reason, uint64_t since) except -1
    # The same for what is in `needed`.
    cdef int hold_needed(self, uint8_t kind, link_t* link, object obj, uint8_t packet_type, uint16_t packet_id,
                         uint8_t reason) except -1
    # Queues a wait for one ticket, behind nobody.
    cdef int hold_at(self, ticket_t ticket, uint8_t kind, link_t* link, object obj, uint8_t packet_type,
                     uint16_t packet_id) except -1
    # Queues a call for the tickets since the mark. 0: there are none.
    cdef int hold_call(self, object call, uint64_t since) except -1
    # Queues a call for the newest of the journal and what other lines were given in this turn. 0: there is nothing.
    cdef int hold_all(self, object call) except -1
    cdef int queue_call(self, object call) except -1
    cdef bint is_done(self, ticket_t ticket) noexcept
    # Line.refusal of a ticket.
    cdef str refusal_of(self, ticket_t ticket, uint16_t* code)
    # The ticket of the next record of a line; it may be written later in this turn.
    cdef ticket_t next_ticket(self, Line line) noexcept
    # The next wait that is decided; the caller owns its link and object. 0: there is none. `why`: if it was given up.
    cdef int take(self, held_t* out) except -1
    # Drops `given`: a later collect() with an earlier mark waits for the newest position of every line that was given
    # something since. Who works in several turns has Tickets (memory/tickets), and waits for its own only.
    cdef void end_turn(self) noexcept
    cdef int wait_in(self, Line line, held_t* held) except -1
    cdef int need(self, ticket_t ticket) except -1
    cdef int need_also(self, ticket_t ticket) except -1     # even if one of the same line is there
    cdef int need_elders(self, link_t* link) except -1
    cdef int note(self, link_t* link, ticket_t ticket) except -1
    cdef int enter(self, held_t* held) except -1
    cdef int count_down(self, Line line, held_t* held) except -1
    cdef void may_leave(self, entry_t* entry) noexcept
    cdef int moved_on(self, Line line) except -1
    # The node stops: drops every wait, unanswered. What waits refers to the broker (calls, sessions), which the garbage
    # collector does not see: a node that is not ended is never freed while anything waits.
    cdef void end(self) noexcept
    # Frees the order of a link for which nothing waits any more.
    cdef void forget(self, link_t* link) noexcept

cdef inline bint must_wait(Commits commits, link_t* link, uint64_t since) noexcept:
    """Whether an answer of this link may have to wait. Most need not, so this inline check avoids a call of hold()."""
    return commits.mark != since or link.held != 0
