"""One replication group at this node: the state machine of its replica, between the queues of its line, the journal and
the way to other nodes.

    queues ──Line.submit──► propose ─► Raft.take() ─┬─► ENTRY records ──durable──► persisted(), answers leave
                                          ▲         ├─► messages that need not wait
       other nodes' messages ──step()─────┘         └─► committed: QueueLine.apply() to the copies
                                                                   Line.commit(), if it was proposed here

What the leader's clients wait for, and deliveries, is released by Line.commit: when enough replicas have it on their
disks. The leader changes:

    FOLLOWING ──elected, an entry of its term is committed and applied──► LEADING     QueueLine.lead
    LEADING ──deposed──► FOLLOWING     what is not committed is given up, as unknown; QueueLine.follow

Between the election and the first entry nothing is proposed: this node does not know yet what was committed.
"""
from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection

from fluxmq._core.errors import CorruptError, UsageError
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.handover import Reserve
from fluxmq._core.raft.machine import Raft, Taken
from fluxmq._core.raft.messages import ENTRY_MEMBERS, ENTRY_NOTHING, ENTRY_RECORDS, Entry, Message, MessageKind
from fluxmq.engine.queues.recovery.line import QueueLine
from fluxmq.engine.replicas import Replica, ReplicaLogs
from fluxmq.engine.stored import WRONG_SHAPE

__all__ = ["ReplicatedGroup"]

UNCOMMITTED_BYTES_MAX = 16 << 20  # of what was proposed; publishes beyond it are refused until some of it is committed
ENTRY_BYTES_MAX = 128 << 20  # half of what a frame between nodes may have
TIME_BYTES = 8      # in front of the records of an entry: the line's clock, ms


class ReplicatedGroup:
    """Machine. raft: made from what `replica` has. gathering: number of the journal's batch that gathers. send: takes
    messages for other replicas. release: lets go what waits for decided positions
    (Hub). has_ended: whether a life of a node has, by its epoch. on_lead: called with what is
    kept for consumers of other nodes (QueueLine.lead)."""

    def __init__(self, replica: Replica, logs: ReplicaLogs, copies: QueueLine, raft: Raft, *,
                 gathering: Callable[[], int], send: Callable[[list[Message]], None],
                 release: Callable[[], None] = lambda: None,
                 has_ended: Callable[[int], bool] = lambda life: False,
                 on_lead: Callable[[list[tuple[Group, Reserve]]], None] = lambda kept: None) -> None:
        self.replica = replica
        self.raft = raft
        self.copies = copies
        self.damage = ""  # why this replica has stopped
        self.pins: list[int] = []  # entries as of which copies are being sent: what is behind them stays
        self._logs = logs
        self._gathering = gathering
        self._send = send
        self._release = release
        self._has_ended = has_ended
        self._on_lead = on_lead
        self.is_behind = False  # the leader has no entries any more that this replica lacks
        self._term = 0  # that this node leads
        self._proposed: deque[tuple[int, int, int]] = deque()  # index, position of the line, bytes
        self._uncommitted = 0  # bytes of these
        self._refused: deque[tuple[int, bytes]] = deque()  # position and data, while leadership is given away
        self._written: deque[_Write] = deque()
        self._committed: deque[tuple[int, Entry]] = deque()  # to be applied: a copy comes first
        raft.may_campaign = not replica.lacks_copy

    @property
    def leads(self) -> bool:
        """Whether clients are served here."""
        return self._term != 0

    @property
    def lacks_copy(self) -> bool:
        """Whether its copies are not whole, or about to be replaced: it votes, and does not stand."""
        return self.replica.lacks_copy or self.replica.coming is not None

    @property
    def wants_copy(self) -> bool:
        """Whether somebody leads from whom it should get a copy."""
        return (self.is_behind or self.replica.lacks_copy) and not self.damage and not self.leads \
            and self.raft.leader not in (0, self.raft.own)

    def forget(self, bytes_max: int) -> None:
        """Of what was applied, the older half of the log goes while it has more than this."""
        log = self.raft.log
        if log.bytes > bytes_max:
            self.raft.forget(min(self.raft.applied, self.replica.applied, log.base + (len(log) + 1) // 2, *self.pins))

    def tick(self) -> None:
        """A unit of time has passed."""
        if not self.damage:
            self.raft.tick()

    def step(self, message: Message) -> None:
        """A message of another replica."""
        if self.damage:
            return
        try:
            self.raft.step(message)
        except CorruptError as error:
            self._stop(str(error))
        if message.kind == MessageKind.COPY and message.index > self.raft.commit:
            self.is_behind = True

    def turn(self) -> None:
        """The end of a turn, after queues were pumped and before the journal is submitted. Raises StorageError."""
        while not self.damage:
            self._look_who_leads()
            self._propose()
            taken = self.raft.take()
            if taken:
                self._give_out(taken)
                continue
            self._persisted(taken)
            if not self._follow_role():
                break

    def durable(self, batch: int) -> None:
        """Everything up to this batch of the journal is on the disk; turn() follows."""
        while self._written and self._written[0].batch <= batch and not self.damage:
            write = self._written.popleft()
            self._send(write.later)
            self.raft.persisted(write.number)

    # ------------------------------------------------------------------ out of the state machine

    def _give_out(self, taken: Taken) -> None:
        if taken.entries or taken.vote is not None:
            self._logs.write(self.replica, taken.first, taken.entries, taken.vote, self.raft.commit)
            self._written.append(_Write(self._gathering(), taken.number, taken.later))
        else:
            self._persisted(taken)
        self._send(taken.now)
        self._committed.extend(enumerate(taken.committed, taken.applied))
        self._apply_committed()
        self._follow_role()

    def _persisted(self, taken: Taken) -> None:
        """It has nothing for the disk, but what was taken before may have."""
        if not self._written:
            self._send(taken.later)
            self.raft.persisted(taken.number)
        elif taken.later:
            self._written.append(_Write(self._written[-1].batch, taken.number, taken.later))
        else:
            self._written[-1].number = taken.number

    def _apply_committed(self) -> None:
        while self._committed and not self.damage:
            if self.lacks_copy:
                return
            index, entry = self._committed.popleft()
            if self._term and entry.term != self._term:
                self._step_down("another node leads")       # what it has decided is applied to copies that follow
            try:
                self._apply(index, entry)
            except (CorruptError, *WRONG_SHAPE) as error:
                self._stop(f"entry {index} cannot be applied: {error}")

    def _apply(self, index: int, entry: Entry) -> None:
        if entry.kind == ENTRY_RECORDS:
            data = entry.data
            self.copies.apply(data[TIME_BYTES:], int.from_bytes(data[:TIME_BYTES], "big"), index)
        elif entry.kind in (ENTRY_NOTHING, ENTRY_MEMBERS):
            self.copies.apply(b"", position=index)
        else:
            raise CorruptError(f"it is of kind {entry.kind}, which this version does not know")
        self.replica.applied = index
        if self._proposed and self._proposed[0][0] == index:
            _, position, size = self._proposed.popleft()
            self._count(-size)
            self.copies.line.commit(position)

    # ------------------------------------------------------------------ a copy instead of entries

    def begin_install(self, index: int, term: int, voters: Collection[int], learners: Collection[int]) -> None:
        """The copies are about to be replaced by others, as of this entry: they are not led, and entries are applied
        when they are there. Raises UsageError where they are led."""
        if self._term:
            raise UsageError(f"{self.copies.line.name} is led here")
        self.raft.may_campaign = False
        self._logs.begin_install(self.replica, index, term, voters, learners)

    def cancel_install(self) -> None:
        """What has come is not whole, so the replica lacks a copy, but votes."""
        self.replica.lacks_copy = True
        self._logs.cancel_install(self.replica)

    def installed(self) -> None:
        """A checkpoint that began behind all that was given out has the copies, with their position."""
        coming = self.replica.coming
        if coming is None:
            raise UsageError(f"no copy of {self.copies.line.name} was announced")
        self.raft.installed(coming.base, coming.base_term, *coming.members_at(coming.base))
        self._logs.installed(self.replica)
        self.is_behind = False
        while self._committed and self._committed[0][0] <= coming.base:
            self._committed.popleft()
        self.raft.may_campaign = True
        self._apply_committed()
        self.turn()

    # ------------------------------------------------------------------ who leads

    def _leads_on(self) -> bool:
        return self._term != 0 and self.raft.leads and self.raft.term == self._term

    def _look_who_leads(self) -> None:
        """Whom the next leader has told that its entries are committed does not release what waits for them: who leads
        has been told by the consumers here what they have, and would give them the rest a second time."""
        if self._term and not self._leads_on():
            self._step_down("another node leads")

    def _follow_role(self) -> bool:
        """Whether another one leads now."""
        raft, former = self.raft, self._term
        self._look_who_leads()
        if not self._term and not self.damage and raft.leads and not self._committed and raft.applied == raft.commit \
                and raft.log.term_at(raft.commit) == raft.term:
            try:
                kept = self.copies.lead(self._has_ended)
            except UsageError as error:
                self._stop(str(error))      # others do not hear it any more, and elect one that can
                return False
            self._term = raft.term
            self._on_lead(kept)
        return self._term != former

    def _propose(self) -> None:
        if not self._leads_on():
            return
        time = self.copies.time
        position, records = self.copies.line.submit()
        if len(records) > ENTRY_BYTES_MAX:
            # No frame takes it. What it has changed here can only be taken back as a whole.
            self.raft.resign()
            self._step_down(f"{len(records)} bytes are more than a replication group takes at once ({ENTRY_BYTES_MAX})")
            return
        if position:
            self._refused.append((position, time.to_bytes(TIME_BYTES, "big") + records))
        while self._refused:
            position, data = self._refused[0]
            index = self.raft.propose([(ENTRY_RECORDS, data)])
            if not index:
                return                      # leadership is given away: to somebody, or not
            self._refused.popleft()
            self._proposed.append((index, position, len(data)))
            self._count(len(data))

    def _count(self, size: int) -> None:
        """So many bytes more are not committed."""
        self._uncommitted += size
        self.copies.line.room = max(UNCOMMITTED_BYTES_MAX - self._uncommitted, 0)

    def _step_down(self, why: str) -> None:
        self._term = 0
        self._proposed.clear()
        self._count(-self._uncommitted)
        self._refused.clear()
        self.copies.line.give_up(why)
        # Deliveries that have not left are given back before the consumers become the next leader's: they would name
        # them as theirs, and give them back under the number of that one's own delivery.
        try:
            self._release()
        finally:
            self.copies.line.give_up(why)
            try:
                self.copies.follow()
            except UsageError as error:
                # What another leader's entries say, copies must not hear that are led: this replica takes no part any
                # more.
                self.damage = self.damage or str(error)

    def _stop(self, why: str) -> None:
        """What came is nothing that a replica of this version says or knows: this one takes no part in the group any
        more, until the node is started again, and changes nothing of what it has."""
        self.damage = why
        if self._term:
            self._step_down(why)


class _Write:
    """batch: of the journal. number: for Raft.persisted(). later: messages that wait for it."""

    __slots__ = ("batch", "later", "number")

    def __init__(self, batch: int, number: int, later: list[Message]) -> None:
        self.batch = batch
        self.number = number
        self.later = later
