"""Nodes with queues of two lines, G and H, which die into each other. The test is the groups of nodes: it commits, or
not, what a leader submits."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kit.peers import PeerNode
from oracle.stored import messages
from oracle.stored import records as records_in
from unit.test_queue_relay import QueueNode

from fluxmq._core.disk.journal import Journal
from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.member import PyMember
from fluxmq._core.queue.queue import Queue
from fluxmq.engine.queues.clock import QueueClock
from fluxmq.engine.queues.forwarding import is_under_way
from fluxmq.engine.queues.hands import Hands
from fluxmq.engine.queues.late import settle_late
from fluxmq.engine.queues.manager import QueueState
from fluxmq.engine.queues.recovery.line import QueueLine
from fluxmq.engine.queues.relays import Attach
from fluxmq.model.queues import DeadLetters, QueueLimits, QueueSpec, Retry

GROUP = b"default"
LINES = ("G", "H")
ONCE = Retry(max_retries=1)
NOWHERE = DeadLetters(enabled=False)
YEAR_MS = 365 * 24 * 3600 * 1000

# name -> (line, spec, identity)
QUEUES = {spec.name: (line, spec, 71 + at) for at, (line, spec) in enumerate([
    ("G", QueueSpec(name="rejects", retry=ONCE, dlq=DeadLetters(topic="dead-in-h"))),
    ("G", QueueSpec(name="drops", limits=QueueLimits(max_depth=2), overflow="drop-head",
                    dlq=DeadLetters(topic="dead-in-h"))),
    ("G", QueueSpec(name="stays", retry=ONCE, dlq=DeadLetters(topic="dead-in-g"))),
    ("G", QueueSpec(name="dead-in-g", dlq=NOWHERE)),
    ("H", QueueSpec(name="back", retry=ONCE, dlq=DeadLetters(topic="dead-in-g"))),
    ("H", QueueSpec(name="dead-in-h", dlq=NOWHERE)),
])}


class LinesNode(QueueNode):
    """One life of a node with two lines. life_of: of another node, by name. years: by which its clock is ahead."""

    def __init__(self, name: str, epoch: int, life_of: Callable[[str], int] = lambda name: 1, years: int = 0,
                 journal: Journal | None = None) -> None:
        super().__init__(name, epoch, journal)
        self.life_of = life_of
        self.ahead_ms = years * YEAR_MS
        self.hub.begin_identities(epoch)
        self.hosts.protocols |= {"mqtt": _Host(self), "amqp": _Host(self)}      # type: ignore[dict-item]
        self.manager.reads.connect(self.relays, self.hosts)
        self.manager.listeners.append(self.relays)
        self.manager.on_owner.append(self.relays.owner_changed)
        self.hosts.calls["settle_late"] = lambda queue, member, *what: settle_late(self.manager, queue, *what)
        hands = Hands(self.manager, self.relays, self.hosts.protocols)
        self.lines = {line: QueueLine(self.manager, self.hub.commits.open_line(line), hands=hands) for line in LINES}
        self.clock = QueueClock(self.manager)
        self.heard_of: dict[str, str] = {}
        self.goes_on(self.now_ms)

    def goes_on(self, now_ms: int) -> None:
        """Time passes."""
        self.now_ms = now_ms + self.ahead_ms
        self.turn()
        self.clock.tick()
        self.turn()

    def to(self, other: str, *filters: bytes) -> Any:
        outbox = super().to(other, *filters)
        outbox.life = self.life_of(other)
        return outbox

    def state(self, name: str) -> QueueState:
        return self.manager.queues[b"/", name.encode()]

    def declare(self, line: str) -> None:
        """This node is the first one that leads the line."""
        copies = self.lines[line]
        copies.lead()
        for name, (of, spec, identity) in QUEUES.items():
            if of == line:
                self.manager.declare(spec, copies.line)
                self.defined.identify(self.state(name).queue.address, identity)

    def relays_of(self, line: str) -> None:
        for of, spec, identity in QUEUES.values():
            if of == line and spec.address not in self.manager.queues:
                self.manager.make_relay(spec, None, identity)

    def hears(self, line: str, leader: str | None) -> None:
        """Who leads; None: nobody is known."""
        self.heard_of[line] = leader or ""
        for name, (of, _, _) in QUEUES.items():
            if of == line and leader != self.name and self.state(name).queue.relay is not None:
                self.defined.set_owner(self.state(name), leader)

    def listens_to(self, other: str) -> None:
        """A stream has come from there."""
        ear: Any = self.ears[other]
        outbox = self.to(other)
        ear.on_attach = lambda number, queue, data: self.hosts.on_attach(outbox, number, queue, data)
        ear.on_detach = lambda number, rests: self.hosts.on_detach(outbox, number, rests)
        ear.on_call = lambda number, queue, data: self.hosts.on_call(outbox, number, queue, data,
                                                                     self.inboxes[other].asked)
        ear.on_result = lambda number, data: self.relays.on_result(outbox, number, data)

    def forgets(self, other: str) -> None:
        """A node is gone."""
        outbox = self.outboxes.pop(other)
        self.inboxes.pop(other).close()
        outbox.give_up_queues(f"node {other} is gone")
        self.hosts.on_gone(outbox)
        self.relays.on_gone(outbox)
        for line, leader in self.heard_of.items():
            if leader == other:
                self.hears(line, None)


class _Host:
    def __init__(self, node: PeerNode) -> None:
        self.node: Any = node

    def attach_member(self, queue: Queue, member: Any, asked: Attach) -> str:
        group = self.node.manager.group(queue, asked.group)
        group.join(member)
        queue.notify()
        return str(group.mode)

    def adopt_member(self, queue: Queue, member: Any, asked: Attach) -> None:
        """A consumer of this node, whose queue is here from now on."""

    def leads(self, queue: Queue, member: Any) -> bool:
        return False

    def leave(self, queue: Queue, member: Any) -> None:
        self.node.manager.left(queue, None)

    def rest(self, queue: Queue, member: Any) -> None:
        member.group.rest(member)


class Led(LinesNode):
    """A node that leads lines. records: of each line, batch by batch, as (kind, body)."""

    def __init__(self, *lines: str, name: str = "a", epoch: int = 1, journal: Journal | None = None) -> None:
        super().__init__(name, epoch, journal=journal)
        self.records: dict[str, list[list[tuple[int, bytes]]]] = {line: [] for line in LINES}
        self.raw: dict[str, list[bytes]] = {line: [] for line in LINES}
        for line in lines:
            self.declare(line)
            self.commit(line)

    def commit(self, line: str) -> list[tuple[int, bytes]]:
        """What was given to the line since the last time is committed."""
        self.turn()
        copies = self.lines[line]
        position, written = copies.line.submit()
        if position:
            copies.line.commit(position)
            copies.apply(written)
            self.records[line].append(list(records_in(written)))
            self.raw[line].append(written)
        return list(records_in(written))

    def give_up(self, line: str) -> None:
        """Another node leads the line."""
        self.turn()
        self.lines[line].line.give_up("another leads")
        self.lines[line].follow()

    def publish(self, name: str, payload: bytes, **options: Any) -> None:
        assert self.state(name).queue.publish(b"$queue/" + name.encode(), payload, **options) == 0

    def consume(self, name: str) -> PyMember:
        member = PyMember(lambda log, offset, count: True, None, 100)
        self.manager.group(self.state(name).queue, GROUP).join(member)
        return member

    def reject(self, name: str, offset: int = 0) -> None:
        state = self.state(name)
        assert by_offset.reject_at(state.groups[GROUP, b""], state.queue.logs[0].number, offset, "rejected")

    def payloads(self, name: str) -> list[bytes]:
        log = self.state(name).queue.logs[0]
        return [record.payload for offset in range(log.first, log.next) if (record := log.get(offset)) is not None]

    def under_way(self) -> list[QueueState]:
        return [state for state in self.manager.queues.values() if is_under_way(state.queue.name)]

    def letters(self) -> int:
        return sum(state.queue.waiting for state in self.under_way())

    def settle_down(self) -> None:
        for _ in range(8):
            for line in LINES:
                if not self.lines[line].following:
                    self.commit(line)


def kinds(batch: list[tuple[int, bytes]]) -> list[int]:
    return [kind for kind, _ in batch]


def appended(batch: list[tuple[int, bytes]], queue: Queue) -> list[bytes]:
    number = queue.logs[0].number.to_bytes(8, "big")
    return [message.payload for kind, body in batch if kind == RecordKind.APPEND and body[:8] == number
            for message in messages(body[8:])]
