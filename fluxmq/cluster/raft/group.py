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
from collections.abc import Callable

from fluxmq._core.errors import CorruptError
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.handover import Reserve
from fluxmq._core.raft.machine import Raft, Taken
from fluxmq._core.raft.messages import ENTRY_MEMBERS, ENTRY_NOTHING, ENTRY_RECORDS, Entry, Message
from fluxmq.engine.queues.recovery.line import QueueLine
from fluxmq.engine.replicas import Replica, ReplicaLogs
from fluxmq.engine.stored import WRONG_SHAPE

__all__ = ["ReplicatedGroup"]

TIME_BYTES = 8      # in front of the records of an entry: the line's clock, ms


class ReplicatedGroup:
    """Machine. raft: made from what `replica` has. gathering: number of the journal's batch that gathers. send: takes
    messages for other replicas. has_ended: whether a life of a node has, by its epoch. on_lead: called with what is
    kept for consumers of other nodes (QueueLine.lead)."""

    def __init__(self, replica: Replica, logs: ReplicaLogs, copies: QueueLine, raft: Raft, *,
                 gathering: Callable[[], int], send: Callable[[list[Message]], None],
                 has_ended: Callable[[int], bool] = lambda life: False,
                 on_lead: Callable[[list[tuple[Group, Reserve]]], None] = lambda kept: None) -> None:
        self.replica = replica
        self.raft = raft
        self.copies = copies
        self.damage = ""  # why this replica has stopped
        self._logs = logs
        self._gathering = gathering
        self._send = send
        self._has_ended = has_ended
        self._on_lead = on_lead
        self._term = 0  # that this node leads
        self._proposed: deque[tuple[int, int]] = deque()  # index and position of the line
        self._refused: deque[tuple[int, bytes]] = deque()  # position and data, while leadership is given away
        self._written: deque[tuple[int, Taken]] = deque()  # with the batch that has it

    @property
    def leads(self) -> bool:
        """Whether clients are served here."""
        return self._term != 0

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

    def turn(self) -> None:
        """The end of a turn, after queues were pumped and before the journal is submitted. Raises StorageError."""
        while not self.damage:
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
        while self._written and self._written[0][0] <= batch and not self.damage:
            taken = self._written.popleft()[1]
            self._send(taken.later)
            self.raft.persisted(taken.number)

    # ------------------------------------------------------------------ out of the state machine

    def _give_out(self, taken: Taken) -> None:
        if taken.entries or taken.vote is not None:
            self._logs.write(self.replica, taken.first, taken.entries, taken.vote, self.raft.commit)
            self._written.append((self._gathering(), taken))
        else:
            self._persisted(taken)
        self._send(taken.now)
        for index, entry in enumerate(taken.committed, taken.applied):
            try:
                self._apply(index, entry)
            except (CorruptError, *WRONG_SHAPE) as error:
                self._stop(f"entry {index} cannot be applied: {error}")
                return
        self._follow_role()

    def _persisted(self, taken: Taken) -> None:
        """It has nothing for the disk, but what was taken before may have."""
        if self._written:
            self._written.append((self._written[-1][0], taken))
        else:
            self._send(taken.later)
            self.raft.persisted(taken.number)

    def _apply(self, index: int, entry: Entry) -> None:
        if entry.kind == ENTRY_RECORDS:
            data = entry.data
            self.copies.apply(data[TIME_BYTES:], int.from_bytes(data[:TIME_BYTES], "big"), index)
        elif entry.kind in (ENTRY_NOTHING, ENTRY_MEMBERS):
            self.copies.apply(b"", position=index)
        else:
            raise CorruptError(f"it is of kind {entry.kind}, which this version does not know")
        self.replica.applied = index
        if self._proposed and self._proposed[0][0] == index and entry.term == self._term:
            self.copies.line.commit(self._proposed.popleft()[1])

    # ------------------------------------------------------------------ who leads

    def _leads_on(self) -> bool:
        return self._term != 0 and self.raft.leads and self.raft.term == self._term

    def _follow_role(self) -> bool:
        """Whether another one leads now."""
        raft, former = self.raft, self._term
        if self._term and not self._leads_on():
            self._term = 0
            self._proposed.clear()
            self._refused.clear()
            self.copies.line.give_up("another node leads")
            self.copies.follow()
        if not self._term and raft.leads and raft.applied == raft.commit \
                and raft.log.term_at(raft.commit) == raft.term:
            self._on_lead(self.copies.lead(self._has_ended))
            self._term = raft.term
        return self._term != former

    def _propose(self) -> None:
        if not self._leads_on():
            return
        time = self.copies.time
        position, records = self.copies.line.submit()
        if position:
            self._refused.append((position, time.to_bytes(TIME_BYTES, "big") + records))
        while self._refused:
            position, data = self._refused[0]
            index = self.raft.propose([(ENTRY_RECORDS, data)])
            if not index:
                return                      # leadership is given away: to somebody, or not
            self._refused.popleft()
            self._proposed.append((index, position))

    def _stop(self, why: str) -> None:
        """What came is nothing that a replica of this version says or knows: this one takes no part in the group any
        more, until the node is started again, and changes nothing of what it has."""
        self.damage = why
        if self._term:
            self._term = 0
            self.copies.line.give_up(why)
            self.copies.follow()
