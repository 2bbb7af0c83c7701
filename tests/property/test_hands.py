"""A queue changes hands between three instances, whose group a line of the test plays: relay, following, leading,
following … (engine/queues/hands.py), with consumers on every node.

After each turn all that follow know what the leader knows; nothing is lost, and nothing that the leader has settled
comes again. That other nodes' consumers get messages over streams is not part of it: see simulator/cluster.
"""
from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from kit.definer import defined
from oracle.stored import journal_record
from oracle.stored import records as records_in
from property.test_queue_group import SMOKE, SOAK, START_MS

from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.errors import CorruptError, UsageError
from fluxmq._core.hub.hub import Hub
from fluxmq._core.peer.queue_relay import QueueRelay
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.handover import Reserve
from fluxmq._core.queue.member import PyMember
from fluxmq._core.testing.probes import claims_of, live_objects, pump_queues
from fluxmq.cluster.solo import solo
from fluxmq.engine.queues.hands import NEXT, Event, Hand, Hands, hand_of
from fluxmq.engine.queues.manager import QueueManager, QueueState
from fluxmq.engine.queues.recovery.line import QueueLine
from fluxmq.engine.queues.recovery.snapshot import digest, snapshot
from fluxmq.engine.queues.relays import Hosts, Relays
from fluxmq.model.queues import QueueSpec

NODES = 3
YEAR_MS = 365 * 24 * 3600 * 1000
IDENTITY = 77
GROUPS = (b"a", b"b")


class _Host:
    """Of a protocol: nobody is the only consumer, and whoever comes from a relay needs nothing."""

    def leads(self, queue: Any, member: Any) -> bool:
        return False

    def adopt_member(self, queue: Any, member: Any, asked: Any) -> None:
        pass


class Node:
    """An instance, with the queue as this node's clients see it, and what it stores of the line."""

    def __init__(self, number: int, spec: QueueSpec) -> None:
        self.hub = Hub(None)
        self.ahead_ms = (10, 25, 0)[number] * YEAR_MS       # its clocks, by which it is ten years ahead of the last one
        self.set_clock(START_MS)
        self.hub.begin_identities(number + 1)
        for at in range(number):
            self.hub.namespaces.add(b"only here %d" % at)
        self.hub.namespaces.add(b"tenant")
        self.manager = QueueManager(self.hub, cluster=solo())
        self.relays, hosts = Relays(), Hosts(self.hub)
        hosts.protocols |= {"mqtt": _Host(), "amqp": _Host()}       # type: ignore[dict-item]
        self.manager.reads.connect(self.relays, hosts)
        self.hands = Hands(self.manager, self.relays, hosts.protocols)
        self.line = self.hub.commits.open_line("group 7")
        self.copies = self.new_copies()
        self.spec = spec
        # Of these, what it is committed that they are held.
        self.sent: dict[bytes, set[tuple[int, int]]] = {name: set() for name in GROUPS}
        # Whether a message is kept for a consumer of another node.
        self.is_kept: Callable[[bytes, tuple[int, int]], bool] = lambda name, place: False
        self.numbers: dict[int, int] = {}       # number of a log -> which of the queue's it is
        self.members: dict[bytes, list[PyMember]] = {name: [] for name in GROUPS}
        self.held: dict[bytes, set[tuple[int, int]]] = {name: set() for name in GROUPS}     # (log in the queue, offset)
        self.ever_held: dict[bytes, set[tuple[int, int]]] = {name: set() for name in GROUPS}    # in this life

    def set_clock(self, now: int) -> None:
        self.hub.set_clock(now + self.ahead_ms, now - START_MS, self.ahead_ms)

    def new_copies(self) -> QueueLine:
        return QueueLine(self.manager, self.line, hands=self.hands)

    @property
    def state(self) -> QueueState:
        return self.manager.queues[self.spec.address]

    def join(self, name: bytes, room: int) -> None:
        queue = self.state.queue
        group = self.manager.group(queue, name)

        def place(log: int, offset: int) -> tuple[int, int]:
            return self.numbers[log], offset

        def deliver(log: int, offset: int, deliveries: int) -> bool:
            # The queue may have the relay's logs, which have other numbers, when something is taken back.
            self.numbers = {one.number: at for at, one in enumerate(self.state.queue.logs)}
            assert place(log, offset) not in self.held[name], f"{offset} comes to a node that holds it"
            assert not self.is_kept(name, place(log, offset)), f"{offset} is kept for another node"
            self.held[name].add(place(log, offset))
            self.ever_held[name].add(place(log, offset))
            return True

        def lost(log: int, offset: int, deliveries: int) -> None:
            if log in self.numbers:     # else it is a relay's, and the node dies
                self.held[name].discard(place(log, offset))

        self.members[name].append(PyMember(deliver, lost, room, 0))
        group.join(self.members[name][-1])

    def pump(self) -> None:
        while pump_queues(self.hub):
            pass

    def dies(self) -> None:
        """And is started again, without consumers."""
        self.hub.begin_identities(self.hub.ledger.life + NODES)
        for members in self.members.values():
            for member in members:
                if member.group is not None:
                    member.group.leave(member)
            members.clear()
        for places in (*self.held.values(), *self.sent.values(), *self.ever_held.values()):
            places.clear()


class HandsMachine(RuleBasedStateMachine):
    """leader: index of the node that decides. settled: by group, what the leader has settled."""

    @initialize(lanes=st.sampled_from((0, 2)), partitions=st.integers(1, 2),
                kind=st.sampled_from(("classic", "stream")))
    def make(self, lanes: int, partitions: int, kind: str) -> None:
        self.now = START_MS
        spec = QueueSpec(name="q", type=kind, namespace="tenant", partitions=partitions,   # type: ignore[arg-type]
                         max_priority=lanes if kind == "classic" else 0)
        self.kind = kind
        self.nodes = [Node(number, spec) for number in range(NODES)]
        for node in self.nodes:
            node.is_kept = lambda name, place: self.keeping and any(
                place in other.held[name] & other.sent[name] for other in self.nodes)
        self.leader = 0
        first, *others = self.nodes
        queue = first.manager.declare(spec, first.line)[0]
        defined(first.manager).identify(spec.address, IDENTITY)
        first.copies.lead()
        first.copies.note(first.state)
        assert hand_of(first.state) is Hand.LEADING and first.state.queue is queue
        for node in others:
            node.manager.make_relay(spec, None, IDENTITY)
            assert hand_of(node.state) is Hand.RELAY
        self.queues = [node.state.queue for node in self.nodes]
        self.line_ms = 0
        self.published = self.fresh = 0     # those that are committed, and those that are not
        self.kept: list[tuple[Group, Reserve]] = []
        self.keeping = False
        self.ended: set[int] = set()        # lives of nodes
        self.settled: dict[bytes, set[tuple[int, int]]] = {name: set() for name in GROUPS}
        self.undecided: dict[bytes, set[tuple[int, int]]] = {name: set() for name in GROUPS}
        self.turn()

    @property
    def led(self) -> Node:
        return self.nodes[self.leader]

    @rule()
    def turn(self) -> None:
        """What the leader has decided is committed and applied, and all are equal."""
        self.led.pump()
        queue = self.led.state.queue
        wanted = digest(self.led.manager, self.led.state)
        line_ms = self.led.copies.time
        position, records = self.led.line.submit()
        if position:
            self.led.line.commit(position)
        for node in self.nodes:
            node.copies.apply(records, line_ms)
            assert node.copies.time == line_ms >= self.line_ms, "the line's clock"
            if node is not self.led:
                assert digest(node.manager, node.copies.queues[queue.number]) == wanted
        assert not any(log.retained_count for log in self.led.state.logs), "what is committed is still kept"
        self.line_ms = line_ms
        self.published, self.fresh = self.published + self.fresh, 0
        for name, places in self.undecided.items():
            self.settled[name] |= places
            places.clear()
        for name, places in self.led.held.items():
            self.led.sent[name] = set(places)
        assert [node.state.queue for node in self.nodes] == self.queues, "a queue is another object"
        for node in self.nodes:
            copy = node.copies.queues[queue.number].queue
            assert copy not in node.hub.owned.values() and copy is not node.state.queue
            if node is self.led:
                assert hand_of(node.state) is Hand.LEADING
            else:
                assert isinstance(node.state.queue.relay, QueueRelay)

    @rule(count=st.integers(1, 4), delay=st.sampled_from((0, 0, 20, 80)), priority=st.integers(0, 2),
          expiry=st.sampled_from((0, 0, 60, 500)))
    def publish(self, count: int, delay: int, priority: int, expiry: int = 0) -> None:
        for _ in range(count):
            self.fresh += 1
            assert self.led.state.queue.append_message(
                b"$queue/q", b"%d" % (self.published + self.fresh), priority=priority,
                not_before=self.led.hub.steady_ms + delay if delay and self.kind == "classic" else 0,
                expires_at=self.led.hub.steady_ms + expiry if expiry and not delay else 0) == 0

    @rule(sequence=st.integers(1, 9))
    def produce(self, sequence: int) -> None:
        """Which sequences of a producer were appended, everybody concludes from its messages."""
        self.turn()
        for node in self.nodes:
            node.copies.queues[self.led.state.queue.number].note_produced(b"p", (sequence, 1))
        self.led.state.note_produced(b"p", (sequence, 1))

    @rule(ms=st.integers(1, 100))
    def time_goes_by(self, ms: int) -> None:
        self.now += ms
        for node in self.nodes:
            node.set_clock(self.now)
        for group in self.led.state.groups.values():
            group.tick()
        self.led.state.queue.notify()

    @rule(at=st.integers(0, NODES - 1), name=st.sampled_from(GROUPS), room=st.integers(1, 5))
    def join(self, at: int, name: bytes, room: int) -> None:
        if self.kind == "classic":
            self.nodes[at].join(name, room)
            self.led.pump()

    @rule(at=st.integers(0, NODES - 1), name=st.sampled_from(GROUPS), which=st.floats(0, 1), back=st.booleans())
    def settle(self, at: int, name: bytes, which: float, back: bool) -> None:
        """A consumer at any node is done with a message, or gives it back. What one does whose node does not lead, its
        relay keeps for the owner, whom nobody names here."""
        node = self.nodes[at]
        if not node.held[name]:
            return
        index, offset = sorted(node.held[name])[int(which * (len(node.held[name]) - 1))]
        group, log = node.state.groups[name, b""], node.state.queue.logs[index].number
        node.held[name].discard((index, offset))
        if back:
            by_offset.give_back_at(group, log, offset, 0, True)
        elif by_offset.settle_at(group, log, offset) and node is self.led:
            self.undecided[name].add((index, offset))

    @rule(to=st.integers(0, NODES - 1), keep=st.booleans(), undo=st.booleans(), pump=st.booleans(), dies=st.booleans())
    def another_leads(self, to: int, keep: bool, undo: bool, pump: bool, dies: bool = False) -> None:
        """keep: what is kept for consumers of other nodes stays so for a while. undo: what the leader has decided since
        the last turn is not committed. dies: the leader's life has ended, and its consumers are gone."""
        if to == self.leader:
            return
        former, new = self.led, self.nodes[to]
        if undo:
            if pump:
                former.pump()
            former.state.note_produced(b"p", (99, 1))
            former.line.give_up("another leads")
            self.fresh = 0
            for places in self.undecided.values():
                places.clear()
        if not undo:
            self.turn()
        if former.line.undecided:
            former.line.give_up("another leads")
        self.changes(former, Event.FOLLOW, former.copies.follow)
        number, = former.copies.queues
        follower = next(node for node in self.nodes if node is not former)
        assert digest(former.manager, former.copies.queues[number]) == digest(follower.manager,
                                                                              follower.copies.queues[number])
        ours, theirs = (node.copies.queues[number].logs for node in (former, follower))
        assert [(log.first, log.next, log.kept_bytes) for log in ours] == [
            (log.first, log.next, log.kept_bytes) for log in theirs]
        for node in (former, follower):     # a node that has led has a dead-letter queue, too
            states = [*node.manager.states.values(), *node.copies.queues.values()]
            assert node.hub.namespaces[b"tenant"].bytes == sum(log.kept_bytes for state in states for log in state.logs)
        ends = [log.next for log in follower.copies.queues[number].queue.logs]
        assert all(offset < ends[index] for held in former.held.values() for index, offset in held)
        assert former.line.submit() == (0, b"")
        assert not any(isinstance(member, Reserve) for group in former.state.groups.values()
                       for member in group.pullers), "what is kept for others has become a consumer"
        self.kept.clear()
        self.keeping = True
        if dies:
            self.ended.add(former.hub.ledger.life)
            former.dies()
        self.changes(new, Event.TAKE, lambda: self.kept.extend(new.copies.lead(self.ended.__contains__)))
        self.leader = to
        self.nothing_else_is_kept()
        if not keep:
            self.let_go()
        self.turn()

    def nothing_else_is_kept(self) -> None:
        """What the new leader keeps is what a consumer of another node may hold, and what was given back is ready."""
        for name in GROUPS:
            group = self.led.state.groups.get((name, b""))
            claims = claims_of(group) if group is not None else {}
            numbers = {log.number: at for at, log in enumerate(self.led.state.queue.logs)}
            reserved = {(numbers[log], offset) for (log, offset), claim in claims.items() if claim[0] == "held"}
            others = set().union(*(node.ever_held[name] for node in self.nodes if node is not self.led))
            assert reserved - self.led.held[name] <= others

    def changes(self, node: Node, event: Event, what: Any) -> None:
        hand = hand_of(node.state)
        what()
        assert hand_of(node.state) is NEXT[hand, event]

    @rule()
    def let_go(self) -> None:
        """The leader says so by a RETURN, so the next one does not keep it either."""
        if self.keeping:
            for node in self.nodes:
                for places in node.sent.values() if node is not self.led else ():
                    places.clear()
        self.led.manager.let_go(self.kept)
        self.kept.clear()
        self.keeping = False

    @rule()
    def too_early(self) -> None:
        """Nothing changes while something is not committed, and nobody leads twice."""
        self.publish(1, 0, 0)
        with pytest.raises(UsageError, match="not decided"):
            self.led.copies.follow()
        with pytest.raises(UsageError, match="is led here"):
            self.led.copies.lead()
        with pytest.raises(UsageError, match="it cannot take"):
            self.led.hands.take(self.led.state, None)       # type: ignore[arg-type]
        for node in self.nodes:
            if node is not self.led:
                with pytest.raises(UsageError, match="not led here"):
                    node.copies.follow()
        assert hand_of(self.led.state) is Hand.LEADING

    @rule(at=st.integers(0, NODES - 1))
    def a_copy_is_made_anew(self, at: int) -> None:
        """From a snapshot: it was lost, or fell too far behind."""
        node = self.nodes[at]
        if node is self.led:
            return
        self.turn()
        raw = snapshot(self.led.manager, self.led.state)
        node.copies.clear()
        node.copies = node.new_copies()
        node.copies.restore(raw)

    def teardown(self) -> None:
        if not hasattr(self, "nodes"):
            return
        self.let_go()
        self.time_goes_by(1000)
        self.turn()
        self.turn()
        led = self.led
        assert sum(log.next & ((1 << 56) - 1) for log in led.state.queue.logs) == self.published
        if self.kind == "stream":
            return
        for name in GROUPS:
            group = led.manager.group(led.state.queue, name)
            there = {(index, offset) for index, log in enumerate(led.state.queue.logs)
                     for offset in range(log.first, log.next) if log.get(offset) is not None}
            again = {(index, offset) for index, offset in self.settled[name]
                     if (index, offset) in there and not by_offset.is_settled(group, led.state.queue.logs[index].number,
                                                                              offset)}
            assert not again, f"settled, and there again: {again}"
            before = set(led.held[name])
            led.join(name, 100_000)
            led.pump()
            assert before <= led.held[name]
            waiting = {place for place, claim in claims_of(group).items() if claim[0] == "ready"}
            assert not waiting, f"nobody gets {waiting}"


def test_a_queue_changes_hands() -> None:
    run_state_machine_as_test(HandsMachine, settings=settings(SMOKE, max_examples=150))


def test_a_copy_that_could_not_be_made_is_made_the_next_time() -> None:
    machine = HandsMachine()
    machine.make(lanes=0, partitions=1, kind="classic")
    machine.another_leads(1, keep=False, undo=False, pump=False)        # so that the first one's relay has a copy
    machine.publish(2, 0, 0)
    machine.turn()
    node, raw = machine.nodes[0], snapshot(machine.led.manager, machine.led.state)
    assert hand_of(node.state) is Hand.FOLLOWING
    torn = b"".join(journal_record(kind, body[:20] if kind == RecordKind.APPEND else body)
                    for kind, body in records_in(raw))
    with pytest.raises(CorruptError):
        node.copies.restore(torn)
    assert hand_of(node.state) is Hand.RELAY
    with pytest.raises(CorruptError, match="no snapshot"):
        node.copies.restore(raw[:-1])
    node.copies.restore(raw)
    assert hand_of(node.state) is Hand.FOLLOWING
    machine.turn()
    machine.another_leads(0, keep=False, undo=False, pump=False)


def test_what_a_consumer_holds_on_is_its_again_for_the_next_leader() -> None:
    """The one in between had let it go, and the line says so; the consumer has it still when its node leads again."""
    machine = HandsMachine()
    machine.make(lanes=0, partitions=1, kind="classic")
    machine.join(0, b"a", 1)
    machine.publish(1, 0, 0)
    machine.turn()
    machine.another_leads(1, keep=False, undo=False, pump=False)
    machine.another_leads(0, keep=False, undo=False, pump=False)
    assert machine.nodes[0].held[b"a"] == {(0, 0)}
    machine.another_leads(2, keep=True, undo=False, pump=False)
    machine.join(2, b"a", 1)
    machine.turn()
    assert not machine.nodes[2].held[b"a"] and machine.kept, "a consumer of another node holds it"
    machine.let_go()
    machine.turn()
    assert machine.nodes[2].held[b"a"] == {(0, 0)}


@pytest.mark.parametrize("dies", [False, True])
def test_what_consumers_of_a_node_that_has_died_held_is_ready_at_once(dies: bool) -> None:
    machine = HandsMachine()
    machine.make(lanes=0, partitions=1, kind="classic")
    machine.join(0, b"a", 2)
    machine.publish(2, 0, 0)
    machine.turn()
    machine.join(1, b"a", 5)
    machine.another_leads(1, keep=True, undo=False, pump=False, dies=dies)
    machine.turn()
    assert machine.led.held[b"a"] == ({(0, 0), (0, 1)} if dies else set())


def test_what_a_consumer_settled_while_its_node_followed_is_settled_when_it_leads_again() -> None:
    machine = HandsMachine()
    machine.make(lanes=0, partitions=1, kind="classic")
    machine.join(0, b"a", 5)
    machine.publish(3, 0, 0)
    machine.turn()
    machine.another_leads(1, keep=True, undo=False, pump=False)
    machine.settle(0, b"a", 0.0, back=False)
    machine.settle(0, b"a", 0.0, back=True)
    first, node = machine.nodes[1].state.groups[b"a", b""], machine.nodes[0]
    assert node.held[b"a"] == {(0, 2)} and len(claims_of(first)) == 3
    machine.another_leads(0, keep=False, undo=False, pump=False)
    group, log = node.state.groups[b"a", b""], node.state.queue.logs[0].number
    assert [by_offset.is_settled(group, log, offset) for offset in range(3)] == [True, False, False]
    assert node.held[b"a"] == {(0, 1), (0, 2)}     # the second was given back, and has come again
    machine.teardown()


def test_what_is_not_committed_is_taken_back() -> None:
    """What all groups have settled and the log has let go, what has come since and is in hand, who has produced it."""
    machine = HandsMachine()
    machine.make(lanes=0, partitions=1, kind="classic")
    machine.join(0, b"a", 5)
    machine.turn()
    machine.publish(3, 0, 0)
    first = machine.nodes[0]
    first.pump()
    position, records = first.line.submit()
    for _ in range(3):
        machine.settle(0, b"a", 0.0, back=False)
    first.pump()
    first.line.commit(position)         # what came before the settlements
    for node in machine.nodes:
        node.copies.apply(records)
    machine.published, machine.fresh = 3, 0
    log = first.state.queue.logs[0]
    assert (log.first, log.next, log.retained_count) == (3, 3, 1)
    machine.publish(2, 0, 0)
    first.pump()
    assert first.held[b"a"] == {(0, 3), (0, 4)}
    machine.another_leads(1, keep=False, undo=True, pump=True)
    assert not first.held[b"a"]
    machine.join(1, b"a", 5)
    assert machine.nodes[1].held[b"a"] == {(0, 0), (0, 1), (0, 2)} and machine.published == 3
    machine.publish(1, 0, 0)
    machine.turn()
    assert machine.nodes[1].held[b"a"] == {(0, 0), (0, 1), (0, 2), (0, 3)}
    machine.teardown()


def test_a_deletion_that_is_not_committed_is_taken_back() -> None:
    machine = HandsMachine()
    machine.make(lanes=2, partitions=1, kind="classic")
    machine.join(0, b"a", 2)
    machine.publish(5, 0, 1)
    machine.publish(2, 80, 0)
    machine.turn()
    first, second, _ = machine.nodes
    first.manager.delete(first.spec.address)
    first.line.give_up("another leads")
    first.copies.follow()
    number, = first.copies.queues
    assert digest(first.manager, first.copies.queues[number]) == digest(second.manager, second.copies.queues[number])
    second.copies.lead()
    second.manager.delete(second.spec.address)
    position, records = second.line.submit()
    second.line.commit(position)
    for node in machine.nodes:
        node.copies.apply(records)
        assert not node.copies.queues and not node.copies.logs


def test_what_is_declared_and_not_committed_is_taken_back() -> None:
    machine = HandsMachine()
    machine.make(lanes=0, partitions=1, kind="classic")
    first, second, _ = machine.nodes
    declared = [first.manager.states[first.manager.declare(QueueSpec(name=name, namespace="tenant"), first.line)[0]]
                for name in ("half", "not")]
    half, never = declared
    first.copies.note(half)
    half.queue.append_message(b"$queue/half", b"x")
    position, records = first.line.submit()     # with the declaration of the other one, which nobody has noted
    first.copies.note(never)
    first.manager.delete(half.queue.address)    # which is not committed, but what came before is
    first.line.commit(position)
    for node in machine.nodes:
        node.copies.apply(records)
    other = first.manager.declare(QueueSpec(name="other", namespace="tenant"), first.line)[0]
    first.copies.note(first.manager.states[other])
    other.append_message(b"$queue/other", b"y")
    first.line.give_up("another leads")
    first.copies.follow()
    assert other not in first.manager.states and first.line.submit() == (0, b"")
    assert len(first.copies.queues) == 3
    for number, copy in first.copies.queues.items():
        assert digest(first.manager, copy) == digest(second.manager, second.copies.queues[number])
    assert first.copies.queues[half.queue.number].logs[0].get(0) is not None
    with pytest.raises(UsageError, match="not led here"):
        first.copies.follow()
    second.copies.lead()
    with pytest.raises(UsageError, match="is led here"):
        second.copies.clear()
    first.copies.clear()
    assert hand_of(first.state) is Hand.RELAY and first.state.copy is None


def test_a_delayed_message_that_was_moved_is_not_moved_again() -> None:
    machine = HandsMachine()
    machine.make(lanes=0, partitions=1, kind="classic")
    machine.publish(1, 80, 0)
    machine.publish(1, 20, 0)
    machine.time_goes_by(30)
    machine.turn()
    assert machine.led.state.queue.logs[0].next == 1
    machine.another_leads(1, keep=False, undo=False, pump=False)
    assert machine.led.state.queue.logs[0].next == 1
    machine.another_leads(0, keep=False, undo=True, pump=False)
    machine.time_goes_by(100)
    machine.turn()
    assert machine.led.state.queue.logs[0].next == 2
    machine.teardown()


def test_deadlines_are_by_the_clock_of_the_line() -> None:
    """Of instances whose clocks differ by ten years and more: nothing expires, is due, or is ready again too early, nor
    too late."""
    machine = HandsMachine()
    machine.make(lanes=0, partitions=1, kind="classic")
    machine.publish(1, 0, 0)
    machine.another_leads(1, keep=False, undo=False, pump=False)
    second, third = machine.nodes[1:]
    machine.publish(1, 0, 0, expiry=100)
    now = second.hub.steady_ms
    second.state.queue.append_message(b"$queue/q", b"delayed", not_before=now + 80, expires_at=now + 1500)
    machine.fresh += 1
    machine.turn()
    machine.join(1, b"a", 10)
    assert second.held[b"a"] == {(0, 0), (0, 1)}
    machine.time_goes_by(50)
    second.members[b"a"][0].room = 0
    group, log = second.state.groups[b"a", b""], second.state.queue.logs[0]
    by_offset.give_back_at(group, log.number, 0, 60, True)
    by_offset.give_back_at(group, log.number, 1, 0, True)
    second.held[b"a"].clear()
    machine.another_leads(2, keep=False, undo=False, pump=False)
    log = third.state.queue.logs[0]
    record = log.get(1)
    assert record is not None and record.expires_at == third.hub.steady_ms + 50
    machine.time_goes_by(29)        # 79
    machine.turn()
    assert log.next == 2
    machine.time_goes_by(2)
    machine.turn()
    assert log.next == 3
    record = log.get(2)
    assert record is not None and record.expires_at == third.hub.steady_ms + 1500 - 81
    machine.time_goes_by(24)        # 105
    machine.join(2, b"a", 10)
    assert third.held[b"a"] == {(0, 2)}
    machine.time_goes_by(4)
    machine.turn()
    assert third.held[b"a"] == {(0, 2)}
    machine.time_goes_by(2)         # 111
    machine.turn()
    assert third.held[b"a"] == {(0, 0), (0, 2)}
    machine.teardown()


def test_a_first_commit_that_takes_long_does_not_set_the_clock_of_who_leads_back() -> None:
    node = Node(0, QueueSpec(name="q", namespace="tenant"))
    node.copies.lead()
    node.copies.note(node.manager.states[node.manager.declare(node.spec, node.line)[0]])
    line_ms = node.copies.time
    position, records = node.line.submit()
    node.set_clock(START_MS + 300)
    node.line.commit(position)
    node.copies.apply(records, line_ms)
    assert node.copies.time == line_ms + 300


def test_nothing_is_left_of_copies() -> None:
    def collected() -> dict[str, int]:
        while gc.collect():         # what is left of other tests, too
            pass
        return live_objects()

    before = collected()
    machine = HandsMachine()
    machine.make(lanes=2, partitions=2, kind="classic")
    for at in range(NODES):
        machine.join(at, b"a", 3)
    machine.publish(4, 0, 0)
    machine.publish(4, 50, 0)
    for to in (1, 2, 0, 1):
        machine.another_leads(to, keep=True, undo=to == 2, pump=False)
    machine.teardown()
    del machine
    after = collected()
    assert all(after[kind] <= count for kind, count in before.items()), (before, after)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_queue_changes_hands_for_long() -> None:
    run_state_machine_as_test(HandsMachine, settings=SOAK)
