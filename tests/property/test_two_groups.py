"""Two queues, each of a line of its own, which the same three nodes follow: histories as in test_line_history, in which
one line stands still for long while the other goes on. Its publishers, consumers and settlements never wait for the one
that stands still: neither for what it has not committed, nor for room in the window.
"""
from __future__ import annotations

from typing import Any, cast

import pytest
from property.test_line_history import NAMES, Consumer, LineNode, World
from unit.test_queue_channels import Groups
from unit.test_queue_relay import IDENTITY

from fluxmq.engine.queues.manager import QueueState
from fluxmq.engine.queues.recovery.line import QueueLine
from fluxmq.model.queues import QueueSpec

SPECS = QueueSpec(name="q0"), QueueSpec(name="q1")
GROUPS = {b"q0": 10, b"q1": 11}
LATER = {10: 20, 11: 21, 20: 10, 21: 11}       # a node hears that the queue is another group's
STUCK, GOES = 0, 1


class Replica:
    """A node, as one of the two groups sees it: the queue of the group, and its line. Else it is the node."""

    def __init__(self, node: LineNode, at: int) -> None:
        self.node, self.spec = node, SPECS[at]
        self.line = node.hub.commits.open_line(f"group {at}")
        self.copies = QueueLine(node.manager, self.line, hands=node.hands)
        self.heard_of, self.term, self.reached, self.consumers = "", 0, 0, list[Any]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.node, name)

    @property
    def state(self) -> QueueState:
        return self.node.manager.queues[self.spec.address]

    @property
    def copy(self) -> QueueState:
        [copy] = self.copies.queues.values()
        return copy

    def hears(self, leader: str, term: int) -> None:
        if leader != self.node.name and self.state.queue.relay is not None:
            if term != self.term:
                self.node.defined.set_owner(self.state, None)
            self.node.defined.set_owner(self.state, leader)
        self.heard_of, self.term = leader, term


class Half(World):
    """One of the groups: what it decides, and its clients. Nodes and links are those of both."""

    def __init__(self, both: TwoWorlds, at: int) -> None:
        self.both, self.at, self.still = both, at, False
        self.spec, self.identity = SPECS[at], IDENTITY + at
        both.halves.append(self)
        super().__init__(both.chance.randrange(1 << 30))

    def begin(self) -> None:
        self.mode, self.wires = "shared", self.both.wires
        super().begin()

    def born(self, name: str) -> LineNode:
        replica = self.nodes[name] = cast(LineNode, Replica(self.both.nodes[name], self.at))
        return replica

    def dies(self, name: str) -> None:
        self.both.dies_and_comes_back(name)

    def comes_back(self, name: str) -> None:
        """It has, with both groups."""

    def turns(self) -> None:
        self.both.turns()

    def step(self) -> None:
        if self.chance.random() < 0.01:
            replica = self.chance.choice(list(self.nodes.values()))
            name = self.spec.name.encode()
            replica.groups[name] = LATER[replica.groups[name]]
            if replica.heard_of:
                replica.hears(replica.heard_of, replica.term)
        super().step()

    def commit(self, count: int) -> None:
        super().commit(0 if self.still else count)

    def commit_all(self) -> None:
        """What a node must have that comes back is committed in any case."""
        still, self.still = self.still, False
        super().commit_all()
        self.still = still

    def waiting(self) -> set[tuple[int, int]]:
        """Publishes that were not answered, of nodes that are there."""
        return {key for key in self.asked - self.outcomes.keys() if key[1] not in self.ended}

    def unsettled(self) -> int:
        """Settlements that the leader may not have committed, as far as other nodes know."""
        mine = GROUPS[self.spec.name.encode()]
        return sum(one.relay.replication_group in (mine, LATER[mine])
                   for node in self.both.nodes.values() for outbox in node.outboxes.values()
                   for number, _ in outbox.settlements() if (one := outbox.members.get(number)) is not None)


class TwoWorlds(World):
    """Three nodes, and two groups of them."""

    def __init__(self, seed: int) -> None:
        self.halves: list[Half] = []
        self.ended: set[int] = set()
        super().__init__(seed)

    def begin(self) -> None:
        for name in NAMES:
            self.born(name)
        for at in range(2):
            Half(self, at)

    def born(self, name: str) -> LineNode:
        self.mode = "shared"
        node = super().born(name)
        node.groups.update(GROUPS)
        return node

    def turns(self) -> None:
        for node in list(self.nodes.values()):
            node.turn()
        for half in self.halves:
            if half.nodes:
                half.submit()

    def hears_of_death(self, node: LineNode, name: str) -> None:
        for half in self.halves:
            half.hears_of_death(half.nodes[node.name], name)

    def dies_and_comes_back(self, name: str) -> None:
        epoch = self.nodes[name].epoch
        for half in self.halves:
            half.nodes.pop(name)
            half.ended.add(epoch)
        self.dies(name)
        for half in self.halves:
            if half.leader == name:
                half.leads(self.chance.choice(list(self.nodes)))
        self.born(name)
        for half in self.halves:
            World.comes_back(half, name)

    def step(self) -> None:
        """One of the two does something."""
        self.chance.choice(self.halves).step()

    def is_quiet(self, goes: Half) -> None:
        """Until nothing moves any more, though only one group commits."""
        for _ in range(60):
            for _ in range(3):
                self.turns()
                goes.commit(len(goes.pending))
            for node in goes.nodes.values():
                goes.applies(node, len(goes.log))
            if not self.carry():
                return
        raise AssertionError("the nodes go on for ever")

    def heals(self, goes: Half) -> None:
        """Links are there again, everybody knows who leads, and the time of publishers is over."""
        for wire in self.wires.values():
            if not wire.open:
                self.dial(wire)
        for half in self.halves:
            for node in half.nodes.values():
                node.hears(half.leader, half.term)
            half.lets_go()
        for _ in range(2):
            self.is_quiet(goes)
            for wire in self.wires.values():
                wire.outbox.give_up_before(wire.outbox.cut(), "the owner has not answered in time")
        self.is_quiet(goes)


def calm(world: TwoWorlds, stuck: Half, goes: Half) -> tuple[int, int]:
    """Nothing fails, and only one group commits. Returns how many publishes of either were confirmed."""
    before = [len(half.asked) for half in (stuck, goes)]
    known = [set(half.outcomes) for half in (stuck, goes)]
    for _ in range(world.chance.randint(5, 40)):
        for half in (stuck, stuck, goes):
            one = world.chance.choice(list(half.nodes.values()))
            half.publishes(one)
            if one.consumers:
                half.settles(world.chance.choice(one.consumers))
            elif world.chance.random() < 0.3:
                one.consumers.append(Consumer(one, 4))
        world.turns()
        world.carry()
        goes.commit(len(goes.pending))
    world.is_quiet(goes)
    assert not goes.waiting(), "publishers wait for the other group"
    assert not goes.unsettled(), "settlements wait for the other group"
    new = [[half.outcomes[key] for key in half.outcomes.keys() - old]
           for half, old in zip((stuck, goes), known, strict=True)]
    assert new[1] == [None] * (len(goes.asked) - before[1]), "a publish was refused"
    assert None not in new[0], "a publish was confirmed by the other group"
    return len(stuck.waiting()), len(new[1])


def play(seed: int) -> tuple[int, int, TwoWorlds]:
    """Returns also how many publishes waited in vain, and were confirmed meanwhile, in the calm stretches."""
    world = TwoWorlds(seed)
    waited = confirmed = 0
    for _ in range(3):
        stuck, goes = world.chance.sample(world.halves, 2)
        stuck.still = world.chance.random() < 0.5
        for _ in range(70):
            world.step()
        stuck.still = True
        world.heals(goes)
        more = calm(world, stuck, goes)
        waited, confirmed = waited + more[0], confirmed + more[1]
        stuck.still = False
    goes.ends()
    stuck.ends()
    return waited, confirmed, world


@pytest.mark.parametrize("seed", range(1, 31))
def test_two_groups_on_three_nodes(seed: int) -> None:
    play(seed)


def test_something_happens_in_these_histories() -> None:
    played = [play(seed) for seed in range(3000, 3005)]
    assert sum(waited for waited, _, _ in played) > 100 and sum(confirmed for _, confirmed, _ in played) > 100
    halves = [half for _, _, world in played for half in world.halves]
    assert sum(len(half.settled) for half in halves) > 40 and sum(len(half.final) for half in halves) > 20
    assert sum(len(half.ended) for half in halves) > 3


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 3000))
def test_two_groups_on_three_nodes_for_long(seed: int) -> None:
    play(seed)


# ---------------------------------------------------------------- how long it takes

WINDOW = 1 << 18
TICK_MS = 5
COMMITS_AFTER = 2           # ticks
STILL_MS = 60_000


def latencies(still: bool) -> tuple[list[int], int]:
    """How many ms of simulated time each confirm and each awaited settlement of one group took, while the other one
    stands still for a minute (or does not); and how many publishes were made to that one. Publishers are not read while
    their channel is full, or the window."""
    pair = Groups(window_bytes=WINDOW)
    took: list[int] = []
    under_way: list[list[tuple[int, int]]] = [[], []]       # of each line: (tick, position)
    published = 0
    done: set[Any] = set()
    asked: dict[Any, int] = {}
    seen = 0
    for tick in range(STILL_MS // TICK_MS):
        for node in (pair.a, pair.b):
            node.now_ms += TICK_MS
        for at in range(2):
            if pair.channel(at).waiting_bytes >= WINDOW // 4 or pair.outbox.unacknowledged_bytes >= WINDOW:
                continue
            published += at == STUCK
            asked[at, tick] = tick
            pair.send(at, (at, tick), bytes(300))
        for at, offset in pair.came[seen:]:
            asked[at, "settled", offset] = tick
            pair.settle(at, offset, (at, "settled", offset))
        seen = len(pair.came)
        pair.a.turn()
        pair.there.idle()
        pair.there.deliver()
        pair.b.turn()
        for at, line in enumerate(pair.lines):
            position, _ = line.submit()
            if position:
                under_way[at].append((tick, position))
            while under_way[at] and under_way[at][0][0] + COMMITS_AFTER <= tick and not (still and at == STUCK):
                line.commit(under_way[at].pop(0)[1])
        pair.b.turn()
        pair.back.idle()
        pair.back.deliver()
        pair.a.turn()
        pair.a.to("b").send_ack()
        for key, why in pair.heard:
            assert why is None
            done.add(key)
            if key[0] == GOES:
                took.append((tick - asked[key]) * TICK_MS)
        pair.heard.clear()
    late = [key for key, began in asked.items() if key[0] == GOES and key not in done and began < tick - 10]
    assert not late, f"{len(late)} were not answered"
    pair.decide(STUCK)
    pair.end()
    return sorted(took), published


def test_a_group_that_stands_still_for_a_minute_does_not_slow_the_other_one_down() -> None:
    (alone, often), (beside, seldom) = latencies(False), latencies(True)
    assert len(beside) > 0.99 * len(alone) > 10_000 and often > 10 * seldom > 0
    assert beside[len(beside) * 99 // 100] <= 2 * alone[len(alone) * 99 // 100]
