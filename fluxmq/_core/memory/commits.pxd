"""What an answer waits for: tickets of commit lines. Decision 0006 says why it is made so.

A line is a source of commits. What is given to it gets a position, and the line says up to which position all is
decided: committed, or given up with a reason. The journal is line 0, its positions are its batches (nothing else knows
that). A ticket is (line, position).

    a verb records ──► mark + 1 ─┐
    a verb gives to a line ──────┴─► answer since the mark ──► its tickets ──► one, and all of the link is in that line:
                                                                               the end of the line's ring
                                                                           └─► several: an entry of the link's own queue
                                                                               and a wait in the ring of each line
    a line commits ──► take() ──► Hub.release lets it go

Order: a link's answers leave in the order in which they began to wait (hold). A wait of hold_at is for one ticket and
behind nobody; what is held after it stays behind it.
"""
from cpython.ref cimport PyObject
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.disk.journal cimport Journal
from fluxmq._core.memory.link cimport link_t, order_t
from fluxmq._core.memory.namespace cimport Namespace

cdef enum:
    HELD_ACK = 1            # link: write the acknowledgement
    HELD_SEND = 2           # session: its QoS 2 PUBLISH, PUBREL, or a queue's message under this packet id may leave
    HELD_CALL = 3           # call a Python callable; or (call, refused) of two
    HELD_BYTES = 4          # link: write a bytes object (SUBACK, UNSUBACK, CONNACK)
    HELD_TOLD = 5           # Waiter: on_committed(line, position), or on_given_up
    HELD_ENTRY = 6          # of the link's own queue, or a call's: one ticket less is missing (inside this module only)

cdef struct ticket_t:
    uint64_t position       # 0: nothing is to be waited for
    uint32_t line
    uint32_t own            # in Commits.needed: something was recorded there, and not only by an elder

cdef struct held_t:
    uint64_t position
    link_t* link            # counted, or NULL
    PyObject* object        # owned, or NULL; of HELD_ENTRY an entry_t
    uint32_t line
    uint16_t packet_id
    uint8_t kind
    uint8_t packet_type
    uint8_t reason
    uint8_t own             # the position is of what it recorded itself, and not that of an elder

cdef struct entry_t:        # waits for tickets of several lines
    entry_t* next           # in the link's queue, or in that of those which may leave
    held_t held
    uint32_t missing        # tickets that are not decided
    uint32_t given_up       # 1 + the line that gave up a ticket of its own; 0: none did

cdef struct given_t:        # a ticket of another line than the journal
    uint64_t mark           # when it was given
    uint64_t position
    uint32_t line

cdef class Waiter:
    """Whoever is told that something is committed, and knows itself what that lets go."""
    # HELD_TOLD: all up to the position is decided.
    cdef int on_committed(self, uint32_t line, uint64_t position) except -1
    # HELD_TOLD: the position was given up. The owner of a link: an answer of it (packet_type, packet_id; 0: bytes that
    # it was to write) is refused, because what was recorded for it was given up.
    cdef int on_given_up(self, uint32_t line, uint64_t position, uint8_t packet_type, uint16_t packet_id,
                         str why) except -1

cdef class Line:
    """A source of commits. Made by Commits.open_line."""
    cdef readonly uint32_t number
    cdef readonly str name              # for people: what it is
    cdef readonly bint closed           # it takes nothing any more, and nothing waits for it
    cdef Journal journal                # of line 0 on a node that has one; else None
    cdef void* commits                  # borrowed: the Commits that made it; NULL once that is gone
    cdef uint64_t at                    # position of what is given now
    cdef bint given                     # something was
    cdef uint8_t* gather                # of another line than the journal: records of what is given now
    cdef size_t gather_length
    cdef size_t gather_room
    cdef uint64_t decided               # committed or given up, all up to here
    cdef list given_up                  # (first, last, why) that waits may still ask for
    cdef bint moved                     # in Commits.moved
    cdef readonly dict namespaces       # number in records -> Namespace, None: of one that has ended; 0 is "/"
    cdef readonly dict namespace_numbers    # and back
    cdef held_t* held                   # ring, released from the front
    cdef size_t held_head
    cdef size_t held_count
    cdef size_t held_room               # a power of two

    # Room for one record of what is given now, as Journal.reserve. Raises StorageError, UsageError when it is closed.
    cdef uint8_t* reserve(self, uint8_t kind, uint32_t length) except NULL
    cdef uint64_t gathering(self) noexcept      # what is given now has this position
    cdef uint64_t newest(self) noexcept         # the last position that has something; 0: none ever had
    cdef uint64_t done(self) noexcept           # all up to it is decided
    cdef str refusal(self, uint64_t position)   # why it was given up; None: it was not
    cdef held_t* push(self) except NULL
    cdef void pop(self) noexcept
    cdef int decide(self, uint64_t upto) except -1

cdef class Commits:
    cdef readonly uint64_t mark         # moved by every record and ticket; who compares sees whether something came
    cdef readonly uint64_t tickets      # of other lines than the journal, so far
    cdef readonly size_t waiting        # answers, deliveries and calls that were not let go yet
    cdef readonly Line local            # line 0
    cdef readonly Namespace root        # "/"
    cdef bint alone                     # there is no other line
    cdef list lines
    cdef list moved                     # other lines that may have decided something since take() looked
    cdef void* owner                    # borrowed Waiter, told (on_committed) when another line has; NULL: nobody
    cdef given_t* given                 # since `turn_mark`
    cdef uint32_t given_count
    cdef uint32_t given_room
    cdef uint64_t turn_mark             # what was given before it is not in `given` any more
    cdef ticket_t* needed               # what collect() found
    cdef uint32_t needed_count
    cdef uint32_t needed_room
    cdef entry_t* ready                 # entries that may leave, in order
    cdef entry_t* ready_last
    cdef str why                        # why what take() gave last was given up; None: it was committed

    # Something was given to a line in this turn: its position. Raises UsageError for a line that is closed.
    cdef uint64_t give(self, Line line) except? 0
    # Nobody shall wait for what came since the mark.
    cdef void take_back(self, uint64_t mark) noexcept
    # The tickets since the mark that are not decided, one of each line, in `needed`. Returns how many.
    cdef int collect(self, uint64_t since) except -1
    # Queues an answer of a link behind its elders and the tickets since the mark. 0: it need not wait, and was not
    # queued. `obj` as the kind says.
    cdef int hold(self, uint8_t kind, link_t* link, object obj, uint8_t packet_type, uint16_t packet_id,
                  uint8_t reason, uint64_t since) except -1
    # Queues a wait for one ticket, behind nobody.
    cdef int hold_at(self, ticket_t ticket, uint8_t kind, link_t* link, object obj, uint8_t packet_type,
                     uint16_t packet_id) except -1
    # Queues a call for the tickets since the mark. 0: there are none.
    cdef int hold_call(self, object call, uint64_t since) except -1
    # Queues a call for the newest of the journal and what other lines were given in this turn. 0: there is nothing.
    cdef int hold_all(self, object call) except -1
    cdef int queue_call(self, object call) except -1
    cdef bint is_done(self, ticket_t ticket) noexcept
    # The ticket of what is recorded next in a line; what is recorded may come a little later in this turn.
    cdef ticket_t next_ticket(self, Line line) noexcept
    # The next that may leave: the caller owns its link and object. 0: nobody may. `why` says whether it was given up.
    cdef int take(self, held_t* out) except -1
    # What was given so far is not asked for by mark any more (but conservatively).
    cdef void end_turn(self) noexcept
    cdef int wait_in(self, Line line, held_t* held) except -1
    cdef int need(self, ticket_t ticket) except -1
    cdef int need_elders(self, link_t* link) except -1
    cdef int note(self, link_t* link, ticket_t ticket) except -1
    cdef int enter(self, held_t* held) except -1
    cdef int count_down(self, Line line, held_t* held) except -1
    cdef void may_leave(self, entry_t* entry) noexcept
    cdef int moved_on(self, Line line) except -1
    # A link of which nothing waits any more.
    cdef void forget(self, link_t* link) noexcept

cdef inline bint must_wait(Commits commits, link_t* link, uint64_t since) noexcept:
    """Whether an answer of this link may have to wait: most need not, and none of the above is called."""
    return commits.mark != since or link.held != 0
