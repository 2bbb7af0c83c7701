"""A queue moves to another node: what the engines of the two do. docs/internals/cluster-queues.md, "Moves".

    old owner: Departure                                    new owner: Arrival
    parts(): the log, while the queue is served ──────────► a queue under a name of its own, which nobody knows
    rest(): one instant, from which the queue is a relay ─► what was appended since, the groups
    done() or undo()                                        adopt(): the relay of this node becomes the owner; abandon()

The Queue and its groups stay the same objects on both nodes, so whoever refers to them (routes, sessions, channels)
need not know. Which of done and undo, adopt and abandon comes is decided by one transaction (cluster/queue_moves).
It is one file because what one side writes the other reads.
"""
from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any, Literal

import msgspec

from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.errors import CorruptError
from fluxmq._core.memory.commits import Line
from fluxmq._core.peer.outbox import PeerOutbox
from fluxmq._core.peer.queue_member import PeerMember
from fluxmq._core.peer.queue_relay import QueueRelay
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.claim import Member
from fluxmq._core.queue.delay import Delays
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.handover import (
    Reserve,
    become_owner,
    become_relay,
    held_of,
    messages_from,
    reserve,
    settle_reserved,
    take_out,
)
from fluxmq._core.queue.lanes import OFFSET_MASK
from fluxmq._core.queue.log import Log
from fluxmq._core.queue.queue import QUEUE_STREAM, Queue
from fluxmq._core.queue.session_member import SessionMember
from fluxmq._core.queue.state import cursors_in, replay, restore_state, state_of
from fluxmq.engine.ports.definitions import QueueDefinition
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.engine.queues.delays import adopt_delays
from fluxmq.engine.queues.manager import KINDS, QueueManager
from fluxmq.engine.queues.parts import is_part
from fluxmq.engine.queues.records import MOVING, GroupRecord, is_moving, record
from fluxmq.engine.queues.relays import Attach, Host, Relays
from fluxmq.engine.queues.retry import UNSPECIFIED
from fluxmq.engine.queues.state import QueueState
from fluxmq.model.malformed import MALFORMED

__all__ = ["Arrival", "Contents", "Departure", "make_anew", "settle_late", "why_it_stays"]

PART_BYTES = 256 << 10
SMALL_BYTES = 256 << 10  # when so little has come meanwhile, the queue stops
ROUNDS_MAX = 10  # or after so many, if publishers are as fast as the way to the other node


class GroupPart(msgspec.Struct, array_like=True, frozen=True):
    """held: what consumers of whatever node hold: [(index of the log in the queue, offset, deliveries)]."""

    name: bytes
    pattern: bytes
    record: GroupRecord
    state: bytes
    held: list[tuple[int, int, int]]


class Begin(msgspec.Struct, frozen=True, kw_only=True, tag="begin"):
    """The first part. steady_ms: the old owner's clock, by which its messages expire. firsts: of its logs, when the
    copy begins."""

    definition: QueueDefinition
    steady_ms: int
    firsts: list[int]
    producers: dict[bytes, tuple[int, bytes]] = {}


class Messages(msgspec.Struct, frozen=True, kw_only=True, tag="messages"):
    """log: index in the queue; -1: delayed messages. data: as the log has them."""

    log: int
    data: bytes


class End(msgspec.Struct, frozen=True, kw_only=True, tag="end"):
    """The last part. numbers, firsts, nexts: of the old owner's logs. delayed: number and next of the log of delayed
    messages, and the state of its group; None: nothing was ever delayed. origins: of messages of QoS 2 that the queue
    has had. released: of such that were released, and may come once more."""

    numbers: list[int]
    firsts: list[int]
    nexts: list[int]
    groups: list[GroupPart]
    delayed: tuple[int, int, bytes] | None
    producers: dict[bytes, tuple[int, bytes]]
    origins: list[tuple[int, int, int]]
    released: list[tuple[int, int, int]]


_encode = msgspec.msgpack.encode


def _producers(state: QueueState) -> dict[bytes, tuple[int, bytes]]:
    return {name: (highest, bits.to_bytes(-(-bits.bit_length() // 8), "big"))
            for name, (highest, bits) in state.producers.items()}


def _unpacked(producers: dict[bytes, tuple[int, bytes]]) -> dict[bytes, tuple[int, int]]:
    return {name: (highest, int.from_bytes(bits, "big")) for name, (highest, bits) in producers.items()}


class Contents:
    """What a queue has here besides its name. groups: (name, pattern) -> (number, record, state)."""

    def __init__(self, number: int, logs: list[Log], delays: Delays | None, line: Line, durable: bool,
                 groups: dict[tuple[bytes, bytes], tuple[int, GroupRecord, bytes]]) -> None:
        self.number = number
        self.logs = logs
        self.delays = delays
        self.line = line
        self.durable = durable
        self.groups = groups

    @classmethod
    def of(cls, manager: QueueManager, state: QueueState) -> Contents:
        """As it is now."""
        queue = state.queue
        for group in [*state.groups.values(), *([queue.delays.group] if queue.delays is not None else ())]:
            group.flush_records()
        return cls(queue.number, queue.logs, queue.delays, queue.line, queue.durable, {
            key: (group.number, manager.group_record(state, group, key[1]), state_of(group))
            for key, group in state.groups.items()})

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


def why_it_stays(state: QueueState) -> str:
    """Why a queue cannot move; "" if it can."""
    queue = state.queue
    if is_moving(queue.name) or (queue.name.startswith(b"$") and not is_part(queue.name)):
        return "it belongs to its node"
    if state.declared is not None and state.declared.exclusive:
        return "it is exclusive to a connection of its node"
    if queue.damage is not None:
        return f"it is damaged: {queue.damage}"
    if queue.ending:
        return "it is being deleted, because nobody used it"
    if state.moving is not None:
        return "it is moving already"
    return ""


class _Ghost:
    """A consumer of another node, while the queue is neither here nor there. lists what it has settled since."""

    def __init__(self, member: PeerMember, group: Group, key: tuple[bytes, bytes], pulls: bool,
                 held: list[tuple[int, int, int]]) -> None:
        self.member = member
        self.group = group
        self.key = key
        self.pulls = pulls
        self.held = held


class Departure:
    """Machine. The old owner's side. hosts: Hosts.protocols."""

    def __init__(self, manager: QueueManager, state: QueueState, relays: Relays, hosts: dict[str, Host]) -> None:
        self._manager = manager
        self._relays = relays
        self._hosts = hosts
        self.state = state
        self.contents: Contents | None = None  # since the instant of rest()
        self.outbox: PeerOutbox | None = None
        self._relay: QueueRelay | None = None  # keeps publishes until the new owner knows
        self._positions: dict[int, int] = {}  # by index of the log, -1 for the delayed ones
        self._ghosts: list[_Ghost] = []
        self._late: list[list[Any]] = []
        self._decided = False

    @property
    def is_relay(self) -> bool:
        """See Going."""
        return self.contents is not None

    # ------------------------------------------------------------------ the copy

    def _logs(self) -> list[tuple[int, Log]]:
        delays = self.state.queue.delays
        return [*enumerate(self.state.queue.logs), *([(-1, delays.log)] if delays is not None else ())]

    async def parts(self) -> AsyncIterator[bytes]:
        """The messages, while the queue is served; until little is left."""
        state, queue = self.state, self.state.queue
        yield _encode(Begin(definition=QueueDefinition(state.id, state.spec, state.declared),
                            steady_ms=self._manager.hub.steady_ms, firsts=[log.first for log in queue.logs],
                            producers=_producers(state)))
        for _ in range(ROUNDS_MAX):
            copied = 0
            for at, log in self._logs():
                end = log.next
                while (position := max(self._positions.get(at, 0), log.first)) < end:
                    data, self._positions[at], missing = messages_from(log, position, PART_BYTES)
                    if missing and not data:
                        self._positions[at], data = await self._manager.disk.read_part(
                            log, self._positions[at], PART_BYTES)
                    copied += len(data)
                    if data:
                        yield _encode(Messages(log=at, data=data))
                self._positions[at] = max(self._positions.get(at, 0), end)
            if copied <= SMALL_BYTES:
                return

    def rest(self, to: str, outbox: PeerOutbox) -> list[bytes]:
        """The instant: from now on this node has a relay, whose way to the new owner is paused. Returns the rest.
        Raises QueueRefused, and nothing has changed."""
        manager, state, queue = self._manager, self.state, self.state.queue
        if manager.states.get(queue) is not state or queue.relay is not None or queue.damage is not None:
            raise QueueRefused("unavailable", f"queue {state.spec.shown} has changed meanwhile")
        parts = []
        for at, log in self._logs():
            position = self._positions.get(at, 0)
            while position < log.next:
                data, position, missing = messages_from(log, position, PART_BYTES)
                if missing:
                    raise QueueRefused("unavailable",
                                       f"queue {state.spec.shown} got more than could be copied: try again")
                parts += [_encode(Messages(log=at, data=data))] if data else []
        for group in state.groups.values():
            for member in list(group.pullers):
                if isinstance(member, Reserve):
                    group.leave(member)
        # If the move is given up, what comes again now must not be taken a second time.
        mark, origins = mark_of(queue.identity), manager.hub.origins
        had = origins.of_queue(mark)
        for name, packet_id, use in had:
            origins.bring_group(name, packet_id, use, mark)
        contents = self.contents = Contents.of(manager, state)
        delays = queue.delays
        parts.append(_encode(End(
            numbers=[log.number for log in queue.logs], firsts=[log.first for log in queue.logs],
            nexts=[log.next for log in queue.logs],
            groups=[GroupPart(*key, record_, kept, held_of(state.groups[key], queue.lanes))
                    for key, (_, record_, kept) in contents.groups.items()],
            delayed=(delays.log.number, delays.log.next, state_of(delays.group)) if delays is not None else None,
            producers=_producers(state), origins=had, released=origins.released_of(mark))))
        self._become_relay(to, outbox)
        return parts

    def _become_relay(self, to: str, outbox: PeerOutbox) -> None:
        manager, state, queue = self._manager, self.state, self.state.queue
        asked = {member: self._asked(state, group, key, member)
                 for key, group in state.groups.items() for member in [*group.members, *group.pullers]
                 if not isinstance(member, PeerMember)}
        for key, group in state.groups.items():
            for member in [*group.members, *group.pullers]:
                if isinstance(member, PeerMember):
                    pulls = member in group.pullers
                    self._ghosts.append(_Ghost(member, group, key, pulls, take_out(group, member, queue.lanes)))
                    member.late = partial(self._settled_late, key)
        self.outbox = outbox
        outbox.halt()
        manager.count_here(state, False)
        former = queue.logs
        number, logs = manager.relay_logs(state.spec)
        queue.become_relay(number, logs)
        relay = self._relay = QueueRelay(queue, manager.spare_lines)
        relay.keep()
        for group in state.groups.values():
            positions = [cursor.next for cursor in group.cursors]
            become_relay(group, relay, logs)
            for log, position in zip(logs, positions, strict=True) if queue.kind == QUEUE_STREAM else ():
                by_offset.seek(group, log.number, position)
        for one in relay.consumers:
            one.asked = asked.get(one.member)
            one.member.lease_ms = 0  # the owner has the leases
        relay.set_owner(to, outbox)
        self._relays.owner_changed(queue)
        if queue.kind == QUEUE_STREAM:
            manager.reads.goes(queue, former)

    def _asked(self, state: QueueState, group: Group, key: tuple[bytes, bytes], member: Member) -> Attach:
        mqtt = isinstance(member, SessionMember)
        protocol: Literal["mqtt", "amqp"] = "mqtt" if mqtt else "amqp"
        return Attach(protocol=protocol, client=member.client or "", group=key[0], pattern=key[1],
                      exclusive=self._hosts[protocol].leads(state.queue, member),
                      priority=member.priority, lease_ms=member.lease_ms if mqtt else None, mark=member.mark)

    def _settled_late(self, key: tuple[bytes, bytes], member: PeerMember, verb: int, deliveries: int, log: int,
                      first: int, count: int, ms: int, counts: bool, reason: str) -> None:
        """A node that does not know yet has sent this here."""
        queue, group = self.state.queue, self.state.groups.get(key)
        if ms < 0:
            ms = self._manager.backoff_ms(queue, group, deliveries) if group is not None else 0
        what = [*key, [(log, offset, deliveries) for offset in range(first, first + count)], verb, ms, counts, reason]
        if not self._decided:
            self._late.append(what)
        relay = queue.relay
        if isinstance(relay, QueueRelay) and relay.reachable:
            self._relays.order(queue, "settle_late", what)  # the ticket: PeerInbox.settle

    # ------------------------------------------------------------------ what came of it

    def resume(self) -> None:
        """The other node knows what came of it: what has gathered for it leaves."""
        if self.outbox is not None:
            self.outbox.resume()
        if self._relay is not None:
            self._relay.let_go()

    def done(self) -> None:
        """The other node has the queue. resume() is to follow when that node knows."""
        assert self.contents is not None
        self._decided = True
        self.contents.end(self._manager)
        self.state.moving = None
        if self.state.queue.kind == QUEUE_STREAM:
            self._manager.reads.gone(self.state.queue)

    def undo(self) -> None:
        """The queue stays: it is served here again."""
        manager, state, queue, contents = self._manager, self.state, self.state.queue, self.contents
        state.moving = None
        queue.resting = False
        self._decided = True
        if contents is None:
            queue.notify()
            return
        if manager.states.get(queue) is not state:
            contents.end(manager)  # it was deleted meanwhile
        else:
            settled = take_over(manager, state, contents, self._hosts)
            for ghost in self._ghosts:
                ghost.member.late = None
                if ghost.member not in ghost.member.outbox.hosted.values():
                    continue
                (ghost.group.attach if ghost.pulls else ghost.group.join)(ghost.member)
                for held in ghost.held:
                    ghost.member.hold_again(*held)
            for what in self._late:
                settle_late(manager, queue, *what)
            _settle_kept(manager, queue, settled)
        self.resume()


def mark_of(identity: int) -> int:
    """Stands for a queue among the groups that have had a message with an origin: queue_mark of _core/queue/queue."""
    mixed = (identity ^ identity >> 32) * 0x9E3779B97F4A7C15 & (1 << 64) - 1
    return max(mixed >> 32, 1)


def settle_late(manager: QueueManager, queue: Queue, name: bytes, pattern: bytes, what: list[tuple[int, int, int]],
                verb: int, ms: int, counts: bool, reason: str) -> None:
    """What a consumer did with messages that it held when the queue moved."""
    group = manager.states[queue].groups.get((name, pattern))
    if group is not None:
        for log, offset, deliveries in what:
            if not settle_reserved(group, log, offset, deliveries, verb, ms, counts, reason) and verb == 0 \
                    and log < len(queue.logs):
                claim = by_offset.claim_of(group, queue.logs[log].number, offset)
                if claim is not None and claim[0] == deliveries:
                    by_offset.settle_at(group, queue.logs[log].number, offset)
        queue.notify()


# What a consumer did with a message: (verb, whether it counts, deliveries, index of the log, offset, ms, reason).
Settled = tuple[int, bool, int, int, int, int, str | None]


def _settle_kept(manager: QueueManager, queue: Queue, settled: list[tuple[Group, list[Settled]]]) -> None:
    """What consumers of this node did with messages and no owner has known, or perhaps none. Those are ready, or kept
    for whoever held them; one that the former owner has known is neither, in this delivery."""
    for group, found in settled:
        one = Reserve()
        group.attach(one)
        for verb, counts, deliveries, log, offset, ms, reason in found:
            reserve(group, one, log, offset, deliveries)
            if ms < 0:
                ms = manager.backoff_ms(queue, group, deliveries)
            settle_reserved(group, log, offset, deliveries, verb, ms, counts, reason or "")
        group.leave(one)


def take_over(manager: QueueManager, state: QueueState, contents: Contents,
              hosts: dict[str, Host]) -> list[tuple[Group, list[Settled]]]:
    """The relay of a queue becomes its owner, with these contents. Its consumers hold on what they hold. Returns what
    they did and is not in these contents, for _settle_kept()."""
    queue, relay = state.queue, state.queue.relay
    assert isinstance(relay, QueueRelay)
    asked = {one.member: one.asked for one in relay.consumers}
    waiting = [(one.group, one.take_waiting()) for one in relay.consumers]
    former = queue.logs
    relay.set_owner("", None)
    settled = [(one.group, done) for one in relay.consumers if (done := one.take_settled())]
    for member, how in asked.items():
        if how is not None:
            hosts[how.protocol].adopt_member(queue, member, how)
    queue.become_owner(contents.number, contents.logs, contents.delays)
    if contents.delays is not None:
        contents.delays.group.home = queue
    for (name, pattern), group in list(state.groups.items()):
        known = contents.groups.get((name, pattern))
        if known is None:
            _begin_group(manager, state, (name, pattern), group)
        else:
            number, record_, kept = known
            _set_group(manager, state, group, number, record_, kept)
    for (name, pattern), (number, record_, kept) in contents.groups.items():
        if (name, pattern) not in state.groups:
            group = manager.adopt_group(state, number, record_)
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
    return settled


def make_anew(manager: QueueManager, hosts: dict[str, Host], state: QueueState) -> None:
    """The owner of a queue that is not durable is gone, and this node has it from now on, empty. Its consumers here go
    on. hosts: Hosts.protocols."""
    queue, ledger = state.queue, manager.hub.ledger
    assert isinstance(queue.relay, QueueRelay)
    queue.relay.forget_held()
    line = manager.replicator.line_of_queue(*queue.address, False)
    number = manager.number(line)
    logs = [Log(ledger, manager.number(line), lane=at % state.spec.lanes, volatile=True, line=line)
            for at in range(state.spec.partitions * state.spec.lanes)]
    take_over(manager, state, Contents(number, logs, None, logs[0].line, False, {}), hosts)
    for listener in manager.listeners:
        listener.queue_made(queue)


def _set_group(manager: QueueManager, state: QueueState, group: Group, number: int, record_: GroupRecord,
               kept: bytes | None) -> None:
    group.home = state.queue
    become_owner(group, number, state.queue.line, record_.mode, state.queue.logs, kept)
    group.on_dead = manager.settings.dead
    if record_.pattern:
        group.filter = manager.filter(state.queue, record_.pattern)
    manager.set_retry_policy(state, group, record_.retry_policy)


def _begin_group(manager: QueueManager, state: QueueState, key: tuple[bytes, bytes], group: Group) -> None:
    """The old owner had not heard of this group before the queue moved."""
    single = state.arguments is not None and state.arguments.single
    queue = state.queue
    record_ = GroupRecord(queue.number, key[0], "single" if single else group.mode, key[1],
                          state.retry_policies.get(group, UNSPECIFIED))
    _set_group(manager, state, group, manager.number(queue.line), record_, None)
    if queue.durable:
        record(manager.hub.ledger, RecordKind.GROUP, group.number, record_, group.line)
    for log in queue.logs:
        by_offset.seek(group, log.number, log.next if queue.kind == QUEUE_STREAM else log.first)


class Arrival:
    """Machine. The new owner's side: a copy that is not the queue yet. It is on the disk like a queue, under a name by
    which a start knows what it is."""

    def __init__(self, manager: QueueManager, hosts: dict[str, Host]) -> None:
        self._manager = manager
        self._hosts = hosts
        self.definition: QueueDefinition | None = None
        self.state: QueueState | None = None
        self.whole = False
        self._shift_ms = 0
        self._relay: QueueRelay | None = None  # see keep()
        self._kept = False
        self.end: End | None = None

    def feed(self, part: bytes) -> None:
        """The next part. Raises CorruptError, QueueRefused, StorageError."""
        try:
            # A decoder of the module would cost every start a millisecond, also of a node alone.
            read: Begin | Messages | End = msgspec.msgpack.decode(part, type=Begin | Messages | End)
        except MALFORMED as error:
            raise CorruptError(f"not a part of a queue: {error}") from None
        if isinstance(read, Begin):
            self._begin(read)
        elif self.state is None:
            raise CorruptError("a queue that has not begun")
        elif isinstance(read, Messages):
            if not -1 <= read.log < len(self.state.queue.logs):
                raise CorruptError(f"the queue has no log {read.log}")
            log = self._delayed().log if read.log < 0 else self.state.queue.logs[read.log]
            log.take_in(read.data, self._shift_ms)
            self.state.queue.mark_dirty()
        else:
            self._finish(read)

    def _begin(self, begin: Begin) -> None:
        manager, definition = self._manager, begin.definition
        if self.state is not None:
            raise CorruptError("a queue begins twice")
        self.definition = definition
        self._shift_ms = manager.hub.steady_ms - begin.steady_ms
        spec, declared = definition.spec, definition.declared
        volatile = spec.type == "ephemeral"
        namespace = manager.hub.namespaces.add(definition.address[0])
        name = f"{MOVING}{definition.id:x}"
        spec = msgspec.structs.replace(spec, name=name)
        if declared is not None:
            declared = msgspec.structs.replace(declared, name=name.encode())
        line = (manager.replicator.line_of_queue(namespace.name, name.encode(), not volatile)
                or manager.hub.commits.local)
        ledger = manager.hub.ledger
        number = manager.number(line)
        if len(begin.firsts) != spec.partitions * spec.lanes:
            raise CorruptError(f"a queue with {len(begin.firsts)} logs")
        logs = [Log(ledger, manager.number(line), lane=at % spec.lanes, first=first, next=first, volatile=volatile,
                    line=line)
                for at, first in enumerate(begin.firsts)]
        queue = Queue(ledger, number, spec.raw, KINDS[spec.type], logs, spec.lanes, namespace)
        queue.following = True  # it gives nothing out
        state = self.state = QueueState(spec, queue, declared)
        state.id = definition.id
        state.producers = _unpacked(begin.producers)
        manager.settings.configure(state)
        manager.states[queue] = state  # for the checkpoints
        manager.record_queue(state)

    def _delayed(self) -> Delays:
        assert self.state is not None
        queue = self.state.queue
        if queue.delays is None:
            log = Log(self._manager.hub.ledger, self._manager.number(queue.line), volatile=not queue.durable,
                      line=queue.line)
            adopt_delays(self._manager, self.state, log, self._manager.number(queue.line))
            self._manager.record_queue(self.state)
        assert queue.delays is not None
        return queue.delays

    def _finish(self, end: End) -> None:
        manager, state = self._manager, self.state
        assert state is not None
        queue = state.queue
        numbers = dict(zip(end.numbers, (log.number for log in queue.logs), strict=True))
        for part in end.groups:
            number = manager.number(queue.line)
            record_ = msgspec.structs.replace(part.record, queue=queue.number)
            group = manager.adopt_group(state, number, record_)
            if queue.durable:
                record(manager.hub.ledger, RecordKind.GROUP, number, record_, queue.line)
            self._group_state(group, part.state, numbers)
        for log, first, next_ in zip(queue.logs, end.firsts, end.nexts, strict=True):
            _reach(log, next_)
            self._trim(log, first)
        if end.delayed is not None:
            delays = self._delayed()
            self._group_state(delays.group, end.delayed[2], {end.delayed[0]: delays.log.number})
            _reach(delays.log, end.delayed[1])
        state.producers = _unpacked(end.producers)
        manager.hub.origins.queue_came(mark_of(state.id), end.origins)
        manager.hub.origins.bring_released(mark_of(state.id), end.released)
        manager.note_changed(state)
        self.end = end
        self.whole = True

    def _trim(self, log: Log, first: int) -> None:
        """What the old owner has removed meanwhile: by its retention, as the oldest of a full queue, or by a purge. The
        groups may not know it yet, since a queue that rests is not pumped. Recorded in any case: a start knows by it
        that the log does not begin with the first of all offsets, also if no message is left."""
        log.trim(first)
        if first & OFFSET_MASK and not log.volatile:
            record(self._manager.hub.ledger, RecordKind.TRIM, log.number, first.to_bytes(8, "big"), log.line)

    def _group_state(self, group: Group, state: bytes, numbers: dict[int, int]) -> None:
        """Applies it, by records of the journal."""
        for kind, body in _records(group.number, state, numbers, self._shift_ms):
            if not group.volatile:
                self._manager.hub.ledger.write(kind, body, group.line)
            replay(group, kind, body)

    def keep(self) -> None:
        """What this node's clients publish from now on waits here: to the old owner it would go the longer way, behind
        what they publish when the queue is here."""
        assert self.definition is not None
        origins = self._manager.hub.origins
        origins.watch(True)     # what is released while the queue is on its way is not to come with it
        origins.expect_forwarded(True)
        self._kept = True
        state = self._manager.queues.get(self.definition.address)
        if state is not None and state.id == self.definition.id and isinstance(state.queue.relay, QueueRelay):
            self._relay = state.queue.relay
            self._relay.keep()
            self._relay.fence()

    @property
    def fenced(self) -> bool:
        """Whether something that was published before is on its way."""
        return self._relay is not None and self._relay.fenced

    def contents(self) -> Contents:
        """Of what has come."""
        assert self.state is not None
        return Contents.of(self._manager, self.state)

    def abandon(self) -> None:
        """The queue stays at its node."""
        if self._kept:
            self._manager.hub.origins.watch(False)
            self._manager.hub.origins.expect_forwarded(False)
            self._kept = False
        if self._relay is not None:
            self._relay.let_go()
            self._relay = None
        if self.state is not None:
            contents = self.contents()
            self._drop()
            contents.end(self._manager)
            self.state = None

    def _drop(self) -> None:
        manager, state = self._manager, self.state
        assert state is not None
        manager.states.pop(state.queue, None)
        manager.changed.discard(state)
        manager.sums.forget(state.queue)
        state.queue.delays = None

    def adopt(self, state: QueueState) -> list[tuple[Group, Reserve]]:
        """See Coming."""
        assert self.state is not None and self.end is not None
        contents, staged = self.contents(), self.state
        self._drop()
        self.state = None
        self._manager.hub.origins.watch(False)
        state.producers = staged.producers
        settled = take_over(self._manager, state, contents, self._hosts)
        for group in staged.groups.values():
            group.end()
        found = []
        for part in self.end.groups:
            served = state.groups.get((part.name, part.pattern))
            if served is None or not part.held:
                continue
            one = Reserve()
            served.attach(one)
            for log, offset, deliveries in part.held:
                reserve(served, one, log, offset, deliveries)
            if one.held:
                found.append((served, one))
            else:
                served.leave(one)
        _settle_kept(self._manager, state.queue, settled)
        return found


def _reach(log: Log, next_: int) -> None:
    """No offset is given out twice."""
    if next_ > log.next:
        log.replay(b"", next_)


def _records(number: int, state: bytes, numbers: dict[int, int], shift_ms: int) -> Iterator[tuple[RecordKind, bytes]]:
    own = number.to_bytes(8, "big")
    for log, _, floor, pages, claims in cursors_in(state):
        of_log = own + numbers[log].to_bytes(8, "big")
        yield RecordKind.CURSOR, of_log + floor.to_bytes(8, "big")
        for base, bits in pages:
            for first, count in _runs(bits):
                low = max(base + first, floor)
                if base + first + count > low:
                    yield RecordKind.SETTLE, (of_log + low.to_bytes(8, "big")
                                              + (base + first + count - low).to_bytes(4, "big"))
        for offset, deliveries, due in claims:
            due = max(due + shift_ms, 1) if due > 0 else due
            yield RecordKind.RETURN, (of_log + offset.to_bytes(8, "big") + deliveries.to_bytes(2, "big")
                                      + due.to_bytes(8, "big", signed=True))


def _runs(bits: int) -> Iterator[tuple[int, int]]:
    """Of set bits: (first, how many)."""
    text, at = f"{bits:b}"[::-1], 0
    while (first := text.find("1", at)) >= 0:
        at = text.find("0", first)
        if at < 0:
            at = len(text)
        yield first, at - first
