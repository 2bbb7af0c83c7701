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
from typing import Any

import msgspec

from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.errors import CorruptError
from fluxmq._core.peer.outbox import PeerOutbox
from fluxmq._core.peer.queue_member import PeerMember
from fluxmq._core.peer.queue_relay import QueueRelay
from fluxmq._core.queue.delay import Delays
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.handover import (
    Reserve,
    held_of,
    messages_from,
    reserve,
)
from fluxmq._core.queue.lanes import OFFSET_MASK
from fluxmq._core.queue.log import Log
from fluxmq._core.queue.queue import Queue
from fluxmq._core.queue.state import cursors_in, replay, state_of
from fluxmq.engine.ports.definitions import QueueDefinition
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.engine.queues.delays import adopt_delays
from fluxmq.engine.queues.hands import Contents, Ghost, Hand, Hands, hand_of, settle_late
from fluxmq.engine.queues.manager import KINDS, QueueManager
from fluxmq.engine.queues.parts import is_part
from fluxmq.engine.queues.records import MOVING, GroupRecord, is_moving, record
from fluxmq.engine.queues.state import QueueState
from fluxmq.model.malformed import MALFORMED

__all__ = ["Arrival", "Departure", "why_it_stays"]

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


class Departure:
    """Machine. The old owner's side. Raises UsageError for a queue that is not this node's, or moves already."""

    def __init__(self, manager: QueueManager, hands: Hands, state: QueueState) -> None:
        self._manager = manager
        self._hands = hands
        self.state = state
        self.contents: Contents | None = None  # since the instant of rest()
        self.outbox: PeerOutbox | None = None
        self._relay: QueueRelay | None = None  # keeps publishes until the new owner knows
        self._positions: dict[int, int] = {}  # by index of the log, -1 for the delayed ones
        self._ghosts: list[Ghost] = []
        self._late: list[list[Any]] = []
        self._decided = False
        hands.give(state, self)

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
        self.outbox = outbox
        outbox.halt()
        self._relay, self._ghosts = self._hands.rest(state, to, outbox, self._settled_late)
        return parts

    def _settled_late(self, key: tuple[bytes, bytes], member: PeerMember, verb: int, deliveries: int, log: int,
                      first: int, count: int, ms: int, counts: bool, reason: str) -> None:
        what = self._hands.pass_on(self.state, key, deliveries, log, first, count, verb, ms, counts, reason)
        if not self._decided:
            self._late.append(what)

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
        self._hands.given(self.state)

    def undo(self) -> None:
        """The queue stays: it is served here again."""
        manager, state, contents = self._manager, self.state, self.contents
        self._decided = True
        if manager.states.get(state.queue) is not state:  # it was deleted meanwhile
            self._hands.forget(state)
            if contents is not None:
                contents.end(manager)
                self.resume()
            return
        settled = self._hands.take_back(state, contents)
        if contents is None:
            return
        for ghost in self._ghosts:
            ghost.member.late = None
            if ghost.member not in ghost.member.outbox.hosted.values():
                continue
            (ghost.group.attach if ghost.pulls else ghost.group.join)(ghost.member)
            for held in ghost.held:
                ghost.member.hold_again(*held)
        for what in self._late:
            settle_late(manager, state.queue, *what)
        self._hands.settle_kept(state.queue, settled)
        self.resume()


def mark_of(identity: int) -> int:
    """Stands for a queue among the groups that have had a message with an origin: queue_mark of _core/queue/queue."""
    mixed = (identity ^ identity >> 32) * 0x9E3779B97F4A7C15 & (1 << 64) - 1
    return max(mixed >> 32, 1)


class Arrival:
    """Machine. The new owner's side: a copy that is not the queue yet. It is on the disk like a queue, under a name by
    which a start knows what it is."""

    def __init__(self, manager: QueueManager, hands: Hands) -> None:
        self._manager = manager
        self._hands = hands
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
        served = manager.queues.get(definition.address)
        if served is not None and served.id == definition.id and hand_of(served) is Hand.RELAY:
            self._hands.begin_copy(served, state)

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
        served = manager.queues.get(self.definition.address) if self.definition is not None else None
        if served is not None and served.copy is state:
            self._hands.drop_copy(served)

    def adopt(self, state: QueueState) -> list[tuple[Group, Reserve]]:
        """The queue is of this node now. state: of its relay. Returns who holds what consumers of other nodes held."""
        assert self.state is not None and self.end is not None
        contents, staged = self.contents(), self.state
        self._drop()
        self.state = None
        self._manager.hub.origins.watch(False)
        state.producers = staged.producers
        settled = self._hands.take(state, contents)
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
        self._hands.settle_kept(state.queue, settled)
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
