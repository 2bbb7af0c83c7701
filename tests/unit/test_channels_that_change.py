"""Channels of a queue whose group, or owner, changes: what was sent the longer way, settled late, or undone. Node a
relays to node b, which had the queue; c is the next one that has it. The test commits for the groups."""
from __future__ import annotations

from typing import Any

import msgspec
import pytest
from kit.peers import Wire
from oracle import peer
from unit.test_queue_channels import GIVEN_UP, GROUPS, Groups
from unit.test_queue_relay import QueueNode

from fluxmq._core.errors import UsageError
from fluxmq._core.peer.outbox import PeerOutbox
from fluxmq._core.peer.queue_relay import QueueRelay
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.member import PyMember
from fluxmq._core.queue.queue import Queue
from fluxmq._core.testing.commits_probe import WaitingLink, release
from fluxmq.engine.queues.hands import Hands
from fluxmq.engine.queues.late import settle_late
from fluxmq.engine.queues.relays import UNKNOWN, Answer
from fluxmq.model.queues import QueueSpec

SETTLE = 10             # a kind of record: _core/peer/frames.pxd
pytestmark = pytest.mark.usefixtures("nothing_is_left")


class Three(Groups):
    """c_line: of the queue q0 at c, committed by the test."""

    def __init__(self, groups: tuple[int, int] = GROUPS) -> None:
        self.c = QueueNode("c", 3)
        super().__init__(groups=groups)
        self.hands = Hands(self.b.manager, self.b.relays, self.b.hosts.protocols)
        self.onward, self.backward = Wire(self.b, self.c).dial(), Wire(self.c, self.b).dial()
        self.direct, self.answers_of_c = Wire(self.a, self.c).dial(), Wire(self.c, self.a).dial()
        self.b.groups.update(self.a.groups)
        self.c_line = self.c.hub.commits.open_line("group at c")
        self.next = self.c.manager.declare(QueueSpec(name="q0"), self.c_line)[0]
        self.c.defined.identify(self.next.address, 100)
        self.c.hosts.calls["settle_late"] = lambda queue, member, *what: settle_late(self.c.manager, queue, *what)
        for other in ("a", "b"):
            ear: Any = self.c.ears[other]
            ear.on_call = lambda number, queue, data, other=other: self.c.hosts.on_call(
                self.c.to(other), number, queue, data, self.c.inboxes[other].asked)
        answers: Any = self.b.ears["c"]
        answers.on_result = lambda number, data: self.b.relays.on_result(self.b.to("c"), number, data)
        self.commits_c()

    def run(self) -> None:
        if not hasattr(self, "onward"):
            super().run()
            return
        for _ in range(20):
            super().run()
            self.c.turn()
            for wire in (self.onward, self.backward, self.direct, self.answers_of_c):
                wire.idle()
                if wire.open:
                    wire.deliver()
            for node, others in ((self.a, "c"), (self.b, "c"), (self.c, "ab")):
                for other in others:
                    node.to(other).send_ack()
        super().run()

    def commits_c(self, given_up: bool = False) -> None:
        self.run()
        position, _ = self.c_line.submit()
        if given_up:
            self.c_line.give_up(GIVEN_UP, position)
        elif position:
            self.c_line.commit(position)
        self.run()

    def leaves(self, owner: str | None = "c") -> None:
        """Node b follows from now on. owner: as far as it knows."""
        state = self.b.manager.states[self.owned[0]]
        copy = self.b.manager.states[self.b.manager.declare(QueueSpec(name="copy"))[0]]
        self.hands.follow(state, copy)
        self.b.defined.set_owner(state, owner)

    def hears(self, owner: str | None = "c") -> None:
        """So does b, later; a has a relay of its own."""
        self.b.defined.set_owner(self.b.manager.states[self.owned[0]], owner)

    def a_hears(self, owner: str = "c") -> None:
        self.a.defined.set_owner(self.a.manager.states[self.far(0)], owner)

    def payloads(self, queue: Queue) -> list[bytes]:
        log = queue.logs[0]
        return [record.payload for offset in range(log.first, log.next) if (record := log.get(offset)) is not None]

    def unawaited(self, payload: bytes) -> None:
        assert self.far(0).append_message(b"$queue/q0", payload) == 0

    def end(self) -> None:
        for node in (self.a, self.b, self.c):
            for address in list(node.manager.queues):
                node.manager.delete(address)
            node.turn()
        for line in (*self.lines, self.c_line):
            line.give_up("end")
        self.run()


@pytest.mark.parametrize("groups", [GROUPS, (0, 11)])
def test_a_fence_waits_for_what_nobody_waits_for_and_goes_the_longer_way(groups: tuple[int, int]) -> None:
    three = Three(groups)
    three.leaves()
    three.onward.lose()
    three.unawaited(b"early")
    three.run()
    three.a_hears()
    three.unawaited(b"late")
    three.commits_c()
    assert three.payloads(three.next) == [] and isinstance(relay := three.far(0).relay, QueueRelay) and relay.fenced
    three.onward.dial()
    three.commits_c()
    three.commits_c()
    assert three.payloads(three.next) == [b"early", b"late"]
    three.end()


def test_a_new_group_does_not_wait_for_nothing() -> None:
    """What was sent in the channel is committed: no barrier is sent."""
    three = Three()
    three.send(0, "early")
    three.run()
    three.decide(0)
    assert three.heard == [("early", None)]
    three.a.groups[b"q0"] = 12
    three.a_hears("b")
    assert isinstance(relay := three.far(0).relay, QueueRelay) and not relay.fenced and relay.replication_group == 12
    three.end()


@pytest.mark.parametrize("owner", ["b", "c"])
def test_a_fence_is_in_the_channel_of_the_former_group(owner: str) -> None:
    """Group and owner may change at once."""
    three = Three()
    three.leaves()
    three.onward.lose()
    three.send(0, "early")
    three.run()
    three.a.groups[b"q0"] = 12
    three.a_hears(owner)
    three.send(0, "late")
    three.run()
    three.commits_c()
    assert three.payloads(three.next) == []
    three.onward.dial()
    three.commits_c()
    three.commits_c()
    three.commits_c()
    assert three.payloads(three.next) == [b"early", b"late"] and three.heard == [("early", None), ("late", None)]
    three.end()


def test_consumers_are_attached_anew_when_the_group_changes() -> None:
    pair = Groups()
    pair.get(0, 2)
    pair.settle(0, 0)
    pair.run()
    former = pair.one(0).number
    pair.a.groups[b"q0"] = 12
    pair.a.defined.set_owner(pair.a.manager.states[pair.far(0)], "b")
    assert pair.one(0).number == 0 and [what[1] for what in pair.one(0).held()] == [1, 0]
    pair.a.relays.owner_changed(pair.far(0))
    pair.run()
    assert pair.one(0).number != former and pair.relay(0).channel is pair.outbox.channels[-1]
    pair.decide(0)
    pair.decide(0)
    assert pair.lag(0) == 1 and pair.outbox.settlements() == []
    pair.end()


def test_a_frame_does_not_wait_for_what_its_channel_has_sent_on() -> None:
    """The group stands still at its new leader, and the sender does not know of it yet."""
    three = Three()
    three.leaves()
    three.send(0, "stands")
    three.unawaited(b"too")
    three.run()
    assert three.outbox.unacknowledged_bytes == 0 and three.heard == []
    three.commits_c()
    assert three.heard == [("stands", None)]
    three.end()


def test_a_frame_waits_for_what_it_has_sent_on_for_no_channel() -> None:
    three = Three((0, 11))
    three.b.groups[b"q0"] = 10
    three.leaves()
    three.send(0, "unknown")
    three.send(1, "known")
    three.run()
    assert three.outbox.unacknowledged_bytes > 0 and three.heard == []
    three.decide(1)
    three.commits_c()
    assert sorted(three.heard) == [("known", None), ("unknown", None)] and three.outbox.unacknowledged_bytes == 0
    three.end()


# ---------------------------------------------------------------- settled late

@pytest.mark.parametrize("groups", [GROUPS, (0, 0)])
@pytest.mark.parametrize("given_up", [False, True])
def test_what_is_settled_while_nobody_is_known_waits_for_the_next_owner(groups: tuple[int, int],
                                                                        given_up: bool) -> None:
    three = Three(groups)
    three.get(0, 2)
    three.leaves(None)
    three.settle(0, 0, "settled")
    three.run()
    assert three.heard == []
    group = three.c.manager.group(three.next, b"g")
    group.join(PyMember(lambda log, offset, count: True, lambda log, offset, count: None, 1))
    three.next.append_message(b"$queue/q0", b"0")
    three.commits_c()
    three.commits_c()
    three.hears()
    three.run()
    assert three.heard == [] and group.lag == 0         # and not committed
    three.commits_c(given_up)
    assert three.heard == [("settled", GIVEN_UP if given_up else None)]
    three.end()


@pytest.mark.parametrize("groups", [GROUPS, (0, 0)])
def test_what_is_settled_while_nobody_is_known_is_over_with_the_queue(groups: tuple[int, int]) -> None:
    three = Three(groups)
    three.get(0, 1)
    three.leaves(None)
    three.settle(0, 0, "settled")
    three.run()
    assert three.heard == []
    three.b.manager.delete(three.owned[0].address)
    three.run()
    assert three.heard == [("settled", None)]
    three.end()


@pytest.mark.parametrize("groups", [GROUPS, (0, 0)])
def test_who_waits_hears_that_the_next_owner_refuses_what_was_settled_late(groups: tuple[int, int]) -> None:
    three = Three(groups)
    three.get(0, 1)
    three.c.manager.delete(three.next.address)
    three.leaves()
    three.settle(0, 0, "settled")
    three.run()
    assert [key for key, why in three.heard if why is not None] == ["settled"]
    three.end()


@pytest.mark.parametrize("group", [10, 0])
def test_who_settles_behind_an_attach_that_is_refused_hears_that(group: int) -> None:
    pair = Groups()
    pair.get(0, 1)
    ear: Any = pair.b.ears["a"]
    takes, refused = ear.on_attach, msgspec.msgpack.encode(Answer(refused=UNKNOWN))
    ear.on_attach = lambda number, queue, data: pair.b.to("a").result(number, refused)
    pair.a.groups[b"q0"] = group
    state = pair.a.manager.states[pair.far(0)]
    for owner in (None, "b"):
        pair.a.defined.set_owner(state, owner)
    pair.a.relays.owner_changed(pair.far(0))
    pair.settle(0, 0, "settled")
    pair.decide(0)
    [(key, why)] = pair.heard
    assert key == "settled" and why is not None and "does not know the consumer" in why
    assert [what[4] for what in pair.one(0).take_settled()] == [0]
    ear.on_attach = takes
    pair.end()


# ---------------------------------------------------------------- undone

def test_what_the_same_owner_has_undone_is_told_to_it_again() -> None:
    pair = Groups()
    pair.get(0, 2)
    pair.settle(0, 0)
    pair.undo(0)
    pair.a.turn()
    pair.there.idle()
    [again] = [record for frame in pair.there.frames for record in peer.read(frame)[1] if record[0] == SETTLE]
    assert again[5] == 0 and pair.one(0).take_settled() == []
    pair.decide(0)
    assert pair.outbox.settlements() == []
    pair.end()


def test_who_settled_in_two_frames_hears_that_the_first_was_undone() -> None:
    """The first is refused before the second comes."""
    pair = Groups()
    pair.get(0, 2)
    pair.settle(0, 0)
    pair.outbox.cut()
    since = pair.a.hub.commits.mark
    pair.members[0].group.flush_records()
    pair.await_("settled", since)
    pair.outbox.cut()
    pair.a.turn()
    pair.there.idle()
    assert pair.there.deliver(1) == 1
    pair.b.turn()
    pair.lines[0].give_up(GIVEN_UP, pair.lines[0].submit()[0])
    pair.b.turn()
    pair.back.idle()
    pair.back.deliver()
    pair.a.turn()
    pair.run()
    pair.decide(0)
    assert pair.heard == [("settled", GIVEN_UP)]
    pair.end()


def test_a_barrier_that_is_refused_for_another_reason_undoes_nothing() -> None:
    """An order in the same frame is refused, and what was settled before it is not told again."""
    pair = Groups()
    ear: Any = pair.b.ears["a"]
    ear.on_call = lambda number, queue, data: pair.b.hosts.on_call(pair.b.to("a"), number, queue, data,
                                                                   pair.b.inboxes["a"].asked)
    pair.get(0, 1)
    pair.settle(0, 0)
    since = pair.a.hub.commits.mark
    pair.a.relays.order(pair.far(0), "unknown", ())
    pair.await_("order", since)
    for node, wire, other in ((pair.a, pair.there, pair.b), (pair.b, pair.back, pair.a)):
        node.turn()
        wire.idle()
        wire.deliver()
        other.turn()
    pair.there.idle()
    assert not [record for frame in pair.there.frames for record in peer.read(frame)[1] if record[0] == SETTLE]
    pair.decide(0)
    assert [key for key, why in pair.heard if why is not None] == ["order"]
    assert pair.one(0).take_settled() == [] and pair.outbox.settlements() == []
    pair.end()


def test_a_refusal_is_not_forgotten_behind_others() -> None:
    """What a frame has for two lines is looked at when each has decided its part."""
    three = Three((7, 7))
    three.leaves()
    three.send(0, "refused at c")
    three.send(1, "stands still")
    three.run()
    three.c.manager.delete(three.next.address)
    three.commits_c(True)
    for number in range(1100):
        three.send(0, number)
    three.commits_c()
    three.decide(1)
    three.commits_c()
    assert three.heard[:2] == [("refused at c", GIVEN_UP), ("stands still", None)]
    assert all(why is not None for key, why in three.heard[2:]) and len(three.heard) == 1102
    three.end()


def test_what_was_taken_back_is_withdrawn_before_it_is_committed() -> None:
    """An operator has settled a message, and its client settles it. The line has decided that, and this node has not
    released what waited for it: the delivery of another message, and the withdrawal behind that."""
    pair = Groups()
    pair.get(0, 1)
    pair.put(0, b"1")
    assert by_offset.settle_at(pair.b.manager.states[pair.owned[0]].groups[b"g", b""],
                               pair.owned[0].logs[0].number, 0)
    pair.b.turn()
    pair.settle(0, 0, "settled")
    pair.relay(0).await_owner(pair.members[0], 0, [0])
    pair.a.turn()
    pair.there.idle()
    pair.lines[0].commit(pair.lines[0].submit()[0])
    pair.there.deliver()
    pair.run()
    assert [key for key, why in pair.heard if why is not None] == ["settled"]
    pair.decide(0)
    pair.end()


# ---------------------------------------------------------------- what is kept

def test_lines_of_channels_are_used_again() -> None:
    """Those of the stream itself are not."""
    pair = Groups()
    first = pair.channel(0).line.number
    for epoch in range(5, 25):
        pair.send(0, epoch)
        pair.outbox.give_up_queues("node b has died")
        for at in range(2):
            pair.relay(at).set_owner("", None)
        pair.a.turn()
        pair.outbox.abandon("node b has died")
        del pair.a.outboxes["b"]
        pair.a.defined.set_owner(pair.a.manager.states[pair.far(0)], "b")
        pair.a.defined.set_owner(pair.a.manager.states[pair.far(1)], "b")
        assert pair.channel(0).line.name == "queues of group 10 of node b"
    assert pair.channel(0).line.number <= first + 2 + 3 * 20
    assert [why for _, why in pair.heard] == ["node b has died"] * 20
    for at in range(2):
        pair.relay(at).set_owner("", None)
    pair.outbox.abandon("end")
    pair.a.turn()


def test_a_line_is_opened_again_when_all_have_heard() -> None:
    node = QueueNode("a", 1)
    commits, heard = node.hub.commits, list[str | None]()
    line, since = commits.open_line("former"), commits.mark
    line.give()
    line.submit()
    node.hub.when_durable(lambda: heard.append(None), since, heard.append)
    with pytest.raises(UsageError, match="former"):
        line.retire()
    line.give_up("gone")
    line.retire()
    assert commits.open_line("other") is not line and line.name == "former"     # somebody has not heard of it
    node.turn()
    assert heard == ["gone"] and commits.open_line("next") is line and line.name == "next"
    assert commits.open_line("one more") is not line
    since = commits.mark
    line.give()
    line.submit()
    node.hub.when_durable(lambda: heard.append(None), since, heard.append)
    line.commit(2)
    node.turn()
    assert heard == ["gone", None]                      # what was given up before says nothing of it
    line.close("the end")
    with pytest.raises(UsageError, match="next"):
        line.retire()


def test_a_line_that_is_opened_again_never_goes_back() -> None:
    """The stream to a new life of a node counts its frames; a link that has waited for a later position of the line,
    when that was another one, would wait for ever."""
    node = QueueNode("a", 1)
    commits, link = node.hub.commits, WaitingLink(node.hub)
    line, since = commits.open_line("former"), commits.mark
    for position in range(1, 6):
        assert line.give() == position
        line.submit()
        assert link.answer(position, since)
    line.commit(5)
    release(node.hub)
    link.look()
    assert len(link.left) == 5
    line.retire()
    outbox = PeerOutbox(node.hub, "b", 1)
    since = commits.mark
    assert outbox.line is not line and outbox.line.give() == 1
    outbox.line.submit()
    assert link.answer(6, since)
    outbox.line.commit(1)
    release(node.hub)
    link.look()
    assert len(link.left) == 6
    assert outbox.queue_line is line and line.give() == 6      # its positions go on
    link.close()
    release(node.hub)


def test_frames_for_which_nobody_waits_are_one_mark() -> None:
    pair = Groups()
    pair.send(0, "first")
    for number in range(50):
        assert pair.far(0).append_message(b"$queue/q0", b"%d" % number) == 0
        pair.run()
    waiting = pair.channel(0).waiting_bytes
    assert waiting > 50 * 30
    pair.decide(0)
    assert pair.heard == [("first", None)] and pair.channel(0).waiting_bytes == 0
    pair.end()
