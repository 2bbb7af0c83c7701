"""A queue that another node owns: publishes, deliveries and settlements over the stream between two nodes."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kit.definer import defined
from kit.journals import wait_durable, writing
from kit.peers import PeerNode, Wire

from fluxmq._core.disk.journal import Journal
from fluxmq._core.errors import UsageError
from fluxmq._core.peer.queue_relay import QueueRelay
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.member import PyMember
from fluxmq._core.queue.queue import Queue
from fluxmq._core.queue.stream import StreamReader
from fluxmq._core.testing.frames_probe import decode
from fluxmq.cluster.solo import SoloReplicator, solo
from fluxmq.engine.ports.cluster import Cluster
from fluxmq.engine.ports.definitions import QueueDefinition
from fluxmq.engine.queues.hands import Hands
from fluxmq.engine.queues.manager import QueueManager, QueueState
from fluxmq.engine.queues.relays import Answer, Attach, Hosts, Relays
from fluxmq.model.queues import QueueSpec

pytestmark = pytest.mark.usefixtures("nothing_is_left")

IDENTITY = 77
DELIVERY = 16           # kind of a record: _core/peer/frames.pxd
Got = list[tuple[str, int, int, bytes]]


class QueueNode(PeerNode):
    """A node with queues, whose inboxes ask them."""

    def __init__(self, name: str, epoch: int, journal: Journal | None = None, window_bytes: int = 1 << 24) -> None:
        super().__init__(name, epoch, journal, window_bytes)
        alone = solo()
        self.groups: dict[bytes, int] = {}      # that replicate queues of other nodes, by the queue's name
        self.manager = QueueManager(self.hub, cluster=Cluster(alone.directory, _Peers(self), _Replicator(self.groups)))
        self.defined = defined(self.manager)
        self.relays = Relays()
        self.hosts = Hosts(self.hub)
        self.hosts.protocols["mqtt"] = _Host(self.manager)

    def own(self, **spec: Any) -> QueueState:
        queue = self.manager.declare(QueueSpec(name="q", **spec))[0]
        state = self.manager.states[queue]
        self.defined.identify(state.queue.address, IDENTITY)
        return state

    def relay(self, owner: str, **spec: Any) -> Queue:
        state = self.manager.make_relay(QueueSpec(name="q", **spec), None, IDENTITY)
        self.defined.set_owner(state, owner)
        return state.queue


class _Replicator(SoloReplicator):
    def __init__(self, groups: dict[bytes, int]) -> None:
        self.groups = groups

    def group_of_queue(self, namespace: bytes, name: bytes) -> int:
        return self.groups.get(name, 0)


class _Peers:
    def __init__(self, node: PeerNode) -> None:
        self.node = node

    def hop(self, node: str) -> Any:
        return self.node.to(node)

    def reference(self, node: str) -> str:
        return ""


class _Host:
    def __init__(self, manager: QueueManager) -> None:
        self.manager = manager

    def attach_member(self, queue: Queue, member: Any, asked: Attach) -> str:
        group = self.manager.group(queue, asked.group, exclusive=asked.exclusive)
        group.join(member)
        member.lease_ms = asked.lease_ms or 0
        queue.notify()
        return group.mode

    def leave(self, queue: Queue, member: Any) -> None:
        self.manager.left(queue, None)

    def rest(self, queue: Queue, member: Any) -> None:
        member.group.rest(member)


class Pair:
    """Node a relays to node b, which has the queue."""

    def __init__(self, journal: Journal | None = None, window_bytes: int = 1 << 24, **spec: Any) -> None:
        self.a, self.b = QueueNode("a", 1, window_bytes=window_bytes), QueueNode("b", 2, journal, window_bytes)
        self.there, self.back = Wire(self.a, self.b).dial(), Wire(self.b, self.a).dial()
        for node, other in ((self.a, "b"), (self.b, "a")):
            ear = _ear(node, other)
            ear.on_attach = lambda number, queue, data, node=node, other=other: node.hosts.on_attach(
                node.to(other), number, queue, data)
            ear.on_detach = lambda number, rests, node=node, other=other: node.hosts.on_detach(
                node.to(other), number, rests)
            ear.on_result = lambda number, data, node=node, other=other: node.relays.on_result(
                node.to(other), number, data)
        self.state = self.b.own(**spec)
        self.queue = self.a.relay("b", **spec)
        self.got: Got = []
        self.outcomes = self.a.outcomes
        self.run()

    def run(self) -> None:
        """Until nothing moves any more."""
        for _ in range(50):
            self.a.turn()
            self.b.turn()
            if self.b.journal is not None:
                wait_durable(self.b.journal, self.b.journal.gathering - 1)
                self.b.turn()
            self.there.idle()
            self.back.idle()
            if not self.there.deliver() + self.back.deliver():
                return
        raise AssertionError("the two nodes go on for ever")

    def publish(self, number: int, payload: bytes = b"") -> None:
        """number: under which the outcome is noted."""
        since = self.a.hub.commits.mark
        outcomes = self.outcomes
        reason = self.queue.publish(b"$queue/q", payload or b"%d" % number)
        if reason:
            outcomes[number] = f"{reason:#x}"
            return
        self.a.hub.when_durable(lambda: outcomes.update({number: None}), since,
                                lambda why: outcomes.update({number: why or "refused"}))

    def join(self, name: str, room: int = 1, lease_ms: int = 0, group: bytes = b"default",
             exclusive: bool = False) -> PyMember:
        def deliver(log: int, offset: int, count: int) -> bool:
            self.got.append((name, offset, count, b""))
            return True

        def withdraw(log: int, offset: int, count: int) -> None:
            self.got.append((f"{name} lost", offset, count, b""))

        member = PyMember(deliver, withdraw, room)
        found = self.a.manager.group(self.queue, group)
        found.join(member)
        answers: list[Answer] = []
        self.a.relays.attach(self.queue, member, Attach(protocol="mqtt", client=name, group=group, lease_ms=lease_ms,
                                                        exclusive=exclusive), answers.append)
        self.run()
        assert [answer.refused for answer in answers] == [None]
        return member

    def seen(self) -> list[tuple[str, int, int]]:
        found = [one[:3] for one in self.got]
        self.got.clear()
        return found

    @property
    def group(self) -> Group:
        """At the owner."""
        return self.state.groups[b"default", b""]

    def end(self) -> None:
        for node in (self.a, self.b):
            for address in list(node.manager.queues):
                node.manager.delete(address)
        self.run()


def _ear(node: PeerNode, sender: str) -> Any:
    return node.ears[sender]


def settle(member: PyMember, offset: int, log: int = 0) -> None:
    assert by_offset.settle_at(member.group, log, offset)


def test_what_was_kept_is_not_confirmed_with_what_came_later() -> None:
    """The first went to an owner that has not answered, and dies; the second to the next one, which is this node."""
    pair = Pair(type="ephemeral")
    relay = pair.queue.relay
    assert isinstance(relay, QueueRelay)
    relay.keep()
    pair.publish(1)
    relay.let_go()
    pair.a.turn()
    relay.keep()
    pair.publish(2)
    pair.a.turn()
    Hands(pair.a.manager, pair.a.relays, pair.a.hosts.protocols).make_anew(pair.a.manager.states[pair.queue])
    pair.a.turn()
    assert pair.outcomes == {}, "the first is not decided, and the second behind it"
    pair.a.to("b").give_up_queues("node b is gone")
    pair.a.turn()
    assert pair.outcomes == {1: "node b is gone", 2: None}


def test_the_owner_knows_a_consumer_by_its_mark() -> None:
    """So does whoever owns the queue next."""
    pair = Pair()
    pair.a.hub.begin_identities(1)
    pair.b.hub.begin_identities(2)
    member = pair.join("one")
    [there] = pair.group.members
    assert member.mark and there.mark == member.mark


def test_a_publish_is_acknowledged_when_the_owner_has_it() -> None:
    pair = Pair()
    pair.publish(1)
    pair.a.turn()
    assert pair.outcomes == {} and pair.state.queue.depth == 0
    pair.run()
    assert pair.outcomes == {1: None} and pair.state.queue.depth == 1
    pair.end()


def test_nobody_waits_for_the_acknowledgement_of_frames_about_queues() -> None:
    pair = Pair()
    awaited = pair.b.ears["a"].awaited
    awaited.clear()
    pair.publish(1)
    pair.join("m")
    pair.run()
    assert awaited and not any(awaited)
    pair.a.to("b", b"t")
    pair.publish(2)
    pair.a.publish(b"t", b"a message beside it")
    pair.run()
    assert any(awaited)
    pair.a.hub.targets.remove_peer(pair.a.to("b"), b"t")
    pair.end()


def test_a_publish_waits_for_the_disk_of_the_owner(tmp_path: Path) -> None:
    with writing(tmp_path) as journal:
        pair = Pair(journal)
        pair.publish(1)
        pair.a.turn()
        pair.there.deliver()
        pair.b.turn(journal=False)
        pair.back.idle()
        pair.back.deliver()
        pair.a.turn()
        assert pair.outcomes == {} and pair.state.queue.depth == 1
        pair.run()
        assert pair.outcomes == {1: None}
        pair.end()
        journal.close()


def test_a_full_queue_refuses_what_it_has_no_room_for_and_nothing_else() -> None:
    from fluxmq.model.queues import QueueLimits
    pair = Pair(limits=QueueLimits(max_depth=1100))
    for number in range(2500):
        pair.publish(number)
    pair.run()
    assert [number for number, why in pair.outcomes.items() if why is None] == list(range(1100))
    assert len(pair.outcomes) == 2500
    pair.end()


def test_a_consumer_gets_what_it_has_room_for() -> None:
    pair = Pair()
    member = pair.join("m", 3)
    for number in range(5):
        pair.publish(number)
    pair.run()
    assert pair.seen() == [("m", 0, 1), ("m", 1, 1), ("m", 2, 1)]
    settle(member, 1)
    pair.run()
    assert pair.seen() == [("m", 3, 1)]
    for offset in (0, 2, 3):
        settle(member, offset)
    pair.run()
    assert pair.seen() == [("m", 4, 1)]
    settle(member, 4)
    pair.run()
    assert pair.group.lag == 0 and pair.group.claims == 0
    pair.end()


def test_the_owner_knows_the_room_of_a_consumer_before_its_client_knows_that_it_consumes() -> None:
    """A message that is for those who can take it at once is not lost because the owner has not been told yet."""
    pair = Pair()
    pair.join("m", 2)
    assert [member.limit for member in pair.group.members] == [2]
    pair.publish(0)
    pair.a.turn()
    pair.there.deliver()
    pair.b.turn()
    assert pair.group.held == 1         # with the first frame that has it
    pair.run()
    assert pair.seen() == [("m", 0, 1)]
    pair.end()


def test_an_exclusive_group_is_one_at_the_relay_too() -> None:
    """By which further consumers of this node are judged."""
    pair = Pair()
    first, second = (PyMember(lambda *one: True) for _ in range(2))
    group = pair.a.manager.group(pair.queue, b"default")
    modes: list[object] = []
    for member in (first, second):
        group.join(member)
        pair.a.relays.attach(pair.queue, member, Attach(protocol="mqtt", client="c", group=b"default", exclusive=True),
                             lambda answer: modes.append(answer.value))
        pair.run()
    assert modes == ["exclusive", "exclusive"] and pair.group.mode == "exclusive"
    pair.end()


def test_what_a_consumer_gives_back_counts_and_comes_again() -> None:
    from fluxmq._core.queue import by_offset
    pair = Pair()
    member = pair.join("m", 1)
    pair.publish(0)
    pair.run()
    assert by_offset.give_back_at(member.group, 0, 0)
    pair.run()
    assert pair.seen() == [("m", 0, 1), ("m", 0, 2)]
    pair.end()


def test_what_a_consumer_that_leaves_held_is_for_others() -> None:
    pair = Pair()
    first = pair.join("first", 2)
    for number in range(2):
        pair.publish(number)
    pair.run()
    second = pair.join("second", 2)
    assert pair.seen() == [("first", 0, 1), ("first", 1, 1)]
    first.group.leave(first)
    pair.run()
    assert pair.seen()[2:] == [("second", 0, 2), ("second", 1, 2)]
    assert second.held == 2 and pair.group.held == 2
    pair.end()


def test_what_another_consumer_of_the_node_holds_still_is_given_to_whom_the_owner_gives_it() -> None:
    """The owner does not know of the first one's claim: the queue was made anew."""
    pair = Pair()
    first = pair.join("first", 1)
    pair.publish(0)
    pair.run()
    second = pair.join("second", 1)
    [member] = [one for one in pair.b.to("a").hosted.values() if one.client == "first"]
    member.end()                        # without a word to the first one's node
    pair.state.queue.notify()
    pair.run()
    assert pair.seen() == [("first", 0, 1), ("first lost", 0, 1), ("second", 0, 2)]
    assert (first.held, second.held) == (0, 1)
    settle(second, 0)
    pair.run()
    assert pair.group.lag == 0
    pair.end()


def test_a_consumer_is_attached_when_an_owner_that_was_asked_too_early_has_the_queue() -> None:
    pair = Pair()
    pair.join("first")
    identity, relay = pair.queue.identity, pair.queue.relay
    assert isinstance(relay, QueueRelay)
    owned = pair.b.hub.owned.pop(identity)
    relay.set_owner("", None)
    relay.set_owner("b", pair.a.to("b"))
    pair.a.relays.owner_changed(pair.queue)
    pair.run()
    [one] = relay.consumers
    assert not one.attached
    pair.b.hub.owned[identity] = owned
    pair.a.relays.expire(30_000)
    pair.run()
    assert one.attached
    pair.publish(0)
    pair.run()
    assert pair.seen() == [("first", 0, 1)]
    pair.end()


def test_who_has_no_room_when_its_time_is_over_gets_nothing_again() -> None:
    """A client that has not acknowledged what it lost has no more room than before: else it would be given to it again
    and again without being sent, and counted each time."""
    pair = Pair()
    first = pair.join("first", 1, lease_ms=1000)

    def withdraw(log: int, offset: int, count: int) -> None:
        first.room = 0

    first.on_withdraw = withdraw
    pair.publish(0)
    pair.run()
    for _ in range(3):
        pair.b.now_ms += 2000
        pair.b.turn()
        pair.group.tick()
        pair.run()
    assert pair.seen() == [("first", 0, 1)]
    pair.join("second", 1)
    assert pair.seen() == [("second", 0, 2)]
    first.room = 1                      # it has acknowledged it, too late
    pair.queue.notify()
    pair.publish(1)
    pair.run()
    assert pair.seen() == [("first", 1, 1)]
    pair.end()


def test_a_change_of_settings_leaves_consumers_as_they_are() -> None:
    """The owner is told again with the new settings, and is the same."""
    pair = Pair()
    member = pair.join("m", 1)
    pair.publish(0)
    pair.run()
    [attached] = pair.group.members
    pair.a.manager.on_owner.append(pair.a.relays.owner_changed)
    defined(pair.a.manager).learn(QueueDefinition(IDENTITY, QueueSpec(name="q", overflow="drop-head")), "b")
    pair.run()
    assert pair.group.members == [attached] and pair.seen() == [("m", 0, 1)]
    settle(member, 0)
    pair.run()
    assert pair.group.lag == 0
    pair.end()


def test_what_a_consumer_out_of_reach_held_is_for_others_and_its_node_hears_of_it() -> None:
    pair = Pair()
    first = pair.join("first", 2)
    for number in range(2):
        pair.publish(number)
    pair.run()
    here: list[tuple[int, int]] = []
    local = PyMember(lambda log, offset, count: bool(here.append((offset, count)) or True), None, 10)
    pair.group.join(local)
    outbox = pair.b.to("a")
    for _ in range(2):                  # the second time there is nothing to end
        pair.b.hosts.on_broken(outbox)
        pair.b.turn()
    assert here == [(0, 2), (1, 2)] and pair.group.held == 2
    settle(first, 0)                    # too late
    pair.publish(2)
    pair.run()
    assert here == [(0, 2), (1, 2), (2, 1)] and pair.group.held == 3
    assert pair.seen() == [("first", 0, 1), ("first", 1, 1), ("first lost", 1, 1)]
    pair.group.leave(local)
    pair.run()
    assert pair.seen() == [] and pair.group.held == 0       # it is still out of reach
    pair.b.hosts.on_whole(outbox)
    pair.run()
    assert [one[:2] for one in pair.seen()] == [("first", 0), ("first", 1)] and pair.group.held == 2
    pair.end()


def test_partitions_of_a_consumer_out_of_reach_are_for_others_until_it_is_back() -> None:
    pair = Pair(partitions=2)
    pair.join("first", exclusive=True)
    assert pair.group.mode == "exclusive"
    [far] = pair.b.to("a").hosted.values()
    assert set(pair.group.owners().values()) == {far}
    pair.b.hosts.on_broken(pair.b.to("a"))
    assert far.absent and set(pair.group.owners().values()) == {far}    # there is no other
    local = PyMember(lambda *one: True)
    pair.group.join(local)
    assert set(pair.group.owners().values()) == {local}
    pair.b.hosts.on_whole(pair.b.to("a"))
    assert set(pair.group.owners().values()) == {far, local}
    pair.group.leave(local)
    pair.end()


def given_out(pair: Pair, count: int) -> None:
    """Messages that were given out once, and are ready, as after a restart."""
    since: list[int] = []
    former = PyMember(lambda log, offset, number: bool(since.append(offset) or True), None, count)
    pair.b.manager.group(pair.state.queue, b"default").join(former)
    for number in range(count):
        pair.publish(number)
    pair.run()
    assert since == list(range(count))
    pair.group.leave(former)


def test_an_owner_that_is_back_keeps_what_was_given_out_and_nothing_else() -> None:
    pair = Pair()
    given_out(pair, 3)
    kept = pair.b.manager.keep_claims()
    assert pair.group.held == 3 and len(kept) == 1
    local = pair.join("local", 10)
    pair.publish(3)
    pair.run()
    assert pair.seen() == [("local", 3, 1)]
    [far] = pair.b.to("a").hosted.values()
    far.hold_again(0, 1, 1)
    assert far.holds(0, 1, 1)
    far.hold_again(0, 2, 7)             # not in that delivery
    assert not far.holds(0, 2, 7) and pair.group.held == 4
    pair.b.manager.let_go(kept)
    pair.b.manager.let_go(kept)
    pair.run()
    assert pair.seen() == [("local", 0, 2), ("local", 2, 2)] and local.held == 3
    assert not pair.group.pullers and not pair.b.manager.keep_claims()
    pair.end()


def test_what_the_holder_of_a_partition_does_not_name_comes_before_newer_messages() -> None:
    pair = Pair()
    given_out(pair, 3)
    kept = pair.b.manager.keep_claims()
    pair.join("first", 10, exclusive=True)
    pair.publish(3)
    pair.run()
    assert pair.group.mode == "exclusive" and pair.seen() == []     # somebody may hold some of it
    [far] = pair.b.to("a").hosted.values()
    far.hold_again(0, 1, 1)
    pair.run()
    assert pair.seen() == [("first", 0, 2), ("first", 2, 2), ("first", 3, 1)]
    assert far.holds(0, 1, 1) and pair.group.held == 4
    pair.b.manager.let_go(kept)
    assert pair.group.held == 4
    pair.end()


def test_a_settlement_of_an_earlier_delivery_has_no_effect() -> None:
    """The lease ends, and somebody else has the message, before what the first one said of it arrives."""
    pair = Pair()
    first = pair.join("first", 1, lease_ms=1000)
    pair.publish(0)
    pair.run()
    assert pair.seen() == [("first", 0, 1)]
    settle(first, 0)
    pair.a.turn()                       # it is under way
    pair.b.now_ms += 2000
    pair.b.turn()
    pair.group.tick()
    pair.b.turn()
    pair.there.deliver()
    pair.run()
    assert pair.seen() == [("first", 0, 2)]     # it comes again: its settlement was of the first delivery
    settle(first, 0)
    pair.run()
    assert pair.group.lag == 0
    pair.end()


def test_a_consumer_keeps_what_it_told_an_owner_that_is_gone_but_not_what_it_has_got_again() -> None:
    """Named as held and as settled, the second name would be refused, and taken from the consumer that holds it."""
    from fluxmq._core.queue import by_offset
    pair = Pair()
    member = pair.join("m", 10)
    for number in range(3):
        pair.publish(number)
    pair.run()
    relay = pair.queue.relay
    assert isinstance(relay, QueueRelay)
    assert by_offset.give_back_at(member.group, 0, 0)       # it comes again
    settle(member, 1)
    outbox = pair.a.to("b")
    outbox.cut()
    sent = outbox.settlements()
    pair.run()
    assert pair.seen() == [("m", 0, 1), ("m", 1, 1), ("m", 2, 1), ("m", 0, 2)]
    [one] = relay.consumers
    assert [(number, told[2:4]) for number, told in sent] == [(one.number, (0, 0)), (one.number, (0, 1))]
    one.keep_sent([told for _, told in sent] * 2)
    assert sorted(one.held()) == [(0, 0, 2), (0, 1, 1), (0, 2, 1)]
    pair.end()


def test_what_is_settled_behind_an_attach_that_is_refused_is_told_again() -> None:
    """A client waits for it (tx.commit), so it is told at once."""
    pair = Pair()
    member = pair.join("m", 10)
    pair.publish(0)
    pair.run()
    identity, relay = pair.queue.identity, pair.queue.relay
    assert isinstance(relay, QueueRelay)
    kept = pair.b.manager.keep_claims()
    relay.set_owner("", None)
    pair.run()
    settle(member, 0)
    owned = pair.b.hub.owned.pop(identity)
    relay.set_owner("b", pair.a.to("b"))
    pair.a.relays.owner_changed(pair.queue)
    member.group.flush_records()
    pair.run()
    assert pair.group.lag == 1
    pair.b.hub.owned[identity] = owned
    pair.a.relays.expire(30_000)
    pair.run()
    assert pair.group.lag == 0
    pair.b.manager.let_go(kept)
    pair.end()


def test_settlements_are_on_the_disk_when_a_barrier_is_passed(tmp_path: Path) -> None:
    with writing(tmp_path) as journal:
        pair = Pair(journal)
        member = pair.join("m", 10)
        for number in range(4):
            pair.publish(number)
        pair.run()
        since = pair.a.hub.commits.mark
        done: list[int] = []
        for offset in range(4):
            settle(member, offset)
        member.group.flush_records()
        pair.a.hub.when_durable(lambda: done.append(1), since)
        pair.a.turn()
        pair.there.idle()
        pair.there.deliver()
        pair.b.turn(journal=False)
        pair.back.idle()
        pair.back.deliver()
        pair.a.turn()
        assert not done
        pair.run()
        assert done and pair.group.lag == 0
        pair.end()
        journal.close()


def test_more_than_a_window_of_deliveries_waits_for_acknowledgements() -> None:
    pair = Pair(window_bytes=100_000)
    pair.join("m", 1000)
    for number in range(300):
        pair.publish(number, bytes(1000))
        if number % 50 == 49:
            pair.run()
    pair.run()
    assert len(pair.seen()) == 300
    pair.end()


# ---------------------------------------------------------------- streams: what the answer to "open" says


class StreamPair(Pair):
    """Node a reads a stream of node b. answers: to what was opened."""

    def __init__(self) -> None:
        super().__init__(type="stream")
        self.answers: list[Answer] = []
        for node, other in ((self.a, "b"), (self.b, "a")):
            node.manager.reads.connect(node.relays, node.hosts)
            _ear(node, other).on_call = lambda number, queue, data, node=node, other=other: (
                node.hosts.on_call(node.to(other), number, queue, data, 0))

    def open(self) -> None:
        self.a.manager.reads.open(self.queue, None, "first", "c", lambda queue, group, offsets: [
            StreamReader(log, offset) for log, offset in zip(self.queue.logs, offsets, strict=True)],
            self.answers.append, waits=False)


def test_a_stream_that_is_opened_too_late_is_closed() -> None:
    pair = StreamPair()
    pair.open()
    pair.a.relays.expire(0)
    assert [answer.refused is not None and answer.refused.away for answer in pair.answers] == [False]
    pair.run()
    assert not pair.state.queue.readers and not pair.queue.readers and len(pair.answers) == 1
    pair.open()
    pair.run()
    assert len(pair.state.queue.readers) == len(pair.queue.readers) == 1
    assert [answer.refused for answer in pair.answers[1:]] == [None]
    pair.end()


def test_who_opens_a_stream_that_is_deleted_is_told() -> None:
    pair = StreamPair()
    pair.open()
    pair.a.manager.delete(pair.queue.address)
    pair.run()
    assert [answer.refused is not None for answer in pair.answers] == [True]
    pair.end()


# ---------------------------------------------------------------- queues of lines that others commit

class Lines(Pair):
    """Node b has two queues, each of a line of its own, which the test commits; a member of node a consumes each.
    groups: that replicate them, as node a knows; 0: it does not."""

    def __init__(self, window_bytes: int = 1 << 24, groups: tuple[int, int] = (0, 0)) -> None:
        super().__init__(window_bytes=window_bytes)
        self.a.groups.update({b"q%d" % at: group for at, group in enumerate(groups)})
        manager = self.b.manager
        self.lines = [self.b.hub.commits.open_line(f"group {at}") for at in range(2)]
        self.members = list[PyMember]()
        self.owned, self.came, self.lost = list[Queue](), list[tuple[int, int]](), list[tuple[int, int]]()
        for at, line in enumerate(self.lines):
            self.owned.append(manager.declare(QueueSpec(name=f"q{at}"), line)[0])
            self.b.defined.identify(self.owned[at].address, 100 + at)
            state = self.a.manager.make_relay(QueueSpec(name=f"q{at}"), None, 100 + at)
            self.a.defined.set_owner(state, "b")
        self.run()
        self.decide(0)
        self.decide(1)
        self.answers = [self.consume(at) for at in range(2)]

    def consume(self, at: int) -> list[Answer]:
        def deliver(log: int, offset: int, count: int) -> bool:
            self.came.append((at, offset))
            return True

        queue, answers = self.a.manager.queues[b"/", b"q%d" % at].queue, list[Answer]()
        member = PyMember(deliver, lambda log, offset, count: self.lost.append((at, offset)), 100)
        self.members.append(member)
        self.a.manager.group(queue, b"g").join(member)
        self.a.relays.attach(queue, member, Attach(protocol="mqtt", client=f"c{at}", group=b"g"), answers.append)
        self.run()
        return answers

    def put(self, at: int, payload: bytes) -> None:
        assert self.owned[at].append_message(b"$queue/q", payload) == 0
        self.run()

    def decide(self, at: int, given_up: bool = False) -> None:
        self.run()
        position, _ = self.lines[at].submit()
        if given_up:
            self.lines[at].give_up("another leads", position)
        elif position:
            self.lines[at].commit(position)
        self.run()


def test_a_line_that_stands_still_holds_back_only_its_own() -> None:
    pair = Lines()
    assert pair.answers == [[], []]         # the group that was made for them is not committed
    pair.decide(1)
    assert [len(answers) for answers in pair.answers] == [0, 1]
    for number in range(3):
        pair.put(0, b"stands %d" % number)
        pair.put(1, b"goes %d" % number)
        pair.decide(1)
    assert pair.came == [(1, 0), (1, 1), (1, 2)]
    pair.decide(0)
    assert pair.came[3:] == [(0, 0), (0, 1), (0, 2)] and len(pair.answers[0]) == 1
    assert pair.b.to("a").late_bytes == 0
    pair.end()


def test_a_delivery_whose_claim_is_given_up_goes_nowhere() -> None:
    pair = Lines()
    pair.decide(0)
    pair.decide(1)
    pair.put(0, b"0")
    pair.put(1, b"1")
    pair.decide(0, given_up=True)
    pair.decide(1)
    assert pair.came == [(1, 0)]
    pair.put(0, b"2")
    pair.decide(0)
    assert pair.came == [(1, 0), (0, 1)]
    pair.end()


def test_a_withdrawal_does_not_overtake_its_delivery() -> None:
    pair = Lines()
    pair.decide(0)
    pair.put(0, b"0")
    queue = pair.owned[0]
    group = pair.b.manager.states[queue].groups[b"g", b""]
    assert by_offset.settle_at(group, queue.logs[0].number, 0)        # by an operator
    pair.run()
    assert (pair.came, pair.lost) == ([], []) and pair.b.to("a").late_bytes > 0
    pair.decide(0)
    assert (pair.came, pair.lost) == ([(0, 0)], [(0, 0)])
    pair.end()


def test_a_delivery_says_what_is_left_by_the_clock_of_its_line() -> None:
    pair = Lines()
    pair.decide(0)
    pair.lines[0].hear(10**12, pair.b.hub.steady_ms)
    assert pair.owned[0].append_message(b"$queue/q", b"x", expires_at=pair.b.hub.steady_ms + 5000) == 0
    pair.b.turn()
    pair.lines[0].commit(pair.lines[0].submit()[0])
    pair.b.turn()
    pair.back.idle()
    (_, _, deliveries, log, left_ms, *_), = [record for frame in pair.back.frames
                                             for record in decode(frame)[1] if record[0] == DELIVERY]
    assert (deliveries, log, left_ms) == (1, 0, 5000)
    pair.end()


def test_the_clock_of_a_line_never_goes_back() -> None:
    pair = Pair()
    line = pair.b.hub.commits.open_line("group")
    assert line.shift_ms == 0
    line.hear(1000, 5000)           # a clock that is behind this node's
    assert line.shift_ms == -4000
    line.hear(1100, 5200)           # it has taken longer to come
    assert line.shift_ms == -4000
    line.hear(1400, 5300)
    assert line.shift_ms == -3900
    with pytest.raises(UsageError, match="the node's clock"):
        pair.b.hub.commits.local.hear(1, 1)
    pair.end()


def test_a_line_that_stands_still_does_not_fill_the_window_of_others() -> None:
    pair = Lines(window_bytes=40_000)
    pair.decide(0)
    pair.decide(1)
    for number in range(15):
        pair.put(0, bytes(2000))
        pair.put(1, b"%d" % number)
    pair.decide(1)
    assert [at for at, _ in pair.came] == [1] * 15
    assert 8000 < pair.b.to("a").late_bytes < 16_000 and pair.b.to("a").journal_bytes == 0
    for _ in range(15):         # a part of the window each time
        pair.decide(0)
    assert [at for at, _ in pair.came] == [1] * 15 + [0] * 15
    pair.end()


def test_what_is_given_up_makes_room() -> None:
    pair = Lines(window_bytes=40_000)
    pair.decide(0)
    for _ in range(10):
        pair.put(0, bytes(2000))
    before = pair.b.to("a").late_bytes
    pair.decide(0, given_up=True)
    assert before > 8000 and 0 < pair.b.to("a").late_bytes < before + 4000     # of those that come next
    pair.end()


def test_who_hears_that_an_answer_was_given_up_asks_again() -> None:
    pair = Lines()
    pair.decide(1)
    assert [len(answers) for answers in pair.answers] == [0, 1] and not pair.a.relays._coming
    pair.decide(0, given_up=True)
    assert not pair.answers[0] and len(pair.a.relays._coming) == 1      # to the next owner
    assert not [what for what in pair.b.heard if "refused" in what], "the frame is never acknowledged"
    pair.end()
