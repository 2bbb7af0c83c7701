"""What a node stores of queues of another line than its journal: histories in which it leads and follows, makes
checkpoints at any time, is killed, and is started again from its disk. The test is the group, as in test_line_history.

Shown at each start: the copy is as of what was committed, at the position that the disk says or later, and with the
batches behind that position it is what another node has that never stopped. What was decided here and not committed is
not there.
"""
from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.definer import defined
from kit.sizes import some
from kit.stored_node import StoredNode, pump
from oracle.stored import messages as messages_in
from property.test_hands import IDENTITY, Node, _Host
from property.test_queue_group import START_MS

from fluxmq._core.queue import by_offset
from fluxmq._core.queue.export import unflushed
from fluxmq._core.queue.log import Log
from fluxmq._core.queue.member import PyMember
from fluxmq.engine.queues.hands import Hands
from fluxmq.engine.queues.manager import QueueManager, QueueState
from fluxmq.engine.queues.recovery.line import QueueLine
from fluxmq.engine.queues.recovery.snapshot import digest, snapshot
from fluxmq.engine.queues.relays import Hosts, Relays
from fluxmq.model.queues import QueueSpec
from fluxmq.storage.segments import SegmentStore

GROUP = 7
NAME = b"g"


class Stored(StoredNode):
    """The node with a disk."""

    hands: Hands

    def before(self) -> None:
        relays, hosts = Relays(), Hosts(self.hub)
        hosts.protocols |= {"mqtt": _Host(), "amqp": _Host()}       # type: ignore[dict-item]
        self.manager.reads.connect(relays, hosts)
        self.hands = Hands(self.manager, relays, hosts.protocols)

    def join(self) -> QueueLine:
        """Started: it is a member of the group."""
        assert self.keeper.queues is not None
        copies = self.keeper.queues.copies
        if GROUP in copies.lines:
            copies.lines[GROUP].connect(self.hands)
        else:
            copies.add(QueueLine(self.manager, self.hub.commits.open_line("group 7", GROUP), hands=self.hands))
        return copies.lines[GROUP]


def waiting(copy: QueueState, log: Log, segments: SegmentStore | None = None) -> list[Any]:
    """The messages of a log that somebody still needs, wherever they are."""
    source = log.line.retaining.get(log.number, log)
    found = {one.offset: one for one in messages_in(unflushed(source, None, log.first, log.next))}
    at = log.first
    while segments is not None and log.disk and at < log.next:
        _, covers, blocks = segments.read(log.disk, at, 1 << 20)
        found |= {one.offset: one for one in messages_in(b"".join(blocks))}
        if not blocks:
            break
        at = covers
    return [found[offset] for offset in sorted(found)
            if log.first <= offset < log.next and copy.queue.is_needed(log, offset)]


def shown(manager: QueueManager, copy: QueueState, segments: SegmentStore | None = None) -> str:
    """The digest of a copy, with its messages."""
    return digest(manager, copy, messages=lambda log, needed: repr(waiting(copy, log, segments)).encode())


class World:
    """log: what is committed: (records, the line's time). pending: what the leader has submitted, and is not. memory:
    the node that never stops. small: bytes of a log that stay in the view."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.chance = random.Random(seed)
        self.kind = self.chance.choice(("classic", "classic", "classic", "stream"))
        self.spec = QueueSpec(name="q", type=self.kind, namespace="tenant",       # type: ignore[arg-type]
                              partitions=self.chance.choice((1, 2)))
        self.small = self.chance.choice((0, 0, 2000, 1 << 20))
        self.directory, self.lives = directory, 0
        self.now = START_MS
        self.memory = Node(1, self.spec)
        self.memory.line = self.memory.hub.commits.open_line("group 7", GROUP)
        self.memory.copies = self.memory.new_copies()
        self.log: list[tuple[bytes, int]] = []
        self.pending: list[tuple[int, bytes, int]] = []
        self.held: dict[PyMember, list[tuple[int, int]]] = {}
        self.published = 0
        self.there = True       # the queue
        self.starts()
        self.leads = True       # the node with the disk does
        queue = self.node.manager.declare(self.spec, self.copies.line)[0]
        defined(self.node.manager).identify(self.spec.address, IDENTITY)
        self.copies.lead()
        self.copies.note(self.node.manager.states[queue])
        self.memory.manager.make_relay(self.spec, None, IDENTITY)
        self.submit()
        self.commit()

    def starts(self) -> None:
        self.node = Stored(self.directory, small=self.small, segment_bytes=1 << 16)
        self.node.hub.namespaces.add(b"tenant")
        self.lives += 1
        self.node.hub.begin_identities(10 + self.lives)
        self.copies = self.node.join()

    @property
    def manager(self) -> QueueManager:
        return self.node.manager if self.leads else self.memory.manager

    @property
    def led(self) -> QueueLine:
        return self.copies if self.leads else self.memory.copies

    @property
    def state(self) -> QueueState:
        return self.manager.queues[self.spec.address]

    def pump(self) -> None:
        pump(self.manager.hub)

    # ------------------------------------------------------------------ what happens

    def publish(self) -> None:
        for _ in range(self.chance.choice((1, 3, 40))):
            self.published += 1
            payload = b"%d " % self.published + bytes(self.chance.choice((0, 0, 100, 3000)))
            assert self.state.queue.append_message(b"$queue/q", payload) == 0

    def consume(self) -> None:
        """A consumer comes, and gets some; one that is there settles or gives back."""
        if self.kind == "stream":
            return self.trim()
        group = self.manager.group(self.state.queue, NAME)
        if not group.members:
            held: list[tuple[int, int]] = []

            def deliver(log: int, offset: int, deliveries: int) -> bool:
                held.append((log, offset))
                return True

            member = PyMember(deliver, lambda log, offset, deliveries: None, 1 << 20)
            group.join(member)
            self.held = {member: held}
            self.pump()
        for held in self.held.values():
            for _ in range(min(len(held), self.chance.choice((1, 5, 50)))):
                log, offset = held.pop(self.chance.randrange(len(held)))
                if self.chance.random() < 0.2:
                    by_offset.give_back_at(group, log, offset, 0, True)
                else:
                    by_offset.settle_at(group, log, offset)
        self.pump()
        return None

    def trim(self) -> None:
        log = self.chance.choice(self.state.queue.logs)
        self.manager.trim(self.state, log, log.first + self.chance.randrange(log.next - log.first + 1))

    def delete(self) -> None:
        """Deleted, and declared anew under the same name."""
        if self.chance.random() < 0.8 or self.pending:
            return
        self.submit()
        self.commit()
        self.held = {}
        self.manager.delete(self.spec.address)
        self.submit()
        self.commit()
        self.there = False
        for manager in (self.node.manager, self.memory.manager):
            if self.spec.address in manager.queues:
                manager.delete(self.spec.address)
        if self.chance.random() < 0.5:      # the line has no queue, and its namespace keeps its number
            self.checkpoint()
            self.dies()
        queue = self.manager.declare(self.spec, self.led.line)[0]
        defined(self.manager).identify(self.spec.address, IDENTITY)
        self.led.note(self.manager.states[queue])
        other = self.memory.manager if self.leads else self.node.manager
        self.there = True
        other.make_relay(self.spec, None, IDENTITY)
        self.submit()
        self.commit()

    def submit(self) -> None:
        self.pump()
        line_ms = self.led.time
        position, records = self.led.line.submit()
        if position:
            self.pending.append((position, records, line_ms))

    def commit(self) -> None:
        for position, records, line_ms in self.pending[:self.chance.choice((1, 2, 9))]:
            del self.pending[0]
            self.led.line.commit(position)
            self.log.append((records, line_ms))
            for copies in (self.memory.copies, self.copies):
                copies.apply(records, line_ms, len(self.log))

    def commit_all(self) -> None:
        self.submit()
        while self.pending:
            self.commit()

    def another_leads(self) -> None:
        if self.chance.random() < 0.5:
            self.commit_all()
        self.gives_up()
        self.led.follow()
        self.leads = not self.leads
        self.led.lead(lambda life: True)
        self.same()

    def gives_up(self) -> None:
        self.held = {}
        self.pending.clear()
        self.led.line.give_up("another leads")

    def checkpoint(self) -> None:
        if self.chance.random() < 0.3:
            self.commit_all()
            self.disturbed(self.chance.choice((self.is_made_anew, self.changes_leader, self.goes_on)))
        else:
            self.node.checkpoint()

    def disturbed(self, act: Callable[[], None]) -> None:
        """A checkpoint in the middle of which something happens."""
        keeper = self.node.keeper.queues
        assert keeper is not None
        name, before = self.chance.choice((("begin_export", False), ("export", True), ("export", False)))
        step = getattr(keeper, name)

        def then(made: Any) -> Any:
            if before:
                act()
            found = step(made)
            if not before:
                act()
            return found

        setattr(keeper, name, then)
        try:
            self.node.checkpoint()
        finally:
            delattr(keeper, name)
        if self.chance.random() < 0.5:
            self.dies()

    def is_made_anew(self) -> None:
        """The copies of the node with the disk were lost, or fell too far behind."""
        if not self.leads and self.there:
            raw = snapshot(self.manager, self.state)
            self.copies.clear()
            self.copies.restore(raw)
            self.copies.applied = len(self.log)

    def goes_on(self) -> None:
        """More is committed, and more is decided that is not."""
        for committed in (True, False) if self.there else ():
            for _ in range(3):
                self.published += 1
                assert self.state.queue.append_message(b"$queue/q", b"%d " % self.published) == 0
            line_ms = self.led.time
            position, records = self.led.line.submit()
            if position:
                self.pending.append((position, records, line_ms))
            while committed and self.pending:
                self.commit()

    def changes_leader(self) -> None:
        if self.there:
            self.gives_up()
            self.led.follow()
            self.leads = not self.leads
            self.led.lead(lambda life: True)

    def dies(self) -> None:
        """Killed, or stopped; what it has decided and is not committed is given up, and the other one leads."""
        led = self.leads
        if led:
            self.gives_up()
            self.leads = False
            self.memory.copies.lead(lambda life: True)
        if self.chance.random() < 0.5:
            self.node.checkpoint()
        self.node.close()       # without a last checkpoint, as one that is killed
        self.starts()
        if self.there:
            self.node.manager.make_relay(self.spec, None, IDENTITY)
        assert self.copies.applied <= len(self.log)
        for position, (records, line_ms) in enumerate(self.log[self.copies.applied:], self.copies.applied + 1):
            self.copies.apply(records, line_ms, position)
        self.same()

    def same(self) -> None:
        """The copies of both are the same."""
        assert self.copies.queues.keys() == self.memory.copies.queues.keys()
        for number, copy in self.copies.queues.items():
            other = self.memory.copies.queues[number]
            assert [log.next for log in copy.logs] == [log.next for log in other.logs]
            assert shown(self.node.manager, copy, self.node.segments) == shown(self.memory.manager, other)

    def plays(self, steps: int) -> None:
        acts = [self.publish] * 6 + [self.consume] * 6 + [self.trim, self.submit, self.submit, self.commit, self.commit,
                                                          self.checkpoint, self.checkpoint, self.dies,
                                                          self.another_leads, self.delete]
        for _ in range(steps):
            self.chance.choice(acts)()
        self.commit_all()
        self.dies()
        self.node.close()


# 11, 27: what happens in the middle of a checkpoint. 152: a queue that is deleted after a start had a copy on disk
# without messages.
@pytest.mark.parametrize("seed", [*some(20, [seed for seed in range(150) if seed not in (11, 27)]), 11, 27, 152])
def test_histories(seed: int, tmp_path: Path) -> None:
    World(seed, tmp_path).plays(60)


def test_what_a_group_settles_between_two_checkpoints(tmp_path: Path) -> None:
    """Nothing else of the queue has changed."""
    world = next(made for seed in range(20) if (made := World(seed, tmp_path / str(seed))).kind == "classic")
    log = world.state.queue.logs[0]
    for _ in range(4 * len(world.state.queue.logs)):
        assert world.state.queue.append_message(b"$queue/q", b"x") == 0
    member = PyMember(lambda log, offset, deliveries: True, lambda log, offset, deliveries: None, 100)
    group = world.manager.group(world.state.queue, NAME)
    group.join(member)
    for offset in range(2, 4):
        world.commit_all()
        world.node.checkpoint()
        assert by_offset.settle_at(group, log.number, offset)
    world.commit_all()
    world.node.checkpoint()
    world.node.close()
    world.starts()
    assert world.copies.applied == len(world.log)
    world.same()
    world.node.close()
