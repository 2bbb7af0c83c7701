"""The replication groups of which this node has a replica: when each has its turn, what the journal has of it, who its
other replicas are, and who leads it.

    queues have decided ─┐                         ┌─► the batch that gathers (ReplicaLogs)
    messages have come ──┼─► turn() of those groups┼─► RaftStreams.send ──flush()──► other nodes
    a batch is durable ──┤                         ├─► lines that moved: answers and deliveries are released
    100 ms have passed ──┘                         └─► who leads has changed: on_role

It is called by the poller (Hub.replication): in a turn after queues were pumped, so that what they have decided is in
that turn's batch of the journal and on its way to followers while the disk writes it.

Where a replica is, its node says (RaftStreams): nothing about it is stored here.
"""
from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from typing import NamedTuple

from fluxmq._core.hub.hub import Hub
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.handover import Reserve
from fluxmq._core.queue.queue import Queue
from fluxmq._core.raft.machine import Raft
from fluxmq._core.raft.messages import Message
from fluxmq.cluster.ports import Log
from fluxmq.cluster.raft.group import ReplicatedGroup
from fluxmq.cluster.raft.streams import RaftStreams
from fluxmq.cluster.raft.words import OwnReplica
from fluxmq.engine.ports.driver import Driver
from fluxmq.engine.queues.hands import Hands
from fluxmq.engine.queues.recovery.copies import Copies
from fluxmq.engine.queues.recovery.line import QueueLine
from fluxmq.engine.replicas import Replica, ReplicaLogs

__all__ = ["NOBODY", "TICK_S", "Leader", "RaftGroups", "Timing"]

TICK_S = 0.1
FIRST_TICKS = 3  # between two attempts of the first replica of a new group to lead it
KEEP_BYTES = 64 << 20  # of entries in memory, of all groups: for replicas that are behind


class Timing(NamedTuple):
    """Seconds: a leader speaks at least so often; without one for between election_s and twice as long a replica
    stands."""

    heartbeat_s: float = 1.0
    election_s: float = 3.0


class Leader(NamedTuple):
    """node: that serves clients of the group's queues; "": nobody is known to. term: in which it leads, or has led."""

    node: str = ""
    term: int = 0


NOBODY = Leader()


class RaftGroups:
    """Machine. One per life of a node.

    streams: to and from the other nodes. reserved_s: how long what consumers of other nodes held is kept for them when
    this node is elected: that of a lease, for a node may stand still for as long. draw: as Raft's. has_ended: whether a
    life of a node has, by its epoch. may_lead: whether this node may stand and serve: it has a lease. on_role: called
    with the number of a group when another node leads it than before, or none, or a new term began. log: as Broker's
    on_log.
    """

    def __init__(self, node: str, streams: RaftStreams, driver: Driver, *, reserved_s: float,
                 draw: Callable[[int], int],
                 has_ended: Callable[[int], bool], may_lead: Callable[[], bool], on_role: Callable[[int], None],
                 log: Log) -> None:
        self.groups: dict[int, ReplicatedGroup] = {}
        # Called with the number of a group whose replica here needs a copy.
        self.on_lacking: Callable[[int], None] = lambda group: None
        self._leaders: dict[int, Leader] = {}
        self._node = node
        self._streams = streams
        self._driver = driver
        self._reserved_s = reserved_s
        self._draw = draw
        self._has_ended = has_ended
        self._may_lead = may_lead
        self._on_role = on_role
        self._log = log
        self._places: dict[tuple[int, int], str] = {}  # group and number of a replica -> its node
        self._due: dict[int, None] = {}  # groups that have something to do in this turn
        self._writes: deque[tuple[int, int]] = deque()  # batches of the journal, and groups that have something there
        self._led: dict[int, int] = {}  # groups that this node leads -> their terms
        self._new: dict[int, int] = {}  # groups whose first replica is here -> ticks since it stood
        self._begun = self._closed = False
        self._ticked_s = 0.0
        self._still_s: dict[int, float] = {}  # by group: after so long without a tick another node may lead it

    def attach(self, hub: Hub, logs: ReplicaLogs, copies: Copies, hands: Hands) -> None:
        """What the node has; before it is loaded from its disk."""
        self._hub, self._logs, self._copies, self._hands = hub, logs, copies, hands

    def begin(self, timing: Timing) -> None:
        """The disk was read: its replicas take part from now on."""
        for replica in self._logs.replicas.values():
            self._open(replica, timing, 0)
        self._hub.replication, self._begun = self, True
        self._ticked_s = self._driver.now()
        self._driver.start(self._keep())

    def close(self) -> None:
        """Nothing is decided, sent or applied any more."""
        self._closed = True
        if self._begun:
            self._hub.replication = None

    # ------------------------------------------------------------------ which groups

    def add(self, group: int, incarnation: int, number: int, voters: Collection[int], timing: Timing,
            in_sync_min: int) -> None:
        """This node has a replica of a new group. The first voter stands at once: nobody has led it yet. Raises
        UsageError if it has one already."""
        self._open(self._logs.add(group, incarnation, number, voters), timing, in_sync_min)
        if number == min(voters):
            self._new[group] = 0
            self.groups[group].raft.campaign()
        self._streams.announce()

    def configure(self, group: int, timing: Timing, in_sync_min: int) -> None:
        """in_sync_min: as Raft's."""
        if group in self.groups:
            raft = self.groups[group].raft
            raft.in_sync_min = in_sync_min
            raft.election_ticks, raft.heartbeat_ticks = ticks(timing)
            self._still_s[group] = max(timing.election_s - timing.heartbeat_s, 2 * TICK_S)

    def numbers(self) -> set[int]:
        """Of all groups of which this node has heard."""
        return {group for group, _ in self._places} | self._logs.replicas.keys()

    def has(self, group: int) -> bool:
        """Whether the disk has a replica of it, whole or not."""
        return group in self._logs.replicas

    def _open(self, replica: Replica, timing: Timing, in_sync_min: int) -> None:
        if replica.state.damaged:
            return                      # its log said so when it was read
        group, copies = replica.group, self._copies
        if group in copies.lines:
            copies.lines[group].connect(self._hands)
        else:
            line = self._hub.commits.open_line(f"group {group}", group)
            copies.add(QueueLine(copies.manager, line, hands=self._hands))
        self._logs.begin_life(replica)
        election_ticks, heartbeat_ticks = ticks(timing)
        raft = Raft(replica.state.number, replica.log, self._draw, term=replica.state.term, vote=replica.state.vote,
                    commit=replica.commit, applied=replica.applied, in_sync_min=in_sync_min,
                    election_ticks=election_ticks, heartbeat_ticks=heartbeat_ticks)
        self.groups[group] = ReplicatedGroup(
            replica, self._logs, copies.lines[group], raft, gathering=partial(self._writing, group),
            send=partial(self._send, group), release=self._hub.release_decided, has_ended=self._has_ended,
            on_lead=self._keep_for_others)
        raft.may_campaign = self._may_lead() and not self.groups[group].lacks_copy
        self.configure(group, timing, in_sync_min)
        self.note_due(group)

    def replicas(self) -> list[OwnReplica]:
        """What this node tells the others of itself."""
        return [OwnReplica(number, group.replica.state.incarnation, group.replica.state.number,
                           group.replica.state.starts, self._led.get(number, 0))
                for number, group in self.groups.items()]

    def line(self, group: int) -> QueueLine | None:
        """The queues of a group that this node leads; None: it does not."""
        return self.groups[group].copies if group in self._led else None

    # ------------------------------------------------------------------ Hub.replication

    def turn(self) -> None:
        """Groups whose queues have decided something, or which something has come for. Raises StorageError."""
        self._look_at_clock()
        while True:
            for line in self._hub.commits.take_touched():
                if line.group in self.groups:
                    self._due[line.group] = None
            if not self._due:
                return
            number, _ = self._due.popitem()
            self.groups[number].turn()
            self._look(number)

    def durable(self) -> None:
        """The journal may have more on its disk. Raises StorageError."""
        journal = self._hub.ledger.journal
        if journal is None:
            return
        self._look_at_clock()
        upto = journal.durable
        while self._writes and self._writes[0][0] <= upto:
            _, number = self._writes.popleft()
            self.groups[number].durable(upto)
            self._due[number] = None
        if self._due:
            self.turn()

    def flush(self) -> None:
        """The turn ends: messages leave."""
        self._streams.flush()

    def _writing(self, group: int) -> int:
        """A group writes into the batch that gathers: its number."""
        journal = self._hub.ledger.journal
        assert journal is not None
        batch: int = journal.gathering
        if not self._writes or self._writes[-1] != (batch, group):
            self._writes.append((batch, group))
        return batch

    def _send(self, group: int, messages: list[Message]) -> None:
        for message in messages:
            node = self._places.get((group, message.to))
            if node is not None:        # else nobody knows yet where it is: Raft repeats
                self._streams.send(node, group, [message])

    def note_due(self, group: int) -> None:
        """It has something to do outside of a turn."""
        self._due[group] = None
        self._hub.wake_up()

    # ------------------------------------------------------------------ time

    async def _keep(self) -> None:
        while not self._closed:
            await self._driver.pace(TICK_S)
            if not self._closed:
                self.tick()

    def tick(self) -> None:
        """TICK_S has passed; after a pause of this node once, however long it was."""
        self._look_at_clock()
        self._ticked_s = self._driver.now()
        may_lead = self._may_lead()
        for number, group in self.groups.items():
            group.raft.may_campaign = may_lead and not group.lacks_copy
            group.tick()
            group.forget(KEEP_BYTES // len(self.groups))
            if group.wants_copy:
                self.on_lacking(number)
            self._due[number] = None
        for number in list(self._new):
            self._stand_again(number)
        if self._due:
            self._hub.wake_up()

    def _look_at_clock(self) -> None:
        """If this node has stood still for so long that others may have elected another leader, it leads no more: what
        it hears late would be delivered though the other one's clients have settled it."""
        if not self._led:
            return
        still_s = self._driver.now() - self._ticked_s
        if still_s > 2 * TICK_S:
            for number in self._led:
                if still_s > self._still_s[number]:
                    self.groups[number].raft.resign()
                    self._due[number] = None

    def _stand_again(self, number: int) -> None:
        """Of a new group: the others may have their replicas only now."""
        raft = self.groups[number].raft
        if raft.leader or raft.log.last_index:
            del self._new[number]
            return
        self._new[number] += 1
        if self._new[number] % FIRST_TICKS == 0:
            raft.campaign()

    # ------------------------------------------------------------------ what other nodes say

    def on_messages(self, node: str, messages: list[tuple[int, Message]]) -> None:
        """For RaftStreams."""
        if self._closed:
            return
        self._look_at_clock()
        full = self._hub.ledger.full
        for number, message in messages:
            group = self.groups.get(number)
            if group is None or (full and message.entries):
                continue                # the disk does not keep up: they are sent again
            group.step(message)
            self._due[number] = None
        if self._due:
            self._hub.wake_up()

    def on_replicas(self, node: str, replicas: list[OwnReplica]) -> None:
        """For RaftStreams: what a node has, and leads."""
        for one in [place for place, at in self._places.items() if at == node]:
            del self._places[one]
        leads = {}
        for replica in replicas:
            self._places[replica.group, replica.number] = node
            if replica.leads:
                leads[replica.group] = replica.leads
        for group, leader in list(self._leaders.items()):
            if leader.node == node and group not in leads:
                self._learn(group, Leader("", leader.term))
        for group, term in leads.items():
            if term > self._leaders.get(group, NOBODY).term or self._leaders[group] == Leader("", term):
                self._learn(group, Leader(node, term))

    def on_lost(self, node: str) -> None:
        """For RaftStreams: whom that node leads does not wait for an election timeout."""
        for number, group in self.groups.items():
            if self._places.get((number, group.raft.leader)) == node:
                group.raft.leader_gone()

    def on_gone(self, node: str) -> None:
        """It has no lease any more, so it serves nobody."""
        for group, leader in list(self._leaders.items()):
            if leader.node == node:
                self._learn(group, Leader("", leader.term))

    # ------------------------------------------------------------------ who leads

    def leader(self, group: int) -> Leader:
        """As far as this node has heard. It may hear of the next one before its own replica does, which has led until
        then: what it serves, it serves until that has stepped down."""
        term = self._led.get(group, 0)
        return Leader(self._node, term) if term else self._leaders.get(group, NOBODY)

    def runs(self, group: ReplicatedGroup) -> bool:
        """Whether it takes part still."""
        return not self._closed and self.groups.get(group.replica.group) is group

    def node_of(self, group: int, number: int) -> str:
        """The node of a replica; "": nobody knows."""
        return self._places.get((group, number), "")

    def _look(self, number: int) -> None:
        """After a turn of a group: whether this node leads it now, and did not, or the reverse."""
        group = self.groups[number]
        term, former = group.raft.term if group.leads else 0, self._led.pop(number, 0)
        if term:
            self._led[number] = term
        if group.damage:
            self._stopped(number, group)
        if term == former:
            return
        if term:
            if term > self._leaders.get(number, NOBODY).term:
                self._leaders[number] = Leader(self._node, term)
        elif self._leaders[number] == Leader(self._node, former):
            self._leaders[number] = Leader("", former)
        self._on_role(number)
        self._streams.announce()

    def _learn(self, group: int, leader: Leader) -> None:
        self._leaders[group] = leader
        if group not in self._led:
            self._on_role(group)

    def _stopped(self, number: int, group: ReplicatedGroup) -> None:
        """It takes no part any more: the others go on without it."""
        del self.groups[number]
        self._new.pop(number, None)
        self._due.pop(number, None)
        self._writes = deque(write for write in self._writes if write[1] != number)
        self._log("error", group.damage, "a replica takes no part in its group until this node is started again",
                  {"group": number, "why": group.damage})
        self._streams.announce()

    def _keep_for_others(self, kept: list[tuple[Group, Reserve]]) -> None:
        self._driver.start(self._let_go(kept))

    async def _let_go(self, kept: list[tuple[Group, Reserve]]) -> None:
        """What consumers of other nodes held is ready, if they have not come for it."""
        await self._driver.sleep(self._reserved_s)
        if not self._closed:
            self._copies.manager.let_go([(group, one) for group, one in kept if is_led(group)])


def ticks(timing: Timing) -> tuple[int, int]:
    """Of an election timeout, and of a heartbeat."""
    return max(2, round(timing.election_s / TICK_S)), max(1, round(timing.heartbeat_s / TICK_S))


def is_led(group: Group) -> bool:
    """Whether the group's queue is served here."""
    return isinstance(group.home, Queue) and group.home.relay is None

