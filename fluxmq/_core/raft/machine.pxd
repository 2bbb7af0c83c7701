"""One replica of a group: Raft without a clock, a disk or a network. docs/decisions/0013-replication-groups.md.

    tick(), step(message), propose(…) ─► take() ─► persist, send now, send when that is persisted, apply
                                                      │
                                 persisted(term, index) once that is on the disk

Its states, which test_drawings holds against TRANSITIONS (machine.pyx):

    FOLLOWER ──time is up──► PRE_CANDIDATE ──a majority would vote──► CANDIDATE ──a majority has voted──► LEADER
    FOLLOWER ──campaign asked for──► CANDIDATE
    PRE_CANDIDATE, CANDIDATE ──time is up──► PRE_CANDIDATE
    PRE_CANDIDATE, CANDIDATE, LEADER ──a leader, or a higher term──► FOLLOWER
    PRE_CANDIDATE, CANDIDATE ──too many have refused──► FOLLOWER
    LEADER ──no majority is heard──► FOLLOWER

A group of one goes all the way at once.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from fluxmq._core.raft.log cimport EntryLog
from fluxmq._core.raft.messages cimport Entry, Message

cdef enum role:                 # see above
    FOLLOWER
    PRE_CANDIDATE
    CANDIDATE
    LEADER

cdef enum pace:                 # how a leader sends to a replica
    PROBE                       # one APPEND at a time, until it is known where they agree
    REPLICATE                   # one behind the other
    COPYING                     # it gets a copy of the queues

cdef class Progress:
    """What a leader knows of a replica."""
    cdef readonly uint32_t number
    cdef readonly uint64_t match        # what it has on its disk is the leader's up to here
    cdef readonly uint64_t next         # the next entry that is sent to it
    cdef readonly uint8_t pace
    cdef readonly bint learner
    cdef readonly bint active           # it was heard since the leader last looked
    cdef bint waits                     # PROBE: an APPEND is under way
    cdef uint64_t told_commit           # the highest commit index that it was sent
    cdef uint64_t copy_upto             # COPYING: it has everything up to here then
    cdef uint64_t alive_match           # match when it last answered a heartbeat
    cdef object flying                  # REPLICATE: deque of (last index, bytes) of each APPEND that was not answered
    cdef uint64_t flying_bytes
    cdef int set_pace(self, uint8_t pace) except -1

cdef class Raft:
    cdef readonly uint32_t own
    cdef readonly uint64_t term
    cdef readonly uint32_t vote         # in this term; 0: none
    cdef readonly uint32_t leader       # 0: not known
    cdef readonly uint64_t commit
    cdef readonly uint64_t applied      # entries up to here were given out by take()
    cdef readonly EntryLog log
    cdef readonly frozenset voters
    cdef readonly frozenset learners
    cdef readonly uint32_t transferee   # leadership goes there; 0: to nobody
    cdef readonly uint64_t on_disk      # of this replica's log, as far as it is this log
    cdef public uint32_t in_sync_min
    cdef public bint may_campaign       # False: votes and follows, and does not stand
    cdef uint8_t state
    cdef public uint32_t election_ticks
    cdef public uint32_t heartbeat_ticks
    cdef uint32_t election_limit        # drawn anew for each wait
    cdef uint32_t elapsed               # ticks since a leader was heard; of a leader, since it looked who is there
    cdef uint32_t heartbeat_elapsed
    cdef uint64_t append_bytes_max
    cdef uint64_t flying_bytes_max
    cdef dict progress                  # number -> Progress
    cdef dict votes                     # number -> bool
    cdef object draw
    cdef list now                       # messages
    cdef list later                     # those that wait for the disk
    cdef uint64_t taken                 # entries up to here were given out to be persisted
    cdef uint64_t taken_number          # of the last Taken
    cdef object pending                 # deque of [number of a Taken that is not on the disk, how far the log goes]
    cdef uint64_t cut_from              # and of these, what is from here on is not in the log any more; 0: nothing
    cdef bint vote_changed
    cdef uint64_t own_vote_in           # number of the Taken with a candidate's vote for itself

    cdef int enter(self, uint8_t state) except -1
    cdef int reset(self, uint64_t term) except -1
    cdef int follow(self, uint64_t term, uint32_t leader) except -1
    cdef bint may_stand(self) except -1
    cdef int stand(self, bint forced) except -1
    cdef int ask(self, bint forced) except -1
    cdef int ask_all(self, uint8_t kind, bint forced) except -1
    cdef int lead(self) except -1
    cdef int count_vote(self, uint32_t sender, bint granted) except -1
    cdef bint is_newer(self, Message message) noexcept
    cdef int on_term(self, Message message) except -1
    cdef int on_vote(self, Message message) except -1
    cdef int on_append(self, Message message) except -1
    cdef int on_appended(self, Progress replica, Message message) except -1
    cdef int on_alive(self, Progress replica) except -1
    cdef int on_heartbeat(self, Message message) except -1
    cdef int on_copy(self, Message message) except -1
    cdef int acknowledge(self, uint64_t index) except -1
    cdef int add(self, Entry entry) except -1
    cdef int cut(self, uint64_t index) except -1
    cdef int use_members(self) except -1
    cdef int send(self, Message message, bint later=*) except -1
    cdef int send_entries(self, Progress replica) except -1
    cdef int send_some(self, Progress replica) except -1
    cdef int send_heartbeats(self) except -1
    cdef int reach(self, uint64_t index) except -1
    cdef int count_commit(self) except -1
    cdef bint hears_majority(self) except -1
    cdef uint32_t majority(self) noexcept
    cdef int hand_on(self, Progress replica) except -1
