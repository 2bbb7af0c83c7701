"""Who owns which partition of an exclusive group, and who is the active member of a single one, is in records of the
queue's line (OWNER): it stays so when another node leads, in whatever order members come to that one."""
from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from oracle.stored import journal_record
from oracle.stored import records as records_in
from property.test_queue_encoding import NewOwner

from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.errors import CorruptError
from fluxmq._core.hub.hub import Hub
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.member import PyMember
from fluxmq._core.testing.probes import pump_queues
from fluxmq.cluster.solo import solo
from fluxmq.engine.queues.hands import Hands
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.engine.queues.recovery.line import QueueLine
from fluxmq.engine.queues.recovery.snapshot import snapshot
from fluxmq.engine.queues.relays import Hosts, Relays
from fluxmq.engine.queues.retry import RetryPolicy
from fluxmq.model.queues import QueueSpec

IDENTITY = 77
Owners = dict[int, tuple[int, int]]


class Node:
    """got: by name of a member, partitions of what it was given."""

    def __init__(self, life: int, spec: QueueSpec) -> None:
        self.life, self.spec = life, spec
        self.hub = Hub(None)
        self.hub.begin_identities(life)
        self.manager = QueueManager(self.hub, cluster=solo())
        self.line = self.hub.commits.open_line("group 7")
        hosts = Hosts(self.hub)
        hosts.protocols |= {"mqtt": _Host(), "amqp": _Host()}       # type: ignore[dict-item]
        self.copies = QueueLine(self.manager, self.line, hands=Hands(self.manager, Relays(), hosts.protocols))
        self.got: dict[str, list[int]] = {}

    def group(self, mode: str = "single") -> Group:
        queue = self.manager.queues[self.spec.address].queue
        return self.manager.group(queue, b"g", mode=mode)

    def member(self, name: str, *, life: int = 0, mark: int = 0) -> PyMember:
        def deliver(log: int, offset: int, deliveries: int) -> bool:
            queue = self.manager.queues[self.spec.address].queue
            self.got.setdefault(name, []).append([one.number for one in queue.logs].index(log))
            return True

        member = PyMember(deliver, room=100)
        member.life, member.mark = life, mark
        return member

    def publish(self, count: int = 4) -> None:
        queue = self.manager.queues[self.spec.address].queue
        for at in range(count):
            queue.append_message(b"$queue/q", b"%d" % at)
        self.pump()

    def pump(self) -> None:
        while pump_queues(self.hub):
            pass

    def committed(self) -> bytes:
        self.pump()
        position, written = self.line.submit()
        self.line.commit(position)
        self.copies.apply(written)
        return written


class _Host:
    def leads(self, queue: object, member: object) -> bool:
        return False

    def adopt_member(self, queue: object, member: object, asked: object) -> None:
        pass


def leader(partitions: int = 1) -> Node:
    node = Node(1, QueueSpec(name="q", partitions=partitions))
    queue = node.manager.declare(node.spec, node.line)[0]
    node.manager.states[queue].id = IDENTITY
    node.manager.record_queue(node.manager.states[queue])
    node.copies.lead()
    node.copies.note(node.manager.states[queue])
    return node


def follower(of: Node, life: int = 2) -> Node:
    node = Node(life, of.spec)
    node.copies.apply(of.committed())
    node.manager.make_relay(of.spec, None, IDENTITY)
    return node


def owners_in(written: bytes) -> list[tuple[int, int, int]]:
    return [struct.unpack(">IQQ", body[8:]) for kind, body in records_in(written) if kind == RecordKind.OWNER]


def said(node: Node) -> Owners:
    [group] = node.copies.groups.values()
    return group.said or {}


def changes(former: Node, new: Node, has_ended: Callable[[int], bool] = lambda life: False) -> list[object]:
    new.copies.apply(former.committed())
    former.copies.follow()
    kept = new.copies.lead(has_ended)
    new.pump()
    return list(kept)


def test_the_active_member_is_recorded_when_it_changes() -> None:
    node = leader()
    group = node.group()
    first, second = node.member("first"), node.member("second", life=8, mark=5)
    group.join(first)
    assert first.mark and owners_in(node.committed()) == [(0, 1, first.mark)]
    group.join(second)
    assert owners_in(node.committed()) == []
    group.leave(first)
    assert owners_in(node.committed()) == [(0, 8, 5)] and said(node) == {0: (8, 5)}
    group.leave(second)
    assert owners_in(node.committed()) == [(0, 0, 0)] and said(node) == {}


def test_members_of_a_shared_group_own_nothing() -> None:
    node = leader(2)
    node.group("shared").join(node.member("one"))
    assert owners_in(node.committed()) == [] and said(node) == {}


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("mode", ["single", "exclusive"])
def test_who_owned_a_partition_owns_it_at_the_next_leader(mode: str, anew: bool) -> None:
    former = leader(4)
    new = follower(former)
    group = former.group(mode)
    ours, theirs = former.member("ours"), former.member("theirs", life=2, mark=5)
    group.join(ours)
    group.join(theirs)
    new.copies.apply(former.committed())
    if anew:
        new.copies.clear()
        new.copies.restore(snapshot(former.manager, former.manager.queues[former.spec.address]))
    before = said(new)
    assert before == said(former) and len(before) == 4
    relayed = new.group(mode)
    late, active = new.member("late", mark=9), new.member("active", mark=5)
    if mode == "single":
        relayed.join(late)                      # it comes before the other one; an exclusive group gives it its share
    relayed.join(active)
    kept = changes(former, new)
    new.publish(12)
    of_active = [partition for partition, owner in before.items() if owner == (2, 5)]
    assert new.got.get("late", []) == [], "what the member at the former leader owned waits for it"
    assert sorted(set(new.got.get("active", []))) == of_active == ([] if mode == "single" else of_active)
    back = new.member("back", life=1, mark=ours.mark)
    relayed.join(back)
    new.pump()
    if mode == "single":
        assert set(new.got) == {"back"} and len(new.got["back"]) == 12
    else:
        assert {partition: new.group(mode).owners()[partition].mark     # type: ignore[union-attr]
                for partition in of_active} == dict.fromkeys(of_active, 5)
        assert set(new.got["back"]) <= {0, 1, 2, 3} - set(of_active)
    assert relayed.expected is None
    new.manager.let_go(kept)                    # type: ignore[arg-type]
    new.committed()
    assert len(said(new)) == 4 and {owner for owner in said(new).values()} <= {(1, ours.mark), (2, 5), (2, 9)}


@pytest.mark.parametrize("how", ["it has died", "its time is over"])
def test_an_owner_that_does_not_come_back_owns_nothing(how: str) -> None:
    former = leader()
    new = follower(former)
    former.group().join(former.member("ours"))
    new.copies.apply(former.committed())
    new.group().join(new.member("other"))
    died = how == "it has died"
    kept = changes(former, new, lambda life: died and life == 1)
    new.publish(2)
    assert new.got == ({"other": [0, 0]} if died else {})
    assert bool(kept) is not died
    new.manager.let_go(kept)                    # type: ignore[arg-type]
    new.pump()
    assert new.got == {"other": [0, 0]}
    new.committed()
    [(life, _)] = said(new).values()
    assert life == 2


def test_this_node_s_own_member_that_is_gone_is_not_waited_for() -> None:
    """It left while another node led, and that one had not recorded it before it stopped leading."""
    former = leader()
    new = follower(former)
    former.group().join(former.member("theirs", life=2, mark=5))
    new.copies.apply(former.committed())
    new.group().join(new.member("other", mark=6))
    assert changes(former, new) == []
    new.publish(1)
    assert new.got == {"other": [0]}


def test_a_queue_that_moves_brings_its_owners() -> None:
    former = leader()
    group = former.group()
    first = former.member("first")
    group.join(first)
    group.join(former.member("second", life=8, mark=5))
    there = NewOwner(1_000_000, 1)
    there.hub.begin_identities(9)
    there.arrival.feed(snapshot(former.manager, former.manager.queues[former.spec.address]))
    [staged] = there.state.groups.values()
    assert staged.owners_said() == {0: (1, first.mark)}
    assert owners_in(there.line.submit()[1]) == [(0, 1, first.mark)]


def test_a_group_that_is_recorded_again_keeps_its_owners() -> None:
    """Its retry policy was changed."""
    node = leader()
    new = follower(node)
    first = node.member("first")
    node.group().join(first)
    node.committed()
    queue = node.manager.queues[node.spec.address].queue
    node.manager.update_retry_policy(queue, b"g", b"", RetryPolicy(max_retries=3))
    written = node.committed()
    assert [kind for kind, _ in records_in(written)] == [RecordKind.GROUP]
    assert said(node) == {0: (1, first.mark)} and owners_in(node.committed()) == []
    new.copies.apply(written)
    assert new.line.submit() == (0, b""), "a copy records nothing"


def test_what_nobody_records_is_known_all_the_same() -> None:
    """Of a queue of the journal, which moves on without its consumers."""
    node = Node(1, QueueSpec(name="q"))
    queue = node.manager.declare(node.spec)[0]
    group = node.manager.group(queue, b"g", mode="single")
    group.expect({0: (8, 5)})
    member = node.member("first", life=8, mark=5)
    group.join(member)
    assert group.expected is None and group.owners_said() == {0: (8, 5)}
    group.leave(member)
    assert group.owners_said() == {}


def test_while_a_queue_rests_nothing_is_said() -> None:
    """Its members leave because it moves, and come back if it does not."""
    node = leader()
    group, queue = node.group(), node.manager.queues[node.spec.address].queue
    first, second = node.member("first"), node.member("second", life=8, mark=5)
    group.join(first)
    group.join(second)
    node.committed()
    queue.resting = True
    group.leave(first)
    assert owners_in(node.committed()) == [] and group.said == {0: (1, first.mark)}
    group.leave(second)
    assert group.owners_said() == {}, "who has left does not come to the next owner"
    group.join(second)
    queue.resting = False
    group.join(node.member("third", mark=9))
    assert owners_in(node.committed()) == [(0, 8, 5)]


def test_the_time_of_an_earlier_move_is_not_that_of_the_next_one() -> None:
    former = leader()
    new = follower(former)
    former.group().join(former.member("ours"))
    kept = changes(former, new)
    [(group, one)] = kept                       # type: ignore[misc]
    group.leave(one)                            # as when it moved on, and came back
    new.manager.let_go(kept)                    # type: ignore[arg-type]
    assert group.expected == {0: (1, said(new)[0][1])}


def test_a_record_of_another_length_is_refused() -> None:
    node = leader()
    group = node.group()
    new = follower(node)
    for length in (8, 27, 29):
        with pytest.raises(CorruptError, match="has the wrong length"):
            new.copies.apply(journal_record(RecordKind.OWNER, (group.number.to_bytes(8, "big") + bytes(40))[:length]))
    assert said(new) == {}
