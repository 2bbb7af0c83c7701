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

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.errors import CorruptError
from fluxmq._core.memory.namespace import Namespace, read_namespace
from fluxmq._core.peer.outbox import PeerOutbox
from fluxmq._core.peer.queue_member import PeerMember
from fluxmq._core.peer.queue_relay import QueueRelay
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.handover import Reserve, reserve
from fluxmq._core.queue.line import Incoming, append_records
from fluxmq._core.queue.log import Log
from fluxmq._core.queue.queue import Queue
from fluxmq.engine.ports.definitions import FIRST, Placement, QueueDefinition
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.engine.queues.deduplication import together
from fluxmq.engine.queues.delays import adopt_delays
from fluxmq.engine.queues.encoding import closing, described, gathered, mark_of, messages_of, opening
from fluxmq.engine.queues.hands import Contents, Ghost, Hand, Hands, hand_of
from fluxmq.engine.queues.late import settle_late
from fluxmq.engine.queues.manager import KINDS, QueueManager
from fluxmq.engine.queues.parts import is_part
from fluxmq.engine.queues.records import (
    HAD,
    MOVING,
    RELEASED,
    GroupRecord,
    Origin,
    QueueRecord,
    is_moving,
    origin_in,
    produced_in,
    record,
)
from fluxmq.engine.queues.state import QueueState
from fluxmq.engine.stored import group_of, queue_of
from fluxmq.model.malformed import MALFORMED
from fluxmq.model.queues import QueueSpec

__all__ = ["Arrival", "Departure", "why_it_stays"]

PART_BYTES = 256 << 10
SMALL_BYTES = 256 << 10  # when so little has come meanwhile, the queue stops
ROUNDS_MAX = 10  # or after so many, if publishers are as fast as the way to the other node


def why_it_stays(state: QueueState) -> str:
    """Why a queue cannot move; "" if it can."""
    queue = state.queue
    if is_moving(queue.name) or (queue.name.startswith(b"$") and not is_part(queue.name)):
        return "it belongs to its node"
    if state.declared is not None and state.declared.exclusive:
        return "it is exclusive to a connection of its node"
    if queue.line.group:
        return "it is replicated, and served by the leader of its group"
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
        self._positions: dict[Log, int] = {}
        self._ghosts: list[Ghost] = []
        self._late: list[list[Any]] = []
        self._decided = False
        hands.give(state, self)

    @property
    def is_relay(self) -> bool:
        """See Going."""
        return self.contents is not None

    # ------------------------------------------------------------------ the copy

    async def parts(self) -> AsyncIterator[bytes]:
        """The messages, while the queue is served; until little is left."""
        manager, state = self._manager, self.state
        yield opening(manager, state)
        named = len(state.logs)
        for _ in range(ROUNDS_MAX):
            copied = 0
            if len(state.logs) != named:  # the first message was delayed meanwhile
                named = len(state.logs)
                yield described(manager, state)
            for log in state.logs[:named]:
                end = log.next
                while (position := max(self._positions.get(log, 0), log.first)) < end:
                    part, self._positions[log], missing = messages_of(log, position, PART_BYTES)
                    if missing and not part:
                        self._positions[log], data = await manager.disk.read_part(log, self._positions[log], PART_BYTES)
                        part = append_records(log.number, data)
                    copied += len(part)
                    if part:
                        yield part
                self._positions[log] = max(self._positions.get(log, 0), end)
            if copied <= SMALL_BYTES:
                return

    def rest(self, to: str, outbox: PeerOutbox) -> list[bytes]:
        """The instant: from now on this node has a relay, whose way to the new owner is paused. Returns the rest.
        Raises QueueRefused, and nothing has changed."""
        manager, state, queue = self._manager, self.state, self.state.queue
        if manager.states.get(queue) is not state or queue.relay is not None or queue.damage is not None:
            raise QueueRefused("unavailable", f"queue {state.spec.shown} has changed meanwhile")
        parts = [described(manager, state)]
        for log in state.logs:
            position = self._positions.get(log, 0)
            while position < log.next:
                part, position, missing = messages_of(log, position, PART_BYTES)
                if missing:
                    raise QueueRefused("unavailable",
                                       f"queue {state.spec.shown} got more than could be copied: try again")
                parts.append(part)
        for group in state.groups.values():
            for member in list(group.pullers):
                if isinstance(member, Reserve):
                    group.leave(member)
        # If the move is given up, what comes again now must not be taken a second time.
        mark, origins = mark_of(queue.identity), manager.hub.origins
        had = origins.of_queue(mark)
        for name, packet_id, use in had:
            origins.bring_group(name, packet_id, use, mark)
        contents = Contents.of(manager, state)
        parts += closing(manager, state, ((state.groups[key], record_)
                                          for key, (_, record_, _) in contents.groups.items()),
                         had, origins.released_of(mark))
        self.contents = contents
        self.outbox = outbox
        outbox.halt()
        self._relay, self._ghosts = self._hands.rest(state, to, outbox, self._settled_late)
        return gathered(parts, PART_BYTES)

    def _settled_late(self, key: tuple[bytes, bytes], member: PeerMember, verb: int, deliveries: int, log: int,
                      first: int, count: int, ms: int, counts: bool, reason: str) -> None:
        what = self._hands.settled_late(self.state, key, member, verb, deliveries, log, first, count, ms, counts,
                                        reason)
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
            for group in state.groups.values():
                group.expect_nobody()
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
        for group in state.groups.values():
            group.expect_nobody()
        self.resume()


class Arrival:
    """Machine. The new owner's side: a copy that is not the queue yet. It is on the disk like a queue, under a name by
    which a start knows what it is."""

    def __init__(self, manager: QueueManager, hands: Hands, placement: Placement = FIRST) -> None:
        """placement: what the queue's data will be here, if the move is decided."""
        self._manager = manager
        self._hands = hands
        self._placement = placement
        self.definition: QueueDefinition | None = None
        self.state: QueueState | None = None
        self.whole = False
        self._objects = Incoming(lambda state, message: None)
        self._namespaces: dict[int, Namespace] = {0: manager.hub.root}  # by their numbers at the old owner
        self._clock: int | None = None
        self._origins: dict[int, list[Origin]] = {HAD: [], RELEASED: []}
        self._relay: QueueRelay | None = None  # see keep()
        self._kept = False

    def feed(self, part: bytes) -> None:
        """The next records of the queue (encoding.py). Raises CorruptError, QueueRefused, StorageError."""
        try:
            self._objects.apply(part, self._apply)
        except MALFORMED as error:
            raise CorruptError(f"a record of a queue is not what a broker writes: {error}") from None

    def _apply(self, kind: int, number: int, body: bytes) -> None:
        """A record that is not about messages. What is applied is also recorded here."""
        if kind == RecordKind.CLOCK:
            self._hear(number)
        elif kind == RecordKind.NAMESPACE:
            name, _ = read_namespace(body)
            if name is None:
                raise CorruptError("the namespace of a queue has ended")
            self._namespaces[number] = self._manager.hub.namespaces.add(name)
        elif kind == RecordKind.QUEUE:
            found, spec = queue_of(body)
            if self.state is None:
                self._begin(found, spec)
            self._adopt_delays(found)
        elif self.state is None:
            raise CorruptError("a queue that has not begun")
        elif kind == RecordKind.GROUP:
            self._adopt_group(number, group_of(body))
        elif kind == RecordKind.PRODUCED:
            name, known = produced_in(body)
            self.state.note_produced(name, together(self.state.producers.get(name), known))
            self._record(RecordKind.PRODUCED, self.state.queue.number, body)
            self._manager.note_changed(self.state)
        elif kind == RecordKind.QUEUE_ORIGIN:
            origin, what = origin_in(body)
            self._origins[what].append(origin)
            if self.state.queue.line.number:  # the journal has them of the whole node
                self._record(RecordKind.QUEUE_ORIGIN, self.state.queue.number, body)
        else:
            raise CorruptError(f"a record of kind {kind} does not say what a queue has")

    def _hear(self, steady_ms: int) -> None:
        """The old owner's clock: that of its queue before all else, or behind all else."""
        if self._clock is None:
            self._clock = steady_ms
            return
        if self.state is None:
            raise CorruptError("a queue that has not begun")
        origins = self._manager.hub.origins
        origins.queue_came(mark_of(self.state.id), self._origins[HAD])
        origins.bring_released(mark_of(self.state.id), self._origins[RELEASED])
        self._manager.note_changed(self.state)
        self.whole = True

    def _record(self, kind: RecordKind, number: int, body: object) -> None:
        assert self.state is not None
        if self.state.queue.durable:
            record(self._manager.hub.ledger, kind, number, body, self.state.queue.line)

    def _begin(self, found: QueueRecord, spec: QueueSpec) -> None:
        manager, declared = self._manager, found.declared
        namespace = self._namespaces.get(found.namespace)
        if self._clock is None or namespace is None:
            raise CorruptError("a queue begins without its clock, or its namespace")
        volatile = spec.type == "ephemeral"
        name = f"{MOVING}{found.identity:x}"
        if namespace is not manager.hub.root:
            spec = msgspec.structs.replace(spec, namespace=namespace.text)
            declared = msgspec.structs.replace(declared, vhost=namespace.name) if declared is not None else None
        definition = self.definition = QueueDefinition(found.identity, spec, declared)
        spec = msgspec.structs.replace(spec, name=name)
        if declared is not None:
            declared = msgspec.structs.replace(declared, name=name.encode())
        line = (manager.replicator.line_of_queue(namespace.name, name.encode(), not volatile)
                or manager.hub.commits.local)
        self._objects.shift_ms = manager.hub.steady_ms + line.shift_ms - self._clock
        ledger, own = manager.hub.ledger, manager.number(line)
        logs = [Log(ledger, manager.number(line), lane=one.lane, volatile=volatile, line=line) for one in found.logs]
        queue = Queue(ledger, own, spec.raw, KINDS[spec.type], logs, spec.lanes, namespace)
        queue.following = True  # it gives nothing out
        state = self.state = QueueState(spec, queue, declared)
        state.id, state.placement = definition.id, self._placement
        self._objects.logs.update((one.number, (state, log)) for one, log in zip(found.logs, logs, strict=True))
        manager.settings.configure(state)
        manager.states[queue] = state  # for the checkpoints
        manager.record_queue(state)
        served = manager.queues.get(definition.address)
        if served is not None and served.id == definition.id and hand_of(served) is Hand.RELAY:
            self._hands.begin_copy(served, state)

    def _adopt_delays(self, found: QueueRecord) -> None:
        assert self.state is not None
        queue = self.state.queue
        if found.delay and queue.delays is None:
            log = Log(self._manager.hub.ledger, self._manager.number(queue.line), volatile=not queue.durable,
                      line=queue.line)
            delays = adopt_delays(self._manager, self.state, log, self._manager.number(queue.line))
            self._objects.logs[found.delay] = self.state, log
            self._objects.groups[found.delay_group] = delays.group
            self._manager.record_queue(self.state)

    def _adopt_group(self, number: int, found: GroupRecord) -> None:
        assert self.state is not None
        queue = self.state.queue
        if (found.name, found.pattern) in self.state.groups:
            raise CorruptError(f"group {found.name!r} of a queue comes twice")
        found = msgspec.structs.replace(found, queue=queue.number)
        group = self._manager.adopt_group(self.state, self._manager.number(queue.line), found)
        self._objects.groups[number] = group
        self._record(RecordKind.GROUP, group.number, found)

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
        assert self.state is not None and self.whole
        contents, staged = self.contents(), self.state
        self._drop()
        self.state = None
        if contents.line.number:  # what was released since is not brought: watch()
            self._manager.hub.origins.lead(state.queue, self._origins[HAD])
        self._manager.hub.origins.watch(False)
        state.placement, state.producers = staged.placement, staged.producers
        settled = self._hands.take(state, contents)
        for group in staged.groups.values():
            group.end()
        found = []
        for key, group in staged.groups.items():
            served = state.groups.get(key)
            if served is not None and (one := self._keep(served, self._objects.held.get(group, []))) is not None:
                found.append((served, one))
        self._hands.settle_kept(state.queue, settled)
        return found

    @staticmethod
    def _keep(group: Group, held: list[tuple[int, int, int, int]]) -> Reserve | None:
        """What consumers of other nodes held, and partitions that they owned."""
        one, at = Reserve(), {cursor.log.number: index for index, cursor in enumerate(group.cursors)}
        group.attach(one)
        for log, first, count, deliveries in held:
            for offset in range(first, first + count):
                reserve(group, one, at[log], offset, deliveries)
        if one.held or group.expected:
            return one
        group.leave(one)
        return None
