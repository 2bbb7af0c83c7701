"""A queue of a replication group on three nodes with disks: Raft decides who leads and what is committed, while clients
of whoever leads publish and consume, messages of Raft are lost, overtake each other and come twice, nodes make
checkpoints, are killed and start from their directories.

Shown: what was confirmed is there or was consumed, once; what was settled and committed does not come back; copies that
have applied as much are the same; a node that starts has what it had applied; nobody serves before it knows what was
committed, and not two at once in one term.
"""
from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest
from kit.definer import defined
from kit.sizes import some
from kit.stored_node import pump
from property.test_copies_on_disk import GROUP, NAME, Stored, shown, waiting
from property.test_hands import IDENTITY, YEAR_MS
from property.test_queue_group import START_MS

from fluxmq._core.queue import by_offset
from fluxmq._core.queue.member import PyMember
from fluxmq._core.raft.machine import Raft
from fluxmq._core.raft.messages import Message, decode_message, encode_message
from fluxmq._core.testing.commits_probe import WaitingLink, release
from fluxmq.cluster.raft.group import ReplicatedGroup
from fluxmq.engine.queues.recovery.line import QueueLine
from fluxmq.model.queues import QueueSpec

NODES = (1, 2, 3)
SPEC = QueueSpec(name="q")
ELECTION_TICKS, HEARTBEAT_TICKS = 10, 3


class Life:
    """A node from a start to its end. held: offsets of the consumer's."""

    def __init__(self, world: World, number: int, life: int) -> None:
        self.world, self.number = world, number
        self.node = Stored(world.directory / str(number), small=world.small, segment_bytes=1 << 16)
        self.node.hub.begin_identities(life)
        self.tell_time()
        self.copies: QueueLine = self.node.join()
        logs = self.node.keeper.replicas
        replica = logs.replicas.get(GROUP) or logs.add(GROUP, 1, number, NODES)
        assert not replica.state.damaged and not replica.lacks_copy
        logs.begin_life(replica)
        self.node.sync()
        raft = Raft(number, replica.log, world.chance.randrange, term=replica.state.term, vote=replica.state.vote,
                    commit=replica.commit, applied=replica.applied, election_ticks=ELECTION_TICKS,
                    heartbeat_ticks=HEARTBEAT_TICKS, append_bytes_max=3000, flying_bytes_max=10_000)
        self.group = ReplicatedGroup(replica, logs, self.copies, raft, gathering=lambda: self.node.journal.gathering,
                                     send=self.send, has_ended=lambda other: other in world.ended,
                                     on_lead=self.node.manager.let_go)
        self.life = life
        self.held: list[int] = []
        self.member: PyMember | None = None
        self.link, self.seen = WaitingLink(self.node.hub), 0
        self.notes: dict[int, Callable[[], None]] = {}      # what clients have been told when it is committed
        self.handed: list[int] = []         # to the consumer in this turn; it would get it when that is committed
        self.delivering: list[tuple[int, int]] = []

    def tell_time(self) -> None:
        """Its clock is years away from the others'."""
        ahead_ms = self.number * 10 * YEAR_MS
        self.node.hub.set_clock(self.world.now + ahead_ms, self.world.now - START_MS, ahead_ms)

    def send(self, messages: list[Message]) -> None:
        for message in messages:
            self.world.post(message)

    @property
    def queue(self):  # type: ignore[no-untyped-def]
        return self.node.manager.queues[SPEC.address].queue

    def turn(self) -> None:
        led = self.group.leads
        if led:
            pump(self.node.hub)
        self.group.turn()
        line = self.copies.line
        self.delivering += [(line.committed + line.undecided, offset) for offset in self.handed]
        self.handed.clear()
        self.note_decided()
        if self.group.leads and not led:
            self.begin_to_lead()

    @property
    def reached(self) -> int:
        """What is committed of what its disk has."""
        return min(self.group.raft.on_disk, self.group.raft.commit)

    def note_decided(self) -> None:
        line = self.copies.line
        while self.delivering and self.delivering[0][0] <= line.committed:
            _, offset = self.delivering.pop(0)
            # Who was cut off may hear of an old commit when another leads, and has told its clients.
            if self.group.leads and self.group.raft.term == max(self.world.leaders, default=0):
                assert offset not in self.world.settled, f"{offset} comes back"
        release(self.node.hub)
        for number, why in self.link.left[self.seen:]:
            note = self.notes.pop(number)
            if why is None:
                note()
        self.seen = len(self.link.left)
        if not self.group.leads:
            self.delivering.clear()
            self.held.clear()
            self.member = None

    def begin_to_lead(self) -> None:
        term = self.group.raft.term
        assert self.world.leaders.setdefault(term, self.number) == self.number
        self.world.elected += 1
        manager = self.node.manager
        if SPEC.address not in manager.queues:      # the first one
            queue = manager.declare(SPEC, self.copies.line)[0]
            defined(manager).identify(SPEC.address, IDENTITY)
            self.copies.note(manager.states[queue])

    def sync(self) -> None:
        """The disk has written what was handed over."""
        self.node.sync()
        self.group.durable(self.node.journal.durable)
        self.turn()

    def when_committed(self, note: Callable[[], None]) -> None:
        """What has just been decided."""
        self.world.asked += 1
        self.notes[self.world.asked] = note
        line = self.copies.line
        self.link.notify_at(self.world.asked, line, line.committed + line.undecided)

    def publish(self) -> None:
        for _ in range(self.world.chance.choice((1, 3, 20))):
            self.world.published += 1
            payload = b"%d " % self.world.published + bytes(self.world.chance.choice((0, 0, 300)))
            offset = self.queue.logs[0].next
            assert self.queue.append_message(b"$queue/q", payload) == 0
            self.when_committed(partial(self.world.confirm, offset, payload))
        self.turn()

    def consume(self) -> None:
        if self.member is None:
            def deliver(log: int, offset: int, deliveries: int) -> bool:
                self.handed.append(offset)
                self.held.append(offset)
                return True

            self.member = PyMember(deliver, lambda log, offset, deliveries: None, 1 << 20)
            self.node.manager.group(self.queue, NAME).join(self.member)
        [log] = self.queue.logs
        for _ in range(min(len(self.held), self.world.chance.choice((1, 5, 50)))):
            offset = self.held.pop(self.world.chance.randrange(len(self.held)))
            group = self.node.manager.queues[SPEC.address].groups[NAME, b""]
            if by_offset.settle_at(group, log.number, offset):
                self.world.tried.add(offset)
                group.flush_records()
                self.when_committed(partial(self.world.settled.add, offset))
        self.turn()


class World:
    """wire: messages under way. confirmed: payloads by offset. tried: offsets that a consumer has settled; settled:
    those of which that is committed."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.chance = Random(seed)
        self.directory = directory
        self.small = self.chance.choice((0, 2000, 1 << 20))
        self.loss = self.chance.choice((0.0, 0.05, 0.2))
        self.now = START_MS
        self.lives_begun = self.published = self.elected = self.checkpoints = self.asked = 0
        self.reached = dict.fromkeys(NODES, 0)      # what each has on its disk, at least
        self.ended: set[int] = set()
        self.wire: list[bytes] = []
        self.cuts: set[tuple[int, int]] = set()
        self.confirmed: dict[int, bytes] = {}
        self.tried: set[int] = set()
        self.settled: set[int] = set()
        self.leaders: dict[int, int] = {}
        self.digests: dict[int, str] = {}
        self.lives: dict[int, Life] = {}
        for number in NODES:
            self.starts(number)

    def starts(self, number: int) -> None:
        self.lives_begun += 1
        self.lives[number] = Life(self, number, 100 + self.lives_begun)
        self.compare(self.lives[number])

    def dies(self, number: int, power: bool = True) -> None:
        """power: what it has gathered may be written."""
        life = self.lives.pop(number)
        self.ended.add(life.life)
        self.reached[number] = life.reached
        if power and self.chance.random() < 0.5:
            life.node.close()
            return
        directory = self.directory / str(number)
        shutil.copytree(directory, self.directory / "as it was")
        life.node.close()
        shutil.rmtree(directory)
        (self.directory / "as it was").rename(directory)

    def confirm(self, offset: int, payload: bytes) -> None:
        assert self.confirmed.setdefault(offset, payload) == payload

    def post(self, message: Message) -> None:
        if self.chance.random() >= self.loss and (message.sender, message.to) not in self.cuts:
            self.wire.append(encode_message(message))
            if self.loss and self.chance.random() < 0.05:
                self.wire.append(self.wire[-1])

    def deliver(self, count: int) -> None:
        for _ in range(min(count, len(self.wire))):
            at = 0 if self.chance.random() < 0.8 or not self.loss else self.chance.randrange(len(self.wire))
            message = decode_message(self.wire.pop(at))
            if (life := self.lives.get(message.to)) is not None and (message.sender, message.to) not in self.cuts:
                life.group.step(message)
                if self.chance.random() < 0.6:      # else with the next one, in one turn
                    life.turn()

    def compare(self, life: Life) -> None:
        """Whoever has applied as much has the same."""
        if life.group.leads or not life.copies.queues:
            return
        assert not life.group.damage
        [copy] = life.copies.queues.values()
        found = shown(life.node.manager, copy, life.node.segments)
        assert self.digests.setdefault(life.copies.applied, found) == found, f"copies differ at {life.copies.applied}"

    def some_life(self) -> Life | None:
        return self.chance.choice(list(self.lives.values())) if self.lives else None

    def serving(self) -> Life | None:
        """One that serves clients, or thinks so."""
        led = [life for life in self.lives.values() if life.group.leads and SPEC.address in life.node.manager.queues]
        return self.chance.choice(led) if led else None

    def tick(self, life: Life, count: int = 1) -> None:
        for _ in range(count):
            self.now += 50
            life.tell_time()
            life.group.tick()
            life.turn()

    def isolate(self) -> None:
        """A leader reaches nobody for longer than the others wait; what it decides meanwhile is for nothing."""
        if (life := self.serving()) is None:
            return
        self.cuts |= {pair for other in NODES for pair in ((life.number, other), (other, life.number))}
        life.publish()
        for _ in range(3 * ELECTION_TICKS):
            for other in [other for other in self.lives.values() if other is not life]:
                self.tick(other)
                other.sync()
            self.deliver(len(self.wire))
        life.sync()
        self.cuts.clear()

    def power_fails(self) -> None:
        """Of all at once, behind something that is under way."""
        if (life := self.serving()) is not None:
            life.publish()
            for _ in range(3):
                self.deliver(len(self.wire))
        for number in list(self.lives):
            self.dies(number, power=False)

    def step(self) -> None:
        self.chance.choices(*zip(*self.acts, strict=True))[0]()

    @property
    def acts(self) -> list[tuple[Callable[[], object], float]]:
        life, serving = self.some_life(), self.serving()
        found: list[tuple[Callable[[], object], float]] = [
            (lambda: self.deliver(self.chance.choice((1, 3, 20))), 40), (self.cuts.clear, 2), (self.isolate, 1),
            (self.power_fails, 0.3)]
        if life is not None:
            found += [(life.sync, 20), (lambda: self.tick(life, self.chance.choice((1, 1, 12))), 8),
                      (lambda: self.checkpoint(life), 2), (lambda: self.compare(life), 2),
                      (lambda: self.dies(life.number), 1)]
        if serving is not None:
            found.append((lambda: serving.group.raft.transfer(self.chance.choice(NODES)), 1))
            found += [(serving.publish, 10), (serving.consume, 10), (lambda: self.dies(serving.number), 1)]
        if len(self.lives) < len(NODES):
            found.append((lambda: self.starts(next(one for one in NODES if one not in self.lives)), 8))
        return found

    def checkpoint(self, life: Life) -> None:
        """Of what all have: nobody gets a copy here, instead of entries that no log has any more."""
        self.reached |= {number: other.reached for number, other in self.lives.items()}
        if life.group.raft.applied > min(self.reached.values()):
            return
        self.checkpoints += 1
        life.node.checkpoint()
        life.group.durable(life.node.journal.durable)
        life.turn()
        self.compare(life)

    def settle(self) -> None:
        """Everything works again: all have the same, and what the leader has is what it must have."""
        self.loss = 0.0
        self.cuts.clear()
        for number in NODES:
            if number not in self.lives:
                self.starts(number)
        self.settle_those(set(NODES))

    def settle_those(self, numbers: set[int]) -> None:
        """Until these have the same."""
        for turn in range(3000):
            those = [self.lives[number] for number in numbers]
            for life in those:
                if turn % 3 == 0:
                    life.group.tick()
                life.sync()
            self.deliver(len(self.wire))
            applied = {life.group.raft.applied for life in those}
            led = [life for life in those if life.group.leads]
            if len(led) == 1 and len(applied) == 1 and not led[0].copies.line.undecided and turn > 20:
                return self.verify(led[0], those)
        raise AssertionError([(life.number, life.group.raft.state_name, life.group.raft.term, life.group.raft.applied)
                              for life in self.lives.values()])

    def verify(self, led: Life, those: list[Life]) -> None:
        for life in those:
            self.compare(life)
        [copy] = led.copies.queues.values()
        [log] = copy.queue.logs
        left = {one.offset: bytes(one.payload) for one in waiting(copy, log, led.node.segments)}
        assert not left.keys() & self.settled
        for offset, payload in self.confirmed.items():
            assert offset < log.next, f"{offset} was confirmed, and is not there"
            assert left.get(offset, payload) == payload
            assert offset in left or offset in self.tried, f"{offset} was confirmed, and has gone"


@pytest.mark.parametrize("seed", some(24, range(1000)))
def test_a_queue_of_three_nodes(seed: int, tmp_path: Path) -> None:
    world = World(seed, tmp_path)
    try:
        for _ in range(400):
            world.step()
        world.settle()
        assert world.elected
    finally:
        for number in list(world.lives):
            world.dies(number)
