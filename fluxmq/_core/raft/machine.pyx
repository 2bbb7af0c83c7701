# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. See raft/machine.pxd. Where it differs from etcd/raft the decision record says why."""
from collections import deque

cimport cython

from fluxmq._core.debug cimport check, is_transition
from fluxmq._core.errors import CorruptError, UsageError
from fluxmq._core.raft.log cimport EntryLog
from fluxmq._core.raft.messages cimport (
    ALIVE, APPEND, APPENDED, CAMPAIGN, COPY, ENTRY_MEMBERS, ENTRY_NOTHING, HEARTBEAT, PRE_VOTE, PRE_VOTED, VOTE, VOTED,
    Entry, Message,
)
from fluxmq._core.raft.messages import encode_members

__all__ = ["PACES", "STATES", "TRANSITIONS", "Progress", "Raft", "Taken"]

STATES = ("FOLLOWER", "PRE_CANDIDATE", "CANDIDATE", "LEADER")      # by role
TRANSITIONS = {
    ("FOLLOWER", "time is up"): "PRE_CANDIDATE",
    ("PRE_CANDIDATE", "time is up"): "PRE_CANDIDATE",
    ("CANDIDATE", "time is up"): "PRE_CANDIDATE",
    ("FOLLOWER", "campaign asked for"): "CANDIDATE",
    ("PRE_CANDIDATE", "a majority would vote"): "CANDIDATE",
    ("CANDIDATE", "a majority has voted"): "LEADER",
    ("PRE_CANDIDATE", "a leader, or a higher term"): "FOLLOWER",
    ("CANDIDATE", "a leader, or a higher term"): "FOLLOWER",
    ("LEADER", "a leader, or a higher term"): "FOLLOWER",
    ("PRE_CANDIDATE", "too many have refused"): "FOLLOWER",
    ("CANDIDATE", "too many have refused"): "FOLLOWER",
    ("LEADER", "no majority is heard"): "FOLLOWER",
}
cdef uint64_t NEVER = <uint64_t>-1
cdef enum:
    GONE_TICKS = 3          # in which those stand that have lost the way to their leader, one of them first
PACES = ("PROBE", "REPLICATE", "COPYING")       # by pace

cdef bint may_follow(int state, int after) noexcept:
    return is_transition(STATES, TRANSITIONS, state, after)


@cython.final
cdef class Progress:
    """What a leader knows of a replica. See raft/machine.pxd."""

    def __cinit__(self, uint32_t number, uint64_t next, bint learner):
        self.number = number
        self.next = next
        self.learner = learner
        self.pace = PROBE
        self.alive_match = NEVER
        self.flying = deque()

    @property
    def pace_name(self) -> str:
        """One of PACES."""
        return PACES[<int>self.pace]

    cdef int set_pace(self, uint8_t pace) except -1:
        self.pace = pace
        self.waits = False
        self.flying.clear()
        self.flying_bytes = 0
        return 0


class Taken:
    """What take() gives out.

    number: for persisted(). cut: entries from this index on are removed from the disk first; 0: none. first: index of
    the first of `entries`, which are persisted. vote: (term, vote) to be persisted, or None. now: messages that leave
    at once; later: those that leave when all of this, and what was taken before, is persisted. applied: index of the
    first of `committed`.
    """

    __slots__ = ("applied", "committed", "cut", "entries", "first", "later", "now", "number", "vote")

    def __init__(self, number, cut, first, entries, vote, now, later, applied, committed):
        self.number = number
        self.cut = cut
        self.first = first
        self.entries = entries
        self.vote = vote
        self.now = now
        self.later = later
        self.applied = applied
        self.committed = committed

    def __bool__(self):
        return bool(self.cut or self.entries or self.vote or self.now or self.later or self.committed)


@cython.final
cdef class Raft:
    """One replica of a group.

    own: its number, not 0. log: what the disk has, with the members as of what the copy has. term, vote: as on the
    disk. commit: known to be committed; at least log.base. applied: what the copy has; log.base if it is less.
    election_ticks: without a leader for between so many ticks and twice as many, drawn by draw(n), 0 ≤ result < n, it
    stands. in_sync_min: an entry is committed when so many voters have it, at least a majority and at most all.
    """

    def __init__(self, uint32_t own, EntryLog log not None, draw, *, uint64_t term=0, uint32_t vote=0,
                 uint64_t commit=0, uint64_t applied=0, uint32_t election_ticks=30, uint32_t heartbeat_ticks=10,
                 uint32_t in_sync_min=0, uint64_t append_bytes_max=1 << 20, uint64_t flying_bytes_max=4 << 20):
        self.own = own
        self.log = log
        self.draw = draw
        self.term = term
        self.vote = vote
        self.commit = self.applied = max(self.log.base, applied)
        self.election_ticks = election_ticks
        self.heartbeat_ticks = heartbeat_ticks
        self.in_sync_min = in_sync_min
        self.append_bytes_max = append_bytes_max
        self.flying_bytes_max = flying_bytes_max
        self.may_campaign = True
        self.progress = {}
        self.votes = {}
        self.now = []
        self.later = []
        self.pending = deque()
        self.taken = self.on_disk = self.log.last()
        self.use_members()
        if max(commit, applied) > self.log.last():
            raise UsageError(f"entry {max(commit, applied)} was committed, and the disk has {self.log.last()}")
        self.reach(commit)
        self.election_limit = election_ticks + <uint32_t>draw(election_ticks)

    # ---------------------------------------------------------------- what is seen

    @property
    def state_name(self) -> str:
        """One of STATES: see raft/machine.pxd."""
        return STATES[<int>self.state]

    @property
    def leads(self) -> bool:
        """Whether it is the leader, of its term."""
        return self.state == LEADER

    @property
    def replicas(self) -> list:
        """Progress of the others, of a leader; else empty."""
        return list(self.progress.values()) if self.state == LEADER else []

    # ---------------------------------------------------------------- time

    def tick(self):
        """One unit of time has passed."""
        self.elapsed += 1
        if self.state != LEADER:
            if self.elapsed >= self.election_limit and self.may_stand():
                self.stand(False)
            return
        self.heartbeat_elapsed += 1
        if self.elapsed >= self.election_ticks:
            self.elapsed = 0
            self.transferee = 0             # it has not taken over in time
            if not self.hears_majority():
                self.follow(self.term, 0)
                return
        if self.heartbeat_elapsed >= self.heartbeat_ticks:
            self.heartbeat_elapsed = 0
            self.send_heartbeats()

    cdef bint hears_majority(self) except -1:
        """Since it was asked last."""
        cdef Progress replica
        cdef uint32_t heard = 1 if self.own in self.voters else 0
        for replica in self.progress.values():
            if replica.active and not replica.learner:
                heard += 1
            replica.active = False
        return heard >= self.majority()

    cdef uint32_t majority(self) noexcept:
        return <uint32_t>len(self.voters) // 2 + 1

    # ---------------------------------------------------------------- roles

    cdef int enter(self, uint8_t state) except -1:
        check(self.state == state or may_follow(self.state, state))
        self.state = state
        return 0

    cdef int reset(self, uint64_t term) except -1:
        if term != self.term:
            self.term = term
            self.vote = 0
            self.vote_changed = True
        self.leader = 0
        self.transferee = 0
        self.elapsed = 0
        self.heartbeat_elapsed = 0
        self.votes = {}
        self.progress = {}
        self.election_limit = self.election_ticks + <uint32_t>self.draw(self.election_ticks)
        return 0

    cdef int follow(self, uint64_t term, uint32_t leader) except -1:
        self.reset(term)
        self.enter(FOLLOWER)
        self.leader = leader
        return 0

    def resign(self):
        """Leads no more, if it does; another replica does already, perhaps."""
        if self.state == LEADER:
            self.follow(self.term, 0)

    def leader_gone(self):
        """The way from the leader's node has broken: stands soon, unless the leader is heard again. Of a network that
        lost one connection only, the others have not lost the leader, and refuse."""
        if self.state == FOLLOWER and self.leader:
            self.leader = 0
            self.elapsed = max(self.elapsed, self.election_limit - 1
                               - <uint32_t>self.draw(min(GONE_TICKS, self.election_limit)))

    def campaign(self):
        """Stands now, if it may: a vote was asked for, or this is a group of one that begins."""
        if self.state != LEADER and self.may_stand():
            self.stand(False)

    cdef bint may_stand(self) except -1:
        """A leader that removes itself goes when that is committed. If it ends before, others may need its log:
        until then it may stand, although it has no vote."""
        cdef tuple members = self.log.newest_members()
        if self.own not in self.voters and members[0] > self.commit and len(self.log.members) > 1:
            members = self.log.members[len(self.log.members) - 2]
        return self.may_campaign and self.own in members[1]

    cdef int stand(self, bint forced) except -1:
        """Asks for votes. forced: the leader wants it, so nobody is asked whether they would."""
        if forced:
            return self.ask(True)
        # The term is that of before, until a majority says that it would vote: who was cut off and comes back does not
        # depose a leader.
        self.reset(self.term)
        self.enter(PRE_CANDIDATE)
        self.ask_all(PRE_VOTE, False)
        return self.count_vote(self.own, True)

    cdef int ask(self, bint forced) except -1:
        """Its own vote counts when it is on the disk, like any other's (persisted)."""
        self.reset(self.term + 1)
        self.enter(CANDIDATE)
        self.vote = self.own
        self.vote_changed = True
        self.own_vote_in = 0
        self.ask_all(VOTE, forced)
        return 0

    cdef int ask_all(self, uint8_t kind, bint forced) except -1:
        for number in sorted(self.voters - {self.own}):
            self.send(Message(kind, number, self.term + (kind == PRE_VOTE), index=self.log.last(),
                              log_term=self.log.term(self.log.last()), forced=forced), kind == VOTE)
        return 0

    cdef int count_vote(self, uint32_t sender, bint granted) except -1:
        cdef uint32_t given, refused
        if sender not in self.voters:
            return 0
        self.votes.setdefault(sender, granted)
        given = <uint32_t>sum(self.votes.values())
        refused = <uint32_t>len(self.votes) - given
        if given >= self.majority():
            if self.state == PRE_CANDIDATE:
                self.ask(False)
            else:
                self.lead()
        elif <uint32_t>len(self.voters) - refused < self.majority():
            # Of an even number, half of them are enough to refuse.
            self.follow(self.term, 0)
        return 0

    cdef int lead(self) except -1:
        cdef uint64_t next = self.log.last() + 1
        self.reset(self.term)
        self.enter(LEADER)
        self.leader = self.own
        self.progress = {number: Progress(number, next, number in self.learners)
                         for number in sorted((self.voters | self.learners) - {self.own})}
        self.add(Entry(self.term, ENTRY_NOTHING, b""))
        return 0

    # ---------------------------------------------------------------- what a leader does

    def propose(self, list entries not None) -> int:
        """Appends entries of (kind, data) to the log. Returns the index of the last one; 0: this replica does not
        lead, or gives leadership away, and nothing was done. Raises UsageError for members, without doing anything."""
        cdef uint8_t kind
        cdef bytes data
        for kind, _ in entries:
            if kind == ENTRY_MEMBERS:
                raise UsageError("members are changed by change_members()")
        if self.state != LEADER or self.transferee:
            return 0
        for kind, data in entries:
            self.add(Entry(self.term, kind, data))
        return self.log.last()

    def change_members(self, voters, learners) -> int:
        """Proposes other members. Returns the entry's index; 0: this replica does not lead, gives leadership away, has
        committed nothing of its term yet, or another change is not committed. Raises UsageError unless one replica
        comes as a learner, becomes a voter or goes."""
        cdef frozenset to_vote = frozenset(voters)
        cdef frozenset to_learn = frozenset(learners)
        changed = (to_vote ^ self.voters) | (to_learn ^ self.learners)
        if len(changed) != 1 or not to_vote or to_vote & to_learn or to_vote - self.voters - self.learners:
            raise UsageError(f"from voters {sorted(self.voters)}, learners {sorted(self.learners)} to "
                             f"{sorted(to_vote)}, {sorted(to_learn)} is no change of one replica")
        if self.state != LEADER or self.transferee or self.log.newest_members()[0] > self.commit \
                or self.log.term(self.commit) != self.term:
            return 0
        self.add(Entry(self.term, ENTRY_MEMBERS, encode_members(to_vote, to_learn)))
        return self.log.last()

    def transfer(self, uint32_t to) -> bool:
        """Gives leadership to a voter that is in step. Returns whether that has begun: it ends with another leader, or
        after an election timeout without one. No proposals are taken meanwhile."""
        cdef Progress replica = self.progress.get(to)
        if self.state != LEADER or self.transferee or replica is None or replica.learner or replica.pace != REPLICATE:
            return False
        self.transferee = to
        self.elapsed = 0
        self.hand_on(replica)
        return True

    cdef int hand_on(self, Progress replica) except -1:
        if self.transferee == replica.number and replica.match == self.log.last():
            self.send(Message(CAMPAIGN, replica.number, self.term))
        return 0

    def copied(self, uint32_t number, uint64_t index):
        """A replica has got a copy of everything up to this entry (or could not get it: 0)."""
        cdef Progress replica = self.progress.get(number)
        if self.state == LEADER and replica is not None and replica.pace == COPYING:
            replica.match = max(replica.match, index)
            replica.next = replica.match + 1
            replica.set_pace(PROBE)

    cdef int add(self, Entry entry) except -1:
        self.log.append(entry)
        if entry.kind == ENTRY_MEMBERS:
            self.use_members()
        return 0

    cdef int cut(self, uint64_t index) except -1:
        """The log ends in front of this entry."""
        cdef list one
        cdef bint members = self.log.newest_members()[0] >= index
        self.log.cut(index - 1)
        self.on_disk = min(self.on_disk, index - 1)
        if self.taken >= index:
            self.cut_from = index if self.cut_from == 0 else min(self.cut_from, index)
            self.taken = index - 1
        for one in self.pending:
            # The same entry may come back: what was written of it before the cut is not what is there then.
            one[1] = min(one[1], index - 1)
        if members:
            self.use_members()
        return 0

    cdef int send_heartbeats(self) except -1:
        cdef Progress replica
        for replica in self.progress.values():
            replica.told_commit = min(replica.match, self.commit)
            self.send(Message(HEARTBEAT, replica.number, self.term, commit=replica.told_commit))
        return 0

    cdef int send_some(self, Progress replica) except -1:
        """What may be sent to a replica now."""
        if replica.pace == COPYING:
            return 0
        if replica.pace == PROBE:
            if not replica.waits:
                self.send_entries(replica)
            return 0
        while replica.next <= self.log.last() and replica.flying_bytes < self.flying_bytes_max:
            self.send_entries(replica)
            if replica.pace != REPLICATE:
                return 0
        if replica.told_commit < min(self.commit, replica.next - 1):
            # No entries: there are none, or enough are on their way.
            replica.told_commit = min(self.commit, replica.next - 1)
            self.send(Message(APPEND, replica.number, self.term, index=replica.next - 1,
                              log_term=self.log.term(replica.next - 1), commit=self.commit))
        return 0

    cdef int send_entries(self, Progress replica) except -1:
        cdef uint64_t previous = replica.next - 1
        cdef uint64_t size
        cdef list entries
        cdef Entry entry
        if previous < self.log.base:
            # It is gone here, too.
            replica.set_pace(COPYING)
            replica.copy_upto = self.log.base
            return self.send(Message(COPY, replica.number, self.term, index=self.log.base,
                                     log_term=self.log.base_term, commit=self.commit))
        entries = self.log.some(replica.next, self.log.last(), self.append_bytes_max)
        replica.told_commit = max(replica.told_commit, min(self.commit, previous + <uint64_t>len(entries)))
        self.send(Message(APPEND, replica.number, self.term, index=previous, log_term=self.log.term(previous),
                          commit=self.commit, entries=entries))
        if replica.pace == PROBE:
            replica.waits = True
        elif entries:
            size = 0
            for entry in entries:
                size += <uint64_t>len(entry.data) + 64
            replica.next += <uint64_t>len(entries)
            replica.flying.append((replica.next - 1, size))
            replica.flying_bytes += size
        return 0

    cdef int count_commit(self) except -1:
        """What enough voters have on their disks."""
        cdef Progress replica
        cdef uint64_t index
        cdef list found
        cdef uint32_t needed
        if self.state != LEADER:
            return 0
        found = [replica.match for replica in self.progress.values() if not replica.learner]
        if self.own in self.voters:
            found.append(self.on_disk)
        needed = max(self.majority(), min(self.in_sync_min, <uint32_t>len(self.voters)))
        if <uint32_t>len(found) < needed:
            return 0
        found.sort(reverse=True)
        index = found[needed - 1]
        # An entry of a former term is committed by one of this term behind it only.
        if index > self.commit and self.log.term(index) == self.term:
            self.reach(index)
        return 0

    # ---------------------------------------------------------------- messages

    def step(self, Message message not None):
        """A message of another replica. Raises CorruptError for what no replica of this group says: it must stop."""
        cdef Progress replica
        if self.on_term(message):
            return
        if message.kind == VOTE or message.kind == PRE_VOTE:
            self.on_vote(message)
        elif message.kind == APPEND or message.kind == HEARTBEAT or message.kind == COPY:
            if self.state == LEADER:
                raise CorruptError(f"replicas {self.own} and {message.sender} lead in term {self.term}")
            if self.state != FOLLOWER or self.leader != message.sender:
                self.follow(self.term, message.sender)
            self.elapsed = 0
            if message.kind == APPEND:
                self.on_append(message)
            elif message.kind == HEARTBEAT:
                self.on_heartbeat(message)
            else:
                self.on_copy(message)
        elif message.kind == VOTED or message.kind == PRE_VOTED:
            if self.state == (CANDIDATE if message.kind == VOTED else PRE_CANDIDATE):
                self.count_vote(message.sender, not message.refused)
        elif message.kind == CAMPAIGN:
            if self.state == FOLLOWER and self.may_stand():
                self.stand(True)
        elif self.state == LEADER:
            replica = self.progress.get(message.sender)
            if replica is not None:
                replica.active = True
                if message.kind == APPENDED:
                    self.on_appended(replica, message)
                else:
                    self.on_alive(replica)

    cdef int on_term(self, Message message) except -1:
        """Whether the message's term says all that is to be said."""
        cdef bint asks = message.kind == VOTE or message.kind == PRE_VOTE
        if message.term > self.term:
            if asks and not message.forced and self.leader and self.elapsed < self.election_ticks:
                return 1        # a leader was heard just now: nobody else is needed
            if message.kind == PRE_VOTE or message.kind == PRE_VOTED and not message.refused:
                return 0        # of a term that may never be
            self.follow(message.term, message.sender if message.kind in (APPEND, HEARTBEAT, COPY) else 0)
            return 0
        if message.term < self.term:
            if message.kind == APPEND or message.kind == HEARTBEAT or message.kind == COPY:
                # The sender learns the term, and so does a leader whom nobody follows any more.
                self.send(Message(APPENDED, message.sender, self.term, index=message.index, refused=True,
                                  hint=self.log.last(), hint_term=self.log.term(self.log.last())))
            elif message.kind == PRE_VOTE:
                self.send(Message(PRE_VOTED, message.sender, self.term, refused=True))
            return 1
        return 0

    cdef bint is_newer(self, Message message) noexcept:
        """Whether its sender's log is at least as new as this one."""
        cdef uint64_t last = self.log.last()
        cdef uint64_t term = self.log.term(last)
        return message.log_term > term or message.log_term == term and message.index >= last

    cdef int on_vote(self, Message message) except -1:
        cdef bint pre = message.kind == PRE_VOTE
        cdef bint granted = (self.vote == message.sender or self.vote == 0 and self.leader == 0
                             or pre and message.term > self.term) and self.is_newer(message)
        if pre:
            return self.send(Message(PRE_VOTED, message.sender, message.term if granted else self.term,
                                     refused=not granted))
        if granted:
            self.elapsed = 0
            if self.vote != message.sender:
                self.vote = message.sender
                self.vote_changed = True
        return self.send(Message(VOTED, message.sender, self.term, refused=not granted), granted)

    # ---------------------------------------------------------------- what a follower does

    cdef int on_append(self, Message message) except -1:
        cdef uint64_t index = message.index
        cdef uint64_t at
        cdef Entry entry
        if index < self.log.base:
            return self.acknowledge(self.commit)        # a copy has it
        if not self.log.has(index, message.log_term):
            at = self.log.find_term(index, message.log_term)
            return self.send(Message(APPENDED, message.sender, self.term, index=index, refused=True, hint=at,
                                     hint_term=self.log.term(at)))
        for entry in message.entries:
            index += 1
            if self.log.has(index, entry.term):
                continue
            if index <= self.log.last():
                if index <= self.commit:
                    raise CorruptError(f"entry {index} is committed with term {self.log.term(index)}, and the leader "
                                       f"of term {self.term} has it with term {entry.term}")
                self.cut(index)
            self.add(entry)
        self.reach(min(message.commit, index))
        return self.acknowledge(index)

    cdef int acknowledge(self, uint64_t index) except -1:
        return self.send(Message(APPENDED, self.leader, self.term, index=index), True)

    cdef int on_heartbeat(self, Message message) except -1:
        self.reach(min(message.commit, self.log.last()))
        return self.send(Message(ALIVE, message.sender, self.term))

    cdef int on_copy(self, Message message) except -1:
        """The leader has no entries any more that this replica lacked when it answered last. If it lacks them still,
        whoever runs it gets a copy: installed()."""
        if self.log.has(message.index, message.log_term):
            self.reach(message.index)
        if message.index <= self.commit:
            return self.acknowledge(self.commit)
        return 0

    def installed(self, uint64_t index, uint64_t term, voters, learners) -> bool:
        """A copy of everything up to this entry is on the disk, behind all that was taken, with the members as of it.
        Returns whether the log behind it stays: it has the same entry, so what came behind may have been acknowledged
        while the copy was made. If not, the copy has replaced all of it."""
        if index <= self.commit:
            return True
        stays = self.log.has(index, term)
        if stays:
            self.reach(index)
            self.applied = index
            self.forget(index)
            self.taken = max(self.taken, index)
            self.on_disk = max(self.on_disk, index)
            if self.cut_from:
                self.cut_from = max(self.cut_from, index + 1)
        else:
            self.log.restart(index, term, voters, learners)
            self.cut_from = 0
            self.pending.clear()
            self.taken = self.on_disk = self.commit = self.applied = index
            self.use_members()
        if self.leader and self.leader != self.own:
            self.acknowledge(index)
        return stays

    # ---------------------------------------------------------------- answers

    cdef int on_appended(self, Progress replica, Message message) except -1:
        cdef uint64_t next
        if message.refused:
            if replica.pace == COPYING or message.index < replica.match:
                return 0                # of an APPEND from before
            if replica.pace == PROBE and message.index != replica.next - 1:
                return 0
            next = self.log.find_term(min(message.hint, message.index), message.hint_term) + 1
            replica.next = max(min(next, message.index), replica.match + 1)
            replica.set_pace(PROBE)
            return 0
        if message.index > self.log.last():
            raise CorruptError(f"replica {message.sender} has entry {message.index}, the leader's last is "
                               f"{self.log.last()}")
        while replica.flying and replica.flying[0][0] <= message.index:
            replica.flying_bytes -= replica.flying.popleft()[1]
        if message.index > replica.match:
            replica.match = message.index
            replica.next = max(replica.next, message.index + 1)
            if replica.pace == PROBE or replica.pace == COPYING and message.index >= replica.copy_upto:
                replica.set_pace(REPLICATE)
            self.count_commit()
            self.hand_on(replica)
        elif replica.pace == PROBE and message.index == replica.match and message.index >= replica.next - 1:
            replica.set_pace(REPLICATE)         # they agree; there was nothing to send
        return 0

    cdef int on_alive(self, Progress replica) except -1:
        """A message may have been lost: what was not answered between two heartbeats is sent again."""
        cdef bint stands = replica.match == replica.alive_match
        replica.alive_match = replica.match if replica.match < self.log.last() else NEVER
        if replica.pace == COPYING:
            # What was in the way then may be gone by now: a copy has what this one's has.
            return self.send(Message(COPY, replica.number, self.term, index=self.log.base,
                                     log_term=self.log.base_term, commit=self.commit))
        if replica.pace == REPLICATE and stands:
            replica.next = replica.match + 1
            replica.set_pace(PROBE)
        replica.waits = False
        return 0

    # ---------------------------------------------------------------- commit, disk, outside

    cdef int reach(self, uint64_t index) except -1:
        """Everything up to here is committed."""
        cdef uint64_t former = self.commit
        self.commit = max(self.commit, index)
        if self.state == LEADER and self.own not in self.voters \
                and former < self.log.newest_members()[0] <= self.commit:
            self.follow(self.term, 0)       # it was removed, and that is committed
        return 0

    cdef int use_members(self) except -1:
        """Those of the newest change in the log."""
        cdef Progress replica
        _, self.voters, self.learners = self.log.newest_members()
        if self.state != LEADER:
            return 0
        for number in sorted((self.voters | self.learners) - {self.own}):
            replica = self.progress.get(number)
            if replica is None:
                replica = self.progress[number] = Progress(number, self.log.last(), True)
                replica.active = True       # until the leader looks next
            replica.learner = number in self.learners
        for number in [number for number in self.progress if number not in self.voters | self.learners]:
            del self.progress[number]
        if self.transferee not in self.voters:
            self.transferee = 0
        return 0

    def forget(self, uint64_t index):
        """Entries up to this one, which was applied, go: a copy has what they did."""
        if index > self.applied:
            raise UsageError(f"entry {index} was not applied")
        self.log.forget(index)

    def persisted(self, uint64_t number):
        """What take() gave out under this number, and before, is on the disk."""
        cdef uint64_t upto = self.on_disk
        while self.pending and self.pending[0][0] <= number:
            upto = max(upto, self.pending.popleft()[1])
        if self.state == CANDIDATE and 0 < self.own_vote_in <= number:
            self.own_vote_in = 0
            self.count_vote(self.own, True)
        if upto > self.on_disk:
            self.on_disk = upto
            self.count_commit()

    def take(self) -> Taken:
        """What is to be done since the last call."""
        cdef Progress replica
        cdef uint64_t first = self.taken + 1
        cdef uint64_t applied = self.applied + 1
        cdef list entries = []
        cdef list committed = []
        if self.state == LEADER:
            for replica in self.progress.values():
                self.send_some(replica)
        if self.taken < self.log.last():
            entries = self.log.some(first, self.log.last(), 1 << 62)
            self.taken = self.log.last()
        if self.applied < self.commit:
            committed = self.log.some(applied, self.commit, 1 << 62)
            self.applied = self.commit
        self.taken_number += 1
        self.pending.append([self.taken_number, self.taken])
        vote = (self.term, self.vote) if self.vote_changed else None
        taken = Taken(self.taken_number, self.cut_from, first, entries, vote, self.now, self.later, applied, committed)
        self.cut_from = 0
        if self.vote_changed and self.state == CANDIDATE:
            self.own_vote_in = self.taken_number
        self.vote_changed = False
        self.now, self.later = [], []
        return taken

    cdef int send(self, Message message, bint later=False) except -1:
        message.sender = self.own
        (self.later if later else self.now).append(message)
        return 0
