"""Who has the messages of a queue, as this node sees it, and every change of that.

A queue of a name is one Queue on each node, to which routes, sessions and channels refer, and it stays that one. What
changes is whether its Contents are here, and who decides about them:

    hand         messages                                   decides
    relay        at another node; or away: nobody has them  that node
    following    so too, and a copy here                    that node; the copy applies what it hears, or a move sends
    leading      here                                       this node
    giving       here, and on their way to another node     this node, until rest()
    stopped      here, and a file of them is damaged        nobody; settlements are taken

NEXT says what leads from one to another. Besides, a queue is declared as leading or as relay (QueueManager.make,
make_relay), a damaged file stops it (reads.py), and it may be deleted from any hand. A copy that was begun before this
node knew the queue is not in the table: it is taken from "relay".

It is one file because it is one table: what each change leaves behind is what the next one begins with.

docs/decisions/0011-a-queue-changes-hands.md
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from typing import Any, Literal, NamedTuple

from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.errors import UsageError
from fluxmq._core.memory.commits import Line
from fluxmq._core.peer.outbox import PeerOutbox
from fluxmq._core.peer.queue_member import PeerMember
from fluxmq._core.peer.queue_relay import QueueRelay
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.claim import Member
from fluxmq._core.queue.delay import Delays
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.handover import Reserve, become_owner, become_relay, reserve, settle_reserved, take_out
from fluxmq._core.queue.log import Log
from fluxmq._core.queue.queue import QUEUE_STREAM, Queue
from fluxmq._core.queue.session_member import SessionMember
from fluxmq._core.queue.state import restore_state, state_of
from fluxmq.engine.queues.late import LateSettlements
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.engine.queues.records import GroupRecord, record
from fluxmq.engine.queues.relays import Attach, Host, Relays
from fluxmq.engine.queues.retry import UNSPECIFIED
from fluxmq.engine.queues.state import Going, QueueState

__all__ = ["NEXT", "Contents", "Event", "Ghost", "Hand", "Hands", "Settled", "hand_of"]


class Hand(StrEnum):
    """See above."""

    RELAY = "relay"
    FOLLOWING = "following"
    LEADING = "leading"
    GIVING = "giving"
    STOPPED = "stopped"


class Event(StrEnum):
    """What changes the hand of a queue."""

    COPY = "copy"  # a copy of it begins here
    DROP_COPY = "drop the copy"
    TAKE = "take"  # this node decides, with contents that it has
    GIVE = "give"  # it begins to move to another node
    GIVEN = "given"
    TAKE_BACK = "take back"  # it does not move
    FOLLOW = "follow"  # another node decides, and this one keeps a copy


NEXT: Mapping[tuple[Hand, Event], Hand] = {
    (Hand.RELAY, Event.COPY): Hand.FOLLOWING,
    (Hand.RELAY, Event.TAKE): Hand.LEADING,
    (Hand.FOLLOWING, Event.DROP_COPY): Hand.RELAY,
    (Hand.FOLLOWING, Event.TAKE): Hand.LEADING,
    (Hand.LEADING, Event.GIVE): Hand.GIVING,
    (Hand.LEADING, Event.FOLLOW): Hand.FOLLOWING,
    (Hand.GIVING, Event.GIVEN): Hand.RELAY,
    (Hand.GIVING, Event.TAKE_BACK): Hand.LEADING,
}


def hand_of(state: QueueState) -> Hand:
    """Of a queue that has a name here; not of a copy."""
    if state.moving is not None:
        return Hand.GIVING
    if state.queue.relay is not None:
        return Hand.RELAY if state.copy is None else Hand.FOLLOWING
    return Hand.LEADING if state.queue.damage is None else Hand.STOPPED


class Contents:
    """What a queue has here besides its name. groups: (name, pattern) -> (number, record, state). owners: the same ->
    Members.owners_said."""

    def __init__(self, number: int, logs: list[Log], delays: Delays | None, line: Line, durable: bool,
                 groups: dict[tuple[bytes, bytes], tuple[int, GroupRecord, bytes]],
                 owners: dict[tuple[bytes, bytes], dict[int, tuple[int, int]]]) -> None:
        self.number = number
        self.logs = logs
        self.delays = delays
        self.line = line
        self.durable = durable
        self.groups = groups
        self.owners = owners

    @classmethod
    def of(cls, manager: QueueManager, state: QueueState) -> Contents:
        """As it is now."""
        queue = state.queue
        for group in [*state.groups.values(), *([queue.delays.group] if queue.delays is not None else ())]:
            group.flush_records()
        return cls(queue.number, queue.logs, queue.delays, queue.line, queue.durable, {
            key: (group.number, manager.group_record(state, group, key[1]), state_of(group))
            for key, group in state.groups.items()}, {key: group.owners_said() for key, group in state.groups.items()})

    def end(self, manager: QueueManager) -> None:
        """The messages are not needed any more: they go from the disk, too."""
        logs = [*self.logs, *([self.delays.log] if self.delays is not None else ())]
        groups = [number for number, _, _ in self.groups.values()]
        if self.delays is not None:
            groups.append(self.delays.group.number)
            self.delays.group.end()
        for log in logs:
            log.trim(log.next)
        if self.durable:
            record(manager.hub.ledger, RecordKind.QUEUE_END, self.number, line=self.line)
            manager.ended += [("q", self.number), ("d", self.number), *(("g", number) for number in groups),
                              *(("l", log.number) for log in logs), *(("k", log.number) for log in logs)]


class Ghost(NamedTuple):
    """A consumer of another node, of a queue that this node does not serve any more. held: as of take_out."""

    member: PeerMember
    group: Group
    pulls: bool
    held: list[tuple[int, int, int]]


# What a consumer did with a message: (verb, whether it counts, deliveries, index of the log, offset, ms, reason).
Settled = tuple[int, bool, int, int, int, int, str | None]
Late = Callable[..., object]  # of the key of the group, then as PeerMember.late


class Hands:
    """Machine. protocols: Hosts.protocols. A method that changes a hand raises UsageError, and changes nothing, where
    NEXT does not allow it."""

    def __init__(self, manager: QueueManager, relays: Relays, protocols: dict[str, Host]) -> None:
        self._manager = manager
        self._relays = relays
        self._protocols = protocols
        self._late = LateSettlements(manager, relays)

    @staticmethod
    def _expect(state: QueueState, event: Event) -> None:
        hand = hand_of(state)
        if (hand, event) not in NEXT:
            raise UsageError(f"queue {state.spec.shown} is {hand} at this node: it cannot {event}")

    # ------------------------------------------------------------------ a copy

    def begin_copy(self, state: QueueState, copy: QueueState) -> None:
        """copy: what this node stores of it while another node decides."""
        self._expect(state, Event.COPY)
        state.copy = copy

    def drop_copy(self, state: QueueState) -> None:
        """The copy is not needed any more."""
        self._expect(state, Event.DROP_COPY)
        state.copy = None

    # ------------------------------------------------------------------ it goes

    def give(self, state: QueueState, going: Going) -> None:
        """It begins to move to another node."""
        self._expect(state, Event.GIVE)
        state.moving = going

    def rest(self, state: QueueState, to: str, outbox: PeerOutbox, late: Late) -> tuple[QueueRelay, list[Ghost]]:
        """A queue that moves: from this instant this node does not decide any more, and has a relay, which keeps what
        is published here. late: called with what consumers of other nodes settle here still. Returns these, too. The
        caller has taken its Contents before, and ends with given() or take_back()."""
        self._expect(state, Event.GIVEN)
        return self._become_relay(state, late, lambda relay: relay.set_owner(to, outbox), keeps=True)

    def given(self, state: QueueState) -> None:
        """The other node has it."""
        self._expect(state, Event.GIVEN)
        state.moving = None
        if state.queue.kind == QUEUE_STREAM:
            self._manager.reads.gone(state.queue)

    def take_back(self, state: QueueState, contents: Contents | None) -> list[tuple[Group, list[Settled]]]:
        """It does not move. contents: since rest(); None: it was served all the time. Returns as take()."""
        self._expect(state, Event.TAKE_BACK)
        state.moving = None
        state.queue.resting = False
        if contents is None:
            state.queue.notify()
            return []
        return self._take(state, contents)

    @staticmethod
    def forget(state: QueueState) -> None:
        """A queue that was about to move was deleted meanwhile."""
        state.moving = None
        state.queue.resting = False

    def follow(self, state: QueueState, copy: QueueState) -> None:
        """Another node decides from now on, and this one goes on with a copy. Nothing is here any more that this node
        has decided and that one does not know. This node's consumers hold on what they hold, if it is still there. Who
        decides is to be said by DefinedQueues.set_owner."""
        self._expect(state, Event.FOLLOW)
        for group in state.groups.values():
            for member in list(group.pullers):
                if isinstance(member, Reserve):  # what it keeps for others is theirs to name at the next node
                    take_out(group, member, state.queue.lanes)
        self._become_relay(state, partial(self.settled_late, state), lambda relay: None, keeps=False)
        state.copy = copy
        if state.queue.kind == QUEUE_STREAM:
            self._manager.reads.gone(state.queue)

    def settled_late(self, state: QueueState, key: tuple[bytes, bytes], member: PeerMember, verb: int, deliveries: int,
                     log: int, first: int, count: int, ms: int, counts: bool, reason: str) -> list[Any]:
        """A node that does not know yet that this one does not decide has settled something here: PeerMember.late.
        Returns what settle_late() takes."""
        return self._late.pass_on(state, key, deliveries, log, first, count, verb, ms, counts, reason)

    def _become_relay(self, state: QueueState, late: Late, begin: Callable[[QueueRelay], None], *,
                      keeps: bool) -> tuple[QueueRelay, list[Ghost]]:
        manager, queue = self._manager, state.queue
        asked = {member: self._asked(state, group, key, member)
                 for key, group in state.groups.items() for member in [*group.members, *group.pullers]
                 if not isinstance(member, PeerMember)}
        ghosts = []
        for key, group in state.groups.items():
            for member in [*group.members, *group.pullers]:
                if isinstance(member, PeerMember):
                    pulls = member in group.pullers
                    ghosts.append(Ghost(member, group, pulls, take_out(group, member, queue.lanes)))
                    member.late = partial(late, key)
        manager.count_here(state, False)
        former = queue.logs
        number, logs = manager.relay_logs(state.spec)
        queue.become_relay(number, logs)
        relay = QueueRelay(queue)
        if keeps:
            relay.keep()
        for group in state.groups.values():
            positions = [cursor.next for cursor in group.cursors]
            become_relay(group, relay, logs)
            for log, position in zip(logs, positions, strict=True) if queue.kind == QUEUE_STREAM else ():
                by_offset.seek(group, log.number, position)
        for one in relay.consumers:
            one.asked = asked.get(one.member)
            one.member.lease_ms = 0  # the owner has the leases
        begin(relay)
        self._relays.owner_changed(queue)
        if queue.kind == QUEUE_STREAM:
            manager.reads.goes(queue, former)
        return relay, ghosts

    def _asked(self, state: QueueState, group: Group, key: tuple[bytes, bytes], member: Member) -> Attach:
        mqtt = isinstance(member, SessionMember)
        protocol: Literal["mqtt", "amqp"] = "mqtt" if mqtt else "amqp"
        return Attach(protocol=protocol, client=member.client or "", group=key[0], pattern=key[1],
                      exclusive=self._protocols[protocol].leads(state.queue, member),
                      priority=member.priority, lease_ms=member.lease_ms if mqtt else None, mark=member.mark)

    # ------------------------------------------------------------------ it comes

    def take(self, state: QueueState, contents: Contents) -> list[tuple[Group, list[Settled]]]:
        """This node decides from now on, with these contents; who has them besides does not any more. The consumers of
        the relay hold on what they hold, in the delivery that these contents know. Returns what they did and is not in
        these contents, for settle_kept()."""
        self._expect(state, Event.TAKE)
        state.copy = None
        return self._take(state, contents)

    def make_anew(self, state: QueueState) -> None:
        """This node has a queue from now on, empty, whose consumers here go on: it is not durable, and its owner is
        gone; or it is of a group that this node leads, and in whose log it is not. Raises QueueRefused (unavailable)
        where its data cannot begin here."""
        queue, manager, volatile = state.queue, self._manager, state.spec.type == "ephemeral"
        assert isinstance(queue.relay, QueueRelay)
        state.placement = manager.directory.place_queue(*queue.address)
        line = manager.replicator.line_of_queue(*queue.address, not volatile)
        queue.relay.forget_held()
        number = manager.number(line)
        logs = [Log(manager.hub.ledger, manager.number(line), lane=at % state.spec.lanes, volatile=volatile, line=line)
                for at in range(state.spec.partitions * state.spec.lanes)]
        self.take(state, Contents(number, logs, None, logs[0].line, not volatile, {}, {}))
        for listener in manager.listeners:
            listener.queue_made(queue)

    def _take(self, state: QueueState, contents: Contents) -> list[tuple[Group, list[Settled]]]:
        manager, queue, relay = self._manager, state.queue, state.queue.relay
        assert isinstance(relay, QueueRelay)
        asked = {one.member: one.asked for one in relay.consumers}
        waiting = [(one.group, one.take_waiting()) for one in relay.consumers]
        former = queue.logs
        relay.set_owner("", None)
        settled = [(one.group, done) for one in relay.consumers if (done := one.take_settled())]
        for member, how in asked.items():
            if how is not None:
                self._protocols[how.protocol].adopt_member(queue, member, how)
        queue.become_owner(contents.number, contents.logs, contents.delays)
        if contents.delays is not None:
            contents.delays.group.home = queue
        for (name, pattern), group in list(state.groups.items()):
            known = contents.groups.get((name, pattern))
            if known is None:
                self._begin_group(state, (name, pattern), group)
            else:
                number, record_, kept = known
                group.expect(contents.owners[name, pattern])
                self._set_group(state, group, number, record_, kept)
        for (name, pattern), (number, record_, kept) in contents.groups.items():
            if (name, pattern) not in state.groups:
                group = manager.adopt_group(state, number, record_)
                group.expect(contents.owners[name, pattern])
                restore_state(group, kept)
        state.idle_since_ms = manager.hub.steady_ms  # its consumers on other nodes are still to come
        manager.count_here(state, True)
        manager.record_queue(state)
        for group, found in waiting:
            for log, offset, deliveries in found:       # nobody has seen it
                number = queue.logs[log].number
                if by_offset.claim_of(group, number, offset) == (deliveries, None):
                    by_offset.give_back_at(group, number, offset, 0, False)
        if queue.kind == QUEUE_STREAM:
            manager.reads.came(queue, former)
        manager.derive(state)
        relay.flush_here()
        self._late.came(queue)
        return settled

    def _set_group(self, state: QueueState, group: Group, number: int, record_: GroupRecord,
                   kept: bytes | None) -> None:
        manager = self._manager
        group.home = state.queue
        become_owner(group, number, state.queue.line, record_.mode, state.queue.logs, kept)
        group.on_dead = manager.settings.dead
        if record_.pattern:
            group.filter = manager.filter(state.queue, record_.pattern)
        manager.set_retry_policy(state, group, record_.retry_policy)

    def _begin_group(self, state: QueueState, key: tuple[bytes, bytes], group: Group) -> None:
        """The old owner had not heard of this group before the queue moved."""
        manager = self._manager
        single = state.arguments is not None and state.arguments.single
        queue = state.queue
        record_ = GroupRecord(queue.number, key[0], "single" if single else group.mode, key[1],
                              state.retry_policies.get(group, UNSPECIFIED))
        self._set_group(state, group, manager.number(queue.line), record_, None)
        if queue.durable:
            record(manager.hub.ledger, RecordKind.GROUP, group.number, record_, group.line)
        for log in queue.logs:
            by_offset.seek(group, log.number, log.next if queue.kind == QUEUE_STREAM else log.first)

    def settle_kept(self, queue: Queue, settled: list[tuple[Group, list[Settled]]]) -> None:
        """What consumers of this node did with messages and no owner has known, or perhaps none. Those are ready, or
        kept for whoever held them; one that the former owner has known is neither, in this delivery."""
        for group, found in settled:
            one = Reserve()
            group.attach(one)
            for verb, counts, deliveries, log, offset, ms, reason in found:
                reserve(group, one, log, offset, deliveries)
                if ms < 0:
                    ms = self._manager.backoff_ms(queue, group, deliveries)
                settle_reserved(group, log, offset, deliveries, verb, ms, counts, reason or "")
            group.leave(one)
