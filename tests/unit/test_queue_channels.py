"""Queues that groups of nodes replicate, over the stream between two nodes: what waits for one group waits for nothing
else. The test commits for the groups, or gives up."""
from __future__ import annotations

from typing import Any

import pytest
from oracle import peer
from unit.test_queue_relay import Lines

from fluxmq._core.errors import ProtocolError
from fluxmq._core.peer.channel import Channel
from fluxmq._core.peer.queue_relay import QueueRelay, RelayMember
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.queue import Queue
from fluxmq.model.queues import QueueLimits, QueueSpec

pytestmark = pytest.mark.usefixtures("nothing_is_left")

GROUPS = 10, 11
COMMITTED, REFUSED = 19, 20         # kinds of records: _core/peer/frames.pxd
GIVEN_UP = "another leads"


class Groups(Lines):
    """As Lines, and node a knows the group of each queue. heard: what clients that wait were told, in order."""

    def __init__(self, window_bytes: int = 1 << 24, groups: tuple[int, int] = GROUPS) -> None:
        self.heard = list[tuple[Any, str | None]]()
        super().__init__(window_bytes, groups)
        for at in range(2):
            self.decide(at)

    def run(self) -> None:
        super().run()
        for node, other in ((self.a, "b"), (self.b, "a")):
            node.to(other).send_ack()
        super().run()

    @property
    def outbox(self) -> Any:
        return self.a.to("b")

    def relay(self, at: int) -> QueueRelay:
        relay = self.far(at).relay
        assert isinstance(relay, QueueRelay)
        return relay

    def far(self, at: int) -> Queue:
        """The queue, at node a."""
        return self.a.manager.queues[b"/", b"q%d" % at].queue

    def channel(self, at: int) -> Channel:
        channel = self.relay(at).channel
        assert channel is not None
        return channel

    def one(self, at: int) -> RelayMember:
        [one] = self.relay(at).consumers
        return one

    def await_(self, key: Any, since: int) -> None:
        heard = self.heard
        self.a.hub.when_durable(lambda: heard.append((key, None)), since,
                                lambda why: heard.append((key, why or "refused")))

    def send(self, at: int, key: Any, payload: bytes = b"") -> None:
        """A client of node a publishes."""
        since = self.a.hub.commits.mark
        assert self.far(at).publish(b"$queue/q", payload or str(key).encode()) == 0
        self.await_(key, since)

    def get(self, at: int, count: int) -> None:
        """The consumer of node a gets so many messages."""
        before = len(self.came)
        for number in range(count):
            self.put(at, b"%d" % number)
        self.decide(at)
        self.decide(at)
        assert len(self.came) == before + count

    def settle(self, at: int, offset: int, key: Any = None) -> None:
        """key: its client waits (tx.commit)."""
        member, since = self.members[at], self.a.hub.commits.mark
        assert by_offset.settle_at(member.group, self.far(at).logs[0].number, offset)
        if key is not None:
            member.group.flush_records()
            self.await_(key, since)

    def undo(self, at: int) -> None:
        """Another node leads the group. Node a has heard what was given up, and not had a turn since."""
        self.run()
        self.lines[at].give_up(GIVEN_UP)
        self.b.turn()
        self.back.idle()
        self.back.deliver()

    def lag(self, at: int) -> int:
        return self.b.manager.states[self.owned[at]].groups[b"g", b""].lag


def test_a_relay_knows_the_group_of_its_queue() -> None:
    pair = Groups()
    assert [pair.relay(at).replication_group for at in range(2)] == [*GROUPS]
    assert [channel.group for channel in pair.outbox.channels] == [0, *GROUPS]
    assert [pair.channel(at).number for at in range(2)] == [1, 2]
    other = pair.queue.relay
    assert isinstance(other, QueueRelay) and other.channel is pair.outbox.channels[0]
    pair.end()


def test_queues_of_one_group_share_a_channel() -> None:
    pair = Groups(groups=(7, 7))
    assert pair.channel(0) is pair.channel(1) and pair.channel(0).line.name == "queues of group 7 of node b"
    pair.send(0, "waits")
    pair.send(1, "behind it")
    pair.run()
    pair.decide(1)
    assert pair.heard == []             # COMMITTED tells all up to a position
    pair.decide(0)
    assert pair.heard == [("waits", None), ("behind it", None)]
    pair.end()


def test_a_group_that_stands_still_holds_back_its_own_publishers_only() -> None:
    pair = Groups()
    for number in range(3):
        pair.send(0, ("stands", number))
        pair.send(1, ("goes", number))
        pair.publish(number)
        pair.decide(1)
        assert pair.heard.pop() == (("goes", number), None) and pair.outcomes.pop(number) is None
        assert pair.outbox.unacknowledged_bytes == 0
    assert pair.heard == []
    pair.decide(0)
    assert pair.heard == [(("stands", number), None) for number in range(3)]
    assert [pair.channel(at).waiting_bytes for at in range(2)] == [0, 0]
    pair.end()


def test_a_frame_with_what_no_channel_waits_for_is_kept_as_long_as_its_line_stands_still() -> None:
    """Node a does not know that the queue is replicated."""
    pair = Groups(groups=(0, 11))
    pair.send(0, "unknown")
    pair.send(1, "known")
    pair.decide(1)
    assert pair.heard == [("known", None)] and pair.outbox.unacknowledged_bytes > 0
    pair.decide(0)
    assert pair.heard[1:] == [("unknown", None)] and pair.outbox.unacknowledged_bytes == 0
    pair.end()


def test_what_was_given_up_is_refused_and_nothing_else() -> None:
    pair = Groups()
    pair.send(0, "first")
    pair.decide(0, given_up=True)
    pair.send(0, "second")
    pair.send(1, "other")
    pair.run()
    assert pair.heard == [("first", GIVEN_UP)]
    pair.decide(1)
    pair.decide(0)
    assert pair.heard[1:] == [("other", None), ("second", None)]
    pair.end()


def test_a_full_queue_refuses_in_its_channel() -> None:
    pair = Groups()
    pair.b.manager.declare(QueueSpec(name="q0", limits=QueueLimits(max_depth=1)))
    for number in range(1100):
        pair.send(0, number)
    pair.send(1, "other")
    pair.run()
    pair.decide(0)
    pair.decide(1)
    refused = [key for key, why in pair.heard if why is not None]
    assert pair.heard[-1] == ("other", None) and refused == list(range(1100 - len(refused), 1100)) and refused
    pair.end()


# ---------------------------------------------------------------- what consumers settle

def test_settlements_are_kept_until_the_group_has_them() -> None:
    pair = Groups()
    pair.get(0, 3)
    pair.get(1, 1)
    for offset in range(3):
        pair.settle(0, offset)
    pair.settle(1, 0)
    pair.run()
    number = pair.one(0).number
    assert pair.outbox.unacknowledged_bytes == 0 and pair.lag(0) == 0
    assert [what[3] for of, what in pair.outbox.settlements() if of == number] == [0, 1, 2]
    assert pair.channel(0).waiting_bytes > 0
    pair.decide(1)
    assert {of for of, _ in pair.outbox.settlements()} == {number}
    pair.decide(0)
    assert pair.outbox.settlements() == [] and pair.channel(0).waiting_bytes == 0
    pair.end()


@pytest.mark.parametrize("acknowledged", [True, False])
def test_the_next_owner_gets_what_the_group_had_not_committed(acknowledged: bool) -> None:
    pair = Groups()
    pair.get(0, 2)
    pair.settle(0, 1)
    if acknowledged:
        pair.run()
    else:
        pair.outbox.cut()
    pair.outbox.give_up_queues("node b has died")
    assert pair.one(0).held() == [(0, 0, 1), (0, 1, 1)]
    assert [what[4] for what in pair.one(0).take_settled()] == [1]
    assert pair.channel(0).waiting_bytes == 0
    pair.end()


def test_a_change_of_owner_takes_settlements_along() -> None:
    pair = Groups()
    pair.get(0, 2)
    pair.settle(0, 0)
    pair.run()
    pair.settle(0, 1)           # gathers
    pair.relay(0).set_owner("", None)
    assert [what[4] for what in pair.one(0).take_settled()] == [0, 1]
    pair.end()


def test_what_was_settled_and_given_up_is_kept_for_the_next_owner() -> None:
    pair = Groups()
    pair.get(0, 2)
    pair.get(1, 1)
    pair.settle(0, 0)
    pair.settle(1, 0)
    pair.undo(0)
    assert [what[4] for what in pair.one(0).take_settled()] == [0] and pair.one(1).take_settled() == []
    assert len(pair.outbox.settlements()) == 1          # of the other group
    pair.decide(1)
    assert pair.outbox.settlements() == []
    pair.end()


def test_what_a_consumer_has_got_again_is_not_kept() -> None:
    pair = Groups()
    pair.get(0, 1)
    assert by_offset.give_back_at(pair.members[0].group, pair.far(0).logs[0].number, 0, 0, True)
    pair.run()
    assert len(pair.outbox.settlements()) == 1
    pair.decide(0)
    pair.decide(0)
    assert pair.came == [(0, 0), (0, 0)] and pair.outbox.settlements() == []
    pair.end()


def test_who_waits_for_a_settlement_hears_what_became_of_it() -> None:
    pair = Groups()
    pair.get(0, 3)
    pair.settle(0, 0, "done")
    pair.run()
    assert pair.heard == []
    pair.decide(0)
    pair.settle(0, 1, "not done")
    pair.undo(0)
    assert [what[4] for what in pair.one(0).take_settled()] == [1]
    pair.run()
    assert pair.heard == [("done", None), ("not done", GIVEN_UP)]
    pair.settle(0, 2, "done again")
    pair.decide(0)
    assert pair.heard[2:] == [("done again", None)]
    pair.end()


def test_so_does_one_whose_node_does_not_know_the_group() -> None:
    pair = Groups(groups=(0, 0))
    pair.get(0, 2)
    pair.settle(0, 0, "not done")
    pair.decide(0, given_up=True)
    pair.settle(0, 1, "done")
    pair.decide(0)
    assert pair.heard == [("not done", GIVEN_UP), ("done", None)]
    pair.end()


def test_who_waits_behind_something_undecided_is_refused_with_it() -> None:
    """The barrier comes in another frame than what it is for."""
    pair = Groups()
    pair.get(0, 1)
    pair.settle(0, 0)
    pair.run()
    since = pair.a.hub.commits.mark
    pair.members[0].group.flush_records()
    pair.await_("behind", since)
    pair.send(1, "other")
    pair.run()
    pair.decide(1)
    assert pair.heard == [("other", None)]
    pair.decide(0, given_up=True)
    assert pair.heard[1:] == [("behind", GIVEN_UP)]
    since = pair.a.hub.commits.mark
    pair.members[0].group.flush_records()
    pair.await_("later", since)
    pair.run()
    assert pair.heard[2:] == [("later", None)]
    pair.end()


def test_an_order_is_refused_if_it_was_given_up() -> None:
    pair = Groups()
    pair.b.hosts.calls["drop"] = lambda queue, member, offset: by_offset.settle_at(
        pair.b.manager.states[queue].groups[b"g", b""], queue.logs[0].number, offset)
    ear: Any = pair.b.ears["a"]
    ear.on_call = lambda number, queue, data: pair.b.hosts.on_call(pair.b.to("a"), number, queue, data,
                                                                   pair.b.inboxes["a"].asked)
    pair.get(0, 2)
    for offset, given_up in enumerate((True, False)):
        since = pair.a.hub.commits.mark
        pair.a.relays.order(pair.far(0), "drop", (offset,))
        pair.await_(offset, since)
        pair.run()
        assert len(pair.heard) == offset
        pair.decide(0, given_up=given_up)
    assert pair.heard == [(0, GIVEN_UP), (1, None)]
    since = pair.a.hub.commits.mark
    pair.a.relays.order(pair.far(0), "unknown", ())
    pair.await_(2, since)
    pair.run()
    assert pair.heard[2][0] == 2 and "unknown" in str(pair.heard[2][1])     # refused in its channel
    pair.end()


def test_a_barrier_that_nobody_awaits_is_not_refused() -> None:
    """Publishes that are kept behind it go on: what was sent to the former owner cannot come later."""
    pair = Groups()
    pair.send(0, "lost")
    pair.a.turn()
    pair.relay(0).fence()
    pair.send(0, "kept")
    pair.run()
    assert pair.heard == [] and pair.relay(0).fenced
    pair.decide(0, given_up=True)
    pair.decide(0)
    assert pair.heard == [("lost", GIVEN_UP), ("kept", None)]
    pair.end()


# ---------------------------------------------------------------- ends

def test_the_death_of_a_node_gives_up_all_channels() -> None:
    pair = Groups()
    pair.send(0, 0)
    pair.send(1, 1)
    pair.run()
    pair.outbox.give_up_queues("node b has died")
    pair.a.turn()
    assert sorted(pair.heard) == [(0, "node b has died"), (1, "node b has died")]
    pair.end()


def test_what_is_not_decided_in_time_is_given_up_though_its_frame_is_acknowledged() -> None:
    pair = Groups()
    pair.send(0, "late")
    pair.run()
    cut = pair.outbox.cut()
    pair.send(0, "in time")
    pair.run()
    pair.outbox.give_up_before(cut, "not in time")
    pair.a.turn()
    assert pair.heard == [("late", "not in time")] and pair.channel(0).waiting_bytes > 0
    pair.decide(0)
    assert pair.heard[1:] == [("in time", None)] and pair.channel(0).waiting_bytes == 0
    pair.end()


def test_a_refusal_that_comes_too_late_has_no_effect() -> None:
    pair = Groups()
    pair.send(0, "late")
    pair.run()
    pair.outbox.give_up_before(pair.outbox.cut(), "not in time")
    pair.decide(0, given_up=True)
    assert pair.heard == [("late", "not in time")]
    pair.end()


def test_another_life_of_the_node_does_not_answer_for_what_the_former_one_acknowledged() -> None:
    pair = Groups()
    pair.get(0, 1)
    pair.settle(0, 0)
    pair.send(0, "acknowledged")
    pair.run()
    pair.send(0, "sent again")
    pair.a.turn()
    frames: list[bytes] = []
    pair.outbox.detach()
    pair.outbox.attach(frames.append, 99, pair.outbox.acknowledged_upto)
    pair.a.turn()
    assert pair.heard == [("acknowledged", "node b was started again")]
    assert [what[4] for what in pair.one(0).take_settled()] == [0]
    assert any(record[0] == 9 for frame in frames for record in peer.read(frame)[1])
    pair.outbox.give_up_queues("end")
    pair.a.turn()
    pair.end()


@pytest.mark.parametrize(("record", "why"), [
    ((COMMITTED, 3 << 48 | 1), "channel 3, which was not opened"), ((COMMITTED, 1 << 48 | 9), "the next one is"),
    ((REFUSED, 3 << 48 | 1, 0x80, b"", 0), "channel 3"), ((REFUSED, 1 << 48 | 9, 0x80, b"", 1), "the next one is"),
], ids=str)
def test_a_node_answers_only_what_was_asked(record: peer.Record, why: str) -> None:
    pair = Groups()
    inbox = pair.a.inboxes["b"]
    header = {"version": 1, "records": 1, "epoch": 2, "to_epoch": 1, "sequence": inbox.position + 1}
    frame = peer.build(header, [record])
    with pytest.raises(ProtocolError, match=why):
        inbox.apply(frame)
    pair.end()


def test_a_consumer_whose_number_is_used_already_does_no_harm() -> None:
    """The queue is one that the node does not have."""
    pair = Groups()
    inbox = pair.b.inboxes["a"]
    header = {"version": 1, "records": 1, "epoch": 1, "to_epoch": 2, "sequence": inbox.position + 1}
    inbox.apply(peer.build(header, [(12, pair.one(0).number, 999, pair.channel(1).number, b"\xc0")]))
    assert not [what for what in pair.b.heard if what[1] != "attach"]
    pair.end()


# ---------------------------------------------------------------- windows

def test_what_stands_still_does_not_fill_the_window() -> None:
    """And is a part of it at most: then its publishers wait, and those of others do not (see
    tests/integration/test_peer_streams.py)."""
    pair = Groups(window_bytes=40_000)
    for number in range(12):
        pair.send(0, ("stands", number), bytes(1000))
        pair.run()
    assert 10_000 <= pair.channel(0).waiting_bytes < 14_000
    assert pair.outbox.unacknowledged_bytes == 0
    for number in range(60):
        pair.send(1, number, bytes(1000))
        pair.decide(1)
    assert pair.heard == [(number, None) for number in range(60)] and pair.channel(1).waiting_bytes == 0
    pair.decide(0)
    assert len(pair.heard) == 72 and pair.channel(0).waiting_bytes == 0
    pair.end()
