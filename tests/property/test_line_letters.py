"""Queues of two lines, on three nodes, die into each other: who leads either line changes, nodes die and come back with
nothing, links break and stand still, while messages are rejected, returned too often, expire and are dropped.

The test is both groups, as in test_line_history.py. Shown: a message of which the line has committed that it has died
is in its target once, and one of which it has not is still there; nothing is under way in the end; copies that have
applied the same are the same.
"""
from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from kit.peers import Wire
from oracle.stored import messages
from oracle.stored import records as records_in
from unit.lines_world import GROUP, LINES, QUEUES, LinesNode

from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.peer.queue_relay import QueueRelay
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.handover import Reserve
from fluxmq._core.queue.member import PyMember
from fluxmq.engine.queues.forwarding import is_under_way
from fluxmq.engine.queues.manager import QueueState
from fluxmq.engine.queues.recovery.snapshot import digest, snapshot
from fluxmq.engine.queues.relays import Attach

NAMES = ("a", "b", "c")
SOURCES = {name: spec.dead_letter_queue for name, (_, spec, _) in QUEUES.items() if spec.dlq.enabled}


class Consumer:
    """held: offsets that it has."""

    def __init__(self, node: LinesNode, name: str, room: int) -> None:
        self.node, self.name, self.held = node, name, list[int]()
        self.member = PyMember(self._deliver, self._lose, room)
        queue = self.state.queue
        node.manager.group(queue, GROUP).join(self.member)
        if isinstance(queue.relay, QueueRelay):
            asked = Attach(protocol="mqtt", client="c", group=GROUP)
            node.relays.attach(queue, self.member, asked, lambda answer: None)

    @property
    def state(self) -> QueueState:
        return self.node.state(self.name)

    def _deliver(self, log: int, offset: int, count: int) -> bool:
        assert offset not in self.held, f"{offset} comes to a consumer that has it"
        self.held.append(offset)
        return True

    def _lose(self, log: int, offset: int, count: int) -> None:
        self.held.remove(offset)

    def gives_up_one(self, chance: random.Random) -> None:
        """Most messages die of that."""
        if self.held:
            offset, log = self.held.pop(chance.randrange(len(self.held))), self.state.queue.logs[0].number
            if chance.random() < 0.7:
                by_offset.reject_at(self.group, log, offset, "rejected")
            else:
                by_offset.give_back_at(self.group, log, offset, 0, True)

    @property
    def group(self) -> Group:
        return self.state.groups[GROUP, b""]


class Replicated:
    """A line, as the group that the test plays. pending: what its leader has submitted and is not committed: (position,
    records, the line's time). log: what is. reached: by epoch of a node, how much its copies have applied."""

    def __init__(self, name: str, leader: str) -> None:
        self.name, self.leader = name, leader
        self.pending: list[tuple[int, bytes, int]] = []
        self.log: list[tuple[bytes, int]] = []
        self.reached: dict[int, int] = {}
        self.digests: dict[int, list[str]] = {}
        self.kept: list[tuple[Group, Reserve]] = []

    def submit(self, led: LinesNode) -> None:
        copies = led.lines[self.name]
        line_ms = copies.time
        position, records = copies.line.submit()
        if position:
            self.pending.append((position, records, line_ms))

    def commit(self, led: LinesNode | None, count: int) -> None:
        """led: None: the leader is dead."""
        for position, records, line_ms in self.pending[:count]:
            self.log.append((records, line_ms))
            if led is not None:
                led.lines[self.name].line.commit(position)
                self.applies(led, len(self.log))
        del self.pending[:count]

    def applies(self, node: LinesNode, upto: int) -> None:
        """Its copies apply the log up to there; whoever has applied as much has the same."""
        copies = node.lines[self.name]
        reached = self.reached.setdefault(node.epoch, 0)
        for records, line_ms in self.log[reached:upto]:
            copies.apply(records, line_ms)
            reached += 1
            if copies.following:        # a leader's copy has no messages: its queue has them
                ours = sorted(digest(node.manager, copy, line_ms) for copy in copies.queues.values())
                assert self.digests.setdefault(reached, ours) == ours, f"copies differ behind batch {reached}"
        self.reached[node.epoch] = max(reached, self.reached[node.epoch])

    def appended(self, led: LinesNode, name: str) -> Iterator[tuple[int, int]]:
        """(offset, number) of each message that was committed to a queue."""
        wanted = led.state(name).queue.logs[0].number.to_bytes(8, "big")
        for records, _ in self.log:
            for kind, body in records_in(records):
                if kind == RecordKind.APPEND and body[:8] == wanted:
                    [message] = messages(body[8:])
                    yield message.offset, int(message.payload)


class World:
    """chance: decides everything. ended: lives that are over. published: how many numbers were used."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.lives = self.published = self.led_anew = 0
        self.now_ms = 1_000_000
        self.nodes: dict[str, LinesNode] = {}
        self.wires: dict[tuple[str, str], Wire] = {}
        self.ended: set[int] = set()
        self.consumers: list[Consumer] = []
        self.groups = {line: Replicated(line, self.chance.choice(NAMES)) for line in LINES}
        for name in NAMES:
            self.born(name)
        for group in self.groups.values():
            self.nodes[group.leader].declare(group.name)
            for node in self.nodes.values():
                node.relays_of(group.name)
                node.hears(group.name, group.leader)
        self.commit_all()

    def led(self, line: str) -> LinesNode:
        return self.nodes[self.groups[line].leader]

    # ---------------------------------------------------------------- nodes and links

    def born(self, name: str) -> LinesNode:
        self.lives += 1
        node = self.nodes[name] = LinesNode(name, self.lives, lambda other: self.nodes[other].epoch
                                            if other in self.nodes else 0, NAMES.index(name))
        node.goes_on(self.now_ms)
        for other in [other for other in self.nodes if other != name]:
            for pair in ((name, other), (other, name)):
                self.wires[pair] = Wire(self.nodes[pair[0]], self.nodes[pair[1]])
                self.dial(self.wires[pair])
        return node

    @staticmethod
    def dial(wire: Wire) -> None:
        wire.dial()
        assert isinstance(wire.target, LinesNode)
        wire.target.listens_to(wire.source.name)

    def dies(self, name: str) -> None:
        """It is started again, with nothing; the others have heard that it is gone."""
        gone = self.nodes.pop(name)
        self.ended.add(gone.epoch)
        self.consumers = [one for one in self.consumers if one.node is not gone]
        for other, node in self.nodes.items():
            for pair in ((name, other), (other, name)):
                self.wires.pop(pair).open = False
            node.forgets(name)
            node.turn()
        for group in self.groups.values():
            if group.leader == name:
                self.leads(group, self.chance.choice(list(self.nodes)))
        node = self.born(name)
        self.commit_all()
        for group in self.groups.values():
            led = self.nodes[group.leader]
            for state in list(led.manager.queues.values()):
                if state.queue.line is led.lines[group.name].line:
                    node.lines[group.name].restore(snapshot(led.manager, state))
            group.reached[node.epoch] = len(group.log)
            node.relays_of(group.name)
            node.hears(group.name, group.leader)

    def turns(self) -> None:
        for node in self.nodes.values():
            node.turn()
            for group in self.groups.values():
                if group.leader == node.name:   # of one that has not had its turn a batch might be half of what belongs
                    group.submit(node)          # together

    def carry(self, share: float = 1.0) -> int:
        moved = 0
        for wire in self.wires.values():
            if wire.open and self.chance.random() < share:
                wire.idle()
                moved += wire.deliver(self.chance.choice((1, 2, 1 << 30)) if share < 1 else 1 << 30)
        return moved

    def time_passes(self) -> None:
        self.now_ms += 500
        for node in self.nodes.values():
            node.goes_on(self.now_ms)

    # ---------------------------------------------------------------- the groups

    def commit_all(self) -> None:
        for _ in range(30):
            self.turns()
            if not any(group.pending for group in self.groups.values()):
                break
            for group in self.groups.values():
                group.commit(self.nodes[group.leader], len(group.pending))
        for group in self.groups.values():
            for node in self.nodes.values():
                group.applies(node, len(group.log))

    def leads(self, group: Replicated, name: str) -> None:
        """Of what is pending a part is committed yet, as when it had reached others; the rest is given up."""
        self.led_anew += 1
        former = self.nodes.get(group.leader)
        if former is not None:
            former.turn()
            group.submit(former)
        group.commit(former, self.chance.randint(0, len(group.pending)))
        group.pending.clear()
        if former is not None:
            former.lines[group.name].line.give_up("another leads")
            former.lines[group.name].follow()
        new = self.nodes[name]
        group.applies(new, len(group.log))
        group.kept = new.lines[group.name].lead(self.ended.__contains__)
        group.leader = name
        if former is not None and self.chance.random() < 0.7:
            former.hears(group.name, name)

    # ---------------------------------------------------------------- clients

    def publishes(self, node: LinesNode) -> None:
        self.published += 1
        expires_at = node.hub.steady_ms + 400 if self.chance.random() < 0.2 else 0
        node.state(self.chance.choice(list(SOURCES))).queue.publish(b"$queue/x", b"%d" % self.published,
                                                                   expires_at=expires_at)

    def step(self) -> None:
        chance, node = self.chance, self.chance.choice(list(self.nodes.values()))
        group = chance.choice(list(self.groups.values()))
        what = chance.choices(("publish", "join", "give up", "carry", "commit", "apply", "lead", "die", "break",
                               "let go", "hear", "time"), (14, 3, 14, 14, 8, 4, 1.5, 0.3, 1, 1, 3, 2))[0]
        if what == "publish":
            self.publishes(node)
        elif what == "join" and len(self.consumers) < 6:
            self.consumers.append(Consumer(node, chance.choice(list(SOURCES)), chance.randint(1, 4)))
        elif what == "give up" and self.consumers:
            chance.choice(self.consumers).gives_up_one(chance)
        elif what == "carry":
            self.carry(0.5)
        elif what == "commit":
            self.turns()
            group.commit(self.nodes[group.leader], chance.randint(0, len(group.pending)))
        elif what == "apply":
            group.applies(node, chance.randint(group.reached[node.epoch], len(group.log)))
        elif what == "lead" and node.name != group.leader:
            self.leads(group, node.name)
        elif what == "die":
            self.dies(node.name)
        elif what == "break":
            wire = chance.choice(list(self.wires.values()))
            if wire.open:
                wire.lose()
            else:
                self.dial(wire)
        elif what == "let go":
            self.nodes[group.leader].manager.let_go(group.kept)
            group.kept = []
        elif what == "hear":
            node.hears(group.name, group.leader)
        elif what == "time":
            self.time_passes()
        self.turns()

    def settle_down(self) -> None:
        for _ in range(200):
            self.commit_all()
            if not self.carry() and not any(state.queue.waiting for node in self.nodes.values()
                                            for state in node.manager.queues.values()
                                            if state.here and is_under_way(state.queue.name)):
                return
            self.time_passes()
        raise AssertionError("letters are under way for ever")

    def ends(self) -> None:
        """Everything is whole again: where is each message?"""
        for wire in self.wires.values():
            if not wire.open:
                self.dial(wire)
        for group in self.groups.values():
            for node in self.nodes.values():
                node.hears(group.name, group.leader)
            self.nodes[group.leader].manager.let_go(group.kept)
        for _ in range(2):      # relays may wait for each other: the publishers' time is over, as in test_line_history
            for _ in range(10):
                self.commit_all()
                self.carry()
                self.time_passes()
            for wire in self.wires.values():
                wire.outbox.give_up_before(wire.outbox.cut(), "the owner has not answered in time")
        self.settle_down()
        for one in self.consumers:
            one.group.leave(one.member)
        for group in self.groups.values():
            self.nodes[group.leader].manager.let_go(group.kept)
        self.settle_down()
        drained = {name: Consumer(self.led(QUEUES[name][0]), name, 1 << 20) for name in SOURCES}
        self.settle_down()
        self.check({name: set(one.held) for name, one in drained.items()})

    def check(self, left: dict[str, set[int]]) -> None:
        """left: offsets that are in each queue still."""
        dead = {name: [number for _, number in self.groups[QUEUES[name][0]].appended(self.led(QUEUES[name][0]), name)]
                for name in set(SOURCES.values())}
        wanted: dict[str, list[int]] = {name: [] for name in dead}
        for name, target in SOURCES.items():
            line = QUEUES[name][0]
            wanted[target] += [number for offset, number in self.groups[line].appended(self.led(line), name)
                               if offset not in left[name]]
        for name, numbers in wanted.items():
            assert set(dead[name]) >= set(numbers), f"{set(numbers) - set(dead[name])} have died, and are not in {name}"
            assert set(dead[name]) <= set(numbers), f"{set(dead[name]) - set(numbers)} are in {name}, and live"
            assert len(dead[name]) == len(set(dead[name])), f"in {name} something is there twice: {sorted(dead[name])}"
        self.died = sum(map(len, dead.values()))


def play(seed: int) -> World:
    world = World(seed)
    for _ in range(250):
        world.step()
    world.ends()
    return world


@pytest.mark.parametrize("seed", range(1, 41))
def test_queues_of_two_lines_die_into_each_other(seed: int) -> None:
    play(seed)


def test_something_dies_in_these_histories() -> None:
    worlds = [play(seed) for seed in range(3000, 3006)]
    assert sum(world.died for world in worlds) > 100
    assert sum(world.led_anew for world in worlds) > 20 and sum(len(world.ended) for world in worlds) > 3


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 5000))
def test_queues_of_two_lines_die_into_each_other_for_long(seed: int) -> None:
    play(seed)
