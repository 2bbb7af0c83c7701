"""A queue of a line that three nodes follow, with links between them: who leads changes, nodes die and come back with
nothing, links break and stand still, while clients of all nodes publish, consume and settle.

The test is the group: it takes what the leader submits, commits it in order when it likes to, and brings it to each
node some time later. So who leads has decided more than is committed, and is undone when another leads. Shown: copies
that have applied the same are the same; what was confirmed is delivered or still there; what was settled at the leader
and committed, or anywhere and told to be, does not come again; a message of QoS 2 that is published at two nodes is
there once.
"""
from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from kit.peers import Wire
from oracle.stored import messages
from oracle.stored import records as records_in
from unit.test_queue_relay import IDENTITY, QueueNode

from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.peer.queue_relay import QueueRelay
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.handover import Reserve
from fluxmq._core.queue.member import PyMember
from fluxmq._core.queue.queue import Queue
from fluxmq.engine.queues.hands import Hands
from fluxmq.engine.queues.late import settle_late
from fluxmq.engine.queues.manager import QueueState
from fluxmq.engine.queues.recovery.line import QueueLine
from fluxmq.engine.queues.recovery.snapshot import digest, snapshot
from fluxmq.engine.queues.relays import Attach
from fluxmq.model.queues import QueueSpec

NAMES = ("a", "b", "c")
SPEC = QueueSpec(name="q")
GROUP = b"default"
YEAR_MS = 365 * 24 * 3600 * 1000


class LineNode(QueueNode):
    """One life. life_of: of another node, by name. mode: of the group. heard_of: the leader of which it has heard.
    reached: how many batches of the log its copy has."""

    def __init__(self, name: str, epoch: int, life_of: Callable[[str], int], mode: str) -> None:
        super().__init__(name, epoch)
        self.mode = mode
        self.life_of = life_of
        self.now_ms += NAMES.index(name) * 10 * YEAR_MS
        self.hub.begin_identities(epoch)
        self.hosts.protocols |= {"mqtt": _Host(self), "amqp": _Host(self)}      # type: ignore[dict-item]
        self.manager.reads.connect(self.relays, self.hosts)
        self.manager.listeners.append(self.relays)
        self.manager.on_owner.append(self.relays.owner_changed)
        self.hosts.calls["settle_late"] = lambda queue, member, *what: settle_late(self.manager, queue, *what)
        self.hands = Hands(self.manager, self.relays, self.hosts.protocols)
        self.line = self.hub.commits.open_line("group 7")
        self.copies = QueueLine(self.manager, self.line, hands=self.hands)
        self.heard_of, self.term = "", 0
        self.reached = 0
        self.consumers: list[Consumer] = []
        self.turn()

    def to(self, other: str, *filters: bytes) -> Any:
        outbox = super().to(other, *filters)
        outbox.life = self.life_of(other)
        return outbox

    @property
    def state(self) -> QueueState:
        return self.manager.queues[SPEC.address]

    @property
    def copy(self) -> QueueState:
        [copy] = self.copies.queues.values()
        return copy

    def hears(self, leader: str, term: int) -> None:
        if leader != self.name and self.state.queue.relay is not None:
            if term != self.term:       # another has led meanwhile, perhaps, and does not know this node's consumers
                self.defined.set_owner(self.state, None)
            self.defined.set_owner(self.state, leader)
        self.heard_of, self.term = leader, term


class _Host:
    def __init__(self, node: LineNode) -> None:
        self.node = node

    def attach_member(self, queue: Queue, member: Any, asked: Attach) -> str:
        group = self.node.manager.group(queue, asked.group, mode=self.node.mode)
        group.join(member)
        queue.notify()
        return group.mode

    def adopt_member(self, queue: Queue, member: Any, asked: Attach) -> None:
        """A consumer of this node, whose queue is here from now on."""

    def leads(self, queue: Queue, member: Any) -> bool:
        return False

    def leave(self, queue: Queue, member: Any) -> None:
        self.node.manager.left(queue, None)

    def rest(self, queue: Queue, member: Any) -> None:
        member.group.rest(member)


class Consumer:
    """held: offsets that it has."""

    def __init__(self, node: LineNode, room: int) -> None:
        self.node, self.held = node, list[int]()
        self.member = PyMember(self._deliver, self._lose, room)
        queue = node.state.queue
        node.manager.group(queue, GROUP, mode=node.mode).join(self.member)
        if isinstance(queue.relay, QueueRelay):
            asked = Attach(protocol="mqtt", client="c", group=GROUP)
            node.relays.attach(queue, self.member, asked, lambda answer: None)

    def has(self) -> set[int]:
        """With what waits for room."""
        relay = self.node.state.queue.relay
        waiting = relay.of(self.member).held() if isinstance(relay, QueueRelay) else ()
        return {*self.held, *(offset for _, offset, _ in waiting)}

    def _deliver(self, log: int, offset: int, count: int) -> bool:
        assert offset not in self.held, f"{offset} comes to a consumer that has it"
        self.held.append(offset)
        return True

    def _lose(self, log: int, offset: int, count: int) -> None:
        self.held.remove(offset)

    @property
    def group(self) -> Group:
        return self.node.state.groups[GROUP, b""]


class World:
    """spec, identity: of the queue. pending: what the leader has submitted and is not committed: (position, records,
    the line's time, offsets that it settles). log: what is. lives: how many began. settled: offsets that somebody has
    settled; final: those whose settlement is committed, at the leader, or as its client was told. loose: those that
    were given to others though they may be settled: a client that hears that they are is no witness."""

    spec, identity = SPEC, IDENTITY

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.mode = self.chance.choice(("shared", "shared", "single", "exclusive"))
        self.lives = 0
        self.nodes: dict[str, LineNode] = {}
        self.wires: dict[tuple[str, str], Wire] = {}
        self.leader, self.term = "a", 1
        self.begin()

    def begin(self) -> None:
        """Everybody is there, and nothing has happened."""
        self.pending: list[tuple[int, bytes, int, set[int]]] = []
        self.log: list[tuple[bytes, int]] = []
        self.ended: set[int] = set()
        self.kept: list[tuple[Group, Reserve]] = []
        self.published = 0
        self.outcomes: dict[tuple[int, int], str | None] = {}      # by number and the life of the publisher's node
        self.asked: set[tuple[int, int]] = set()
        self.twice: set[int] = set()
        self.settled: set[int] = set()
        self.settling: set[int] = set()     # at the leader, since it submitted
        self.final: set[int] = set()
        self.loose: set[int] = set()
        self.waits: set[int] = set()        # for a settlement
        self.digests: dict[int, str] = {}
        for name in NAMES:
            self.born(name)
        first = self.nodes["a"]
        queue = first.manager.declare(self.spec, first.line)[0]
        first.defined.identify(queue.address, self.identity)
        first.copies.lead()
        first.copies.note(first.state)
        for name in NAMES[1:]:
            self.nodes[name].manager.make_relay(self.spec, None, self.identity)
            self.nodes[name].hears("a", self.term)
        self.commit_all()

    @property
    def led(self) -> LineNode:
        return self.nodes[self.leader]

    # ---------------------------------------------------------------- nodes and links

    def born(self, name: str) -> LineNode:
        self.lives += 1
        node = self.nodes[name] = LineNode(name, self.lives, lambda other: self.nodes[other].epoch
                                           if other in self.nodes else 0, self.mode)
        for other in [other for other in self.nodes if other != name]:
            for pair in ((name, other), (other, name)):
                self.wires[pair] = Wire(self.nodes[pair[0]], self.nodes[pair[1]])
                self.dial(self.wires[pair])
        return node

    def dial(self, wire: Wire) -> None:
        wire.dial()
        node, other = wire.target, wire.source.name
        assert isinstance(node, LineNode)
        ear: Any = node.ears[other]
        outbox = node.to(other)
        ear.on_attach = lambda number, queue, data: node.hosts.on_attach(outbox, number, queue, data)
        ear.on_detach = lambda number, rests: node.hosts.on_detach(outbox, number, rests)
        ear.on_call = lambda number, queue, data: node.hosts.on_call(outbox, number, queue, data,
                                                                     node.inboxes[other].asked)
        ear.on_result = lambda number, data: node.relays.on_result(outbox, number, data)

    def dies(self, name: str) -> None:
        """It is started again, with nothing; the others have heard that it is gone."""
        gone = self.nodes.pop(name)
        self.ended.add(gone.epoch)
        for other, node in self.nodes.items():
            for pair in ((name, other), (other, name)):
                self.wires.pop(pair).open = False
            outbox = node.outboxes.pop(name)
            node.inboxes.pop(name).close()
            outbox.give_up_queues(f"node {name} is gone")
            node.hosts.on_gone(outbox)
            node.relays.on_gone(outbox)
            self.hears_of_death(node, name)
            node.turn()

    def hears_of_death(self, node: LineNode, name: str) -> None:
        if node.heard_of == name and node.state.queue.relay is not None:
            node.defined.set_owner(node.state, None)

    def comes_back(self, name: str) -> None:
        """With a snapshot of the leader's, which has nothing that is not committed."""
        node = self.born(name)
        self.commit_all()
        node.copies.restore(snapshot(self.led.manager, self.led.state))
        node.reached = len(self.log)
        node.manager.make_relay(self.spec, None, self.identity)
        node.hears(self.leader, self.term)

    def turns(self) -> None:
        for node in self.nodes.values():
            node.turn()
            self.submit()

    def carry(self, share: float = 1.0) -> int:
        moved = 0
        for wire in self.wires.values():
            if wire.open and self.chance.random() < share:
                wire.idle()
                moved += wire.deliver(self.chance.choice((1, 2, 1 << 30)) if share < 1 else 1 << 30)
        return moved

    # ---------------------------------------------------------------- the group

    def submit(self) -> None:
        line_ms = self.led.copies.time
        position, records = self.led.line.submit()
        if position:
            self.pending.append((position, records, line_ms, self.settling))
            self.settling = set()

    def commit(self, count: int) -> None:
        for position, records, line_ms, settled in self.pending[:count]:
            self.log.append((records, line_ms))
            self.final |= settled
            self.led.line.commit(position)
            self.applies(self.led, len(self.log))
        del self.pending[:count]

    def commit_all(self) -> None:
        for _ in range(3):
            self.turns()
            self.commit(len(self.pending))
        for node in self.nodes.values():
            self.applies(node, len(self.log))

    def applies(self, node: LineNode, upto: int) -> None:
        """Its copy applies the log up to there; whoever has applied as much has the same."""
        while node.reached < upto:
            records, line_ms = self.log[node.reached]
            node.copies.apply(records, line_ms)
            node.reached += 1
        if node.copies.queues and node.name != self.leader:     # a leader's copy has no messages: its queue has them
            ours = digest(node.manager, node.copy)
            assert self.digests.setdefault(node.reached, ours) == ours, f"copies differ behind batch {node.reached}"

    def leads(self, name: str) -> None:
        """Of what is pending a part is committed yet, as when it had reached others; the rest is given up."""
        former = self.nodes.get(self.leader)
        if former is not None:
            former.turn()
            self.submit()
            self.commit(self.chance.randint(0, len(self.pending)))
        else:
            for _, records, line_ms, settled in self.pending[:self.chance.randint(0, len(self.pending))]:
                self.log.append((records, line_ms))
                self.final |= settled
        self.pending.clear()
        self.settling = set()
        if former is not None:
            former.line.give_up("another leads")
            former.copies.follow()
        new = self.nodes[name]
        self.applies(new, len(self.log))
        self.kept = new.copies.lead(self.ended.__contains__)
        self.leader = name
        self.term += 1
        new.hears(name, self.term)
        if former is not None and self.chance.random() < 0.7:
            former.hears(name, self.term)

    # ---------------------------------------------------------------- clients

    def publishes(self, node: LineNode, twice: LineNode | None = None) -> None:
        self.published += 1
        number = self.published
        outcomes = self.outcomes
        identity = node.hub.next_identity() if twice is not None else 0
        for one in [node] if twice is None else [node, twice]:
            since, relay = one.hub.commits.mark, one.state.queue.relay
            key = number, one.epoch
            if isinstance(relay, QueueRelay) and not relay.reachable:
                outcomes[key] = "no owner"      # of publish_message nobody hears that
            elif twice is None:
                reason = one.state.queue.publish(b"$queue/" + one.state.queue.name, b"%d" % number)
                if reason:
                    outcomes[key] = f"{reason:#x}"
                    return
            else:
                self.twice.add(number)
                one.hub.publish_message(b"$queue/" + one.state.queue.name, b"%d" % number, 2,
                                        identity=identity)
            if key not in outcomes:
                self.asked.add(key)
                one.hub.when_durable(partial(outcomes.__setitem__, key, None), since,
                                     partial(self._refused, outcomes, key))

    @staticmethod
    def _refused(outcomes: dict[tuple[int, int], str | None], key: tuple[int, int], why: str) -> None:
        outcomes[key] = why or "refused"

    def settles(self, consumer: Consumer) -> None:
        if not consumer.held:
            return
        offset = consumer.held.pop(self.chance.randrange(len(consumer.held)))
        log = consumer.node.state.queue.logs[0].number
        if self.chance.random() < 0.2:
            by_offset.give_back_at(consumer.group, log, offset, 0, True)
            return
        hub, since = consumer.node.hub, consumer.node.hub.commits.mark
        if not by_offset.settle_at(consumer.group, log, offset):
            return
        self.settled.add(offset)
        if consumer.node is self.led:
            self.settling.add(offset)
        if self.chance.random() < 0.5:
            relay = consumer.node.state.queue.relay
            consumer.group.flush_records()
            if isinstance(relay, QueueRelay):
                relay.await_owner(consumer.member, 0, [offset])
                if not relay.reachable:
                    return              # its client is told that
            self.waits.add(offset)
            final = self.final if offset not in self.loose else set[int]()
            hub.when_durable(partial(self._settled, final, self.waits, offset), since,
                             partial(self._not_settled, self.waits, offset))

    @staticmethod
    def _settled(final: set[int], waits: set[int], offset: int) -> None:
        if offset in waits:
            final.add(offset)

    @staticmethod
    def _not_settled(waits: set[int], offset: int, why: str) -> None:
        waits.discard(offset)

    def lets_go(self) -> None:
        """Whoever leads gives to others what consumers that it has not seen yet hold, or have settled elsewhere."""
        if self.kept:
            held = {offset for node in self.nodes.values() for one in node.consumers for offset in one.has()}
            self.loose |= held | self.settled - self.final
            self.waits.clear()
        self.led.manager.let_go(self.kept)
        self.kept = []

    def step(self) -> None:
        chance, node = self.chance, self.chance.choice(list(self.nodes.values()))
        what = chance.choices(("publish", "quiet", "twice", "join", "settle", "carry", "commit", "apply", "lead", "die",
                               "break", "let go", "hear"), (8, 4, 2, 2, 10, 14, 6, 4, 1, 0.3, 1, 1, 3))[0]
        if what == "publish":
            self.publishes(node)
        elif what == "quiet":
            self.published += 1
            queue = node.state.queue
            (queue.publish if queue.relay is None else queue.append_message)(b"$queue/" + queue.name,
                                                                            b"%d" % self.published)
        elif what == "twice":
            self.publishes(node, chance.choice(list(self.nodes.values())))
        elif what == "join" and len(node.consumers) < 3:
            node.consumers.append(Consumer(node, chance.randint(1, 4)))
        elif what == "settle" and node.consumers:
            self.settles(chance.choice(node.consumers))
        elif what == "carry":
            self.carry(0.5)
        elif what == "commit":
            self.turns()
            self.commit(chance.randint(0, len(self.pending)))
        elif what == "apply":
            self.applies(node, chance.randint(node.reached, len(self.log)))
        elif what == "lead" and node is not self.led:
            self.leads(node.name)
        elif what == "die":
            self.dies(node.name)
            if node.name == self.leader:
                self.leads(chance.choice(list(self.nodes)))
            self.comes_back(node.name)
        elif what == "break":
            wire = chance.choice(list(self.wires.values()))
            if wire.open:
                wire.lose()
            else:
                self.dial(wire)
        elif what == "let go":
            self.lets_go()
        elif what == "hear":
            node.hears(self.leader, self.term)
        self.turns()

    def settle_down(self) -> None:
        for _ in range(60):
            self.commit_all()
            if not self.carry():
                return
        raise AssertionError("the nodes go on for ever")

    def appended(self) -> dict[int, int]:
        """Offset -> number of the publish."""
        found: dict[int, int] = {}
        for records, _ in self.log:
            for kind, body in records_in(records):
                if kind == RecordKind.APPEND:
                    [message] = messages(body[8:])
                    found[message.offset] = int(message.payload)
        return found

    def ends(self) -> None:
        """Everything is whole again: what is there, and what was delivered."""
        for wire in self.wires.values():
            if not wire.open:
                self.dial(wire)
        for node in self.nodes.values():
            node.hears(self.leader, self.term)
        self.lets_go()
        self.settle_down()
        # The time of publishers is over. Relays may wait for each other: one for what it has sent to a former owner,
        # which waits for what that one has sent on to this node.
        for wire in self.wires.values():
            wire.outbox.give_up_before(wire.outbox.cut(), "the owner has not answered in time")
        self.settle_down()
        self.lets_go()
        for node in self.nodes.values():
            assert digest(node.manager, node.copy) == self.digests[len(self.log)] or node is self.led
            for consumer in node.consumers:
                consumer.group.leave(consumer.member)
        self.settle_down()
        drained = Consumer(self.led, 1 << 20)
        self.commit_all()
        payloads = self.appended()
        assert set(drained.held) | self.settled >= set(payloads), "a message is lost"
        assert not set(drained.held) & self.final, "what was settled comes again"
        there = list(payloads.values())
        for (number, _), outcome in self.outcomes.items():
            assert outcome is not None or number in there, f"{number} was confirmed, and is not there"
        unheard = {key for key in self.asked - self.outcomes.keys() if key[1] not in self.ended}
        assert not unheard, f"publishers wait for ever: {unheard}"
        for node in self.nodes.values():
            assert not [what for what in node.heard if "refused" in what], "a stream was closed"
            assert all(inbox.committed == inbox.position for inbox in node.inboxes.values()), "a frame is not answered"
        for number in self.twice:
            assert there.count(number) <= 1, f"{number} is there twice"
        assert len(there) == len(set(there)), "a message was appended twice"


def play(seed: int) -> World:
    world = World(seed)
    for _ in range(250):
        world.step()
    world.ends()
    return world


@pytest.mark.parametrize("seed", range(1, 41))
def test_a_queue_of_a_line_on_three_nodes(seed: int) -> None:
    play(seed)


def test_something_happens_in_these_histories() -> None:
    worlds = [play(seed) for seed in range(3000, 3006)]
    confirmed = sum(outcome is None for world in worlds for outcome in world.outcomes.values())
    assert confirmed > 100 and sum(len(world.settled) for world in worlds) > 40
    assert sum(len(world.final) for world in worlds) > 20
    assert sum(len(world.ended) for world in worlds) > 3


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 5000))
def test_a_queue_of_a_line_on_three_nodes_for_long(seed: int) -> None:
    play(seed)
