"""Messages of QoS 2 in a queue of another line than the journal: its records say which it has had, and who leads it
next does not take them again (QUEUE_ORIGIN, engine/queues/recovery/followed.py)."""
from __future__ import annotations

import pytest
from oracle.stored import records as records_in
from property.test_queue_encoding import NewOwner

from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.errors import CorruptError
from fluxmq._core.hub.hub import Hub
from fluxmq._core.testing.probes import pump_queues
from fluxmq.cluster.solo import solo
from fluxmq.engine.queues import records
from fluxmq.engine.queues.encoding import mark_of
from fluxmq.engine.queues.hands import Hands
from fluxmq.engine.queues.manager import QueueManager, QueueState
from fluxmq.engine.queues.recovery import followed
from fluxmq.engine.queues.recovery.line import QueueLine
from fluxmq.engine.queues.recovery.snapshot import snapshot
from fluxmq.engine.queues.relays import Hosts, Relays
from fluxmq.model.queues import QueueSpec

QUEUE = (b"/", b"q")
IDENTITY = 77


class Node:
    def __init__(self, life: int) -> None:
        self.hub = Hub(None)
        self.hub.begin_identities(life)
        self.manager = QueueManager(self.hub, cluster=solo())
        self.line = self.hub.commits.open_line("group 7")
        self.copies = QueueLine(self.manager, self.line, hands=Hands(self.manager, Relays(), Hosts(self.hub).protocols))

    @property
    def state(self) -> QueueState:
        return self.manager.queues[QUEUE]

    def publish(self, name: int, payload: bytes = b"x") -> None:
        self.hub.publish_message(b"$queue/q", payload, 2, identity=name)
        pump_queues(self.hub)

    def committed(self) -> bytes:
        pump_queues(self.hub)
        position, written = self.line.submit()
        self.line.commit(position)
        self.copies.apply(written)
        return written

    @property
    def payloads(self) -> list[bytes]:
        return [record.payload for log in self.state.queue.logs for offset in range(log.first, log.next)
                if (record := log.get(offset)) is not None]


def leader(life: int = 1) -> Node:
    node = Node(life)
    queue = node.manager.declare(QueueSpec(name="q"), node.line)[0]
    node.manager.states[queue].id = IDENTITY
    node.manager.index_identity(node.manager.states[queue])
    node.manager.record_queue(node.manager.states[queue])
    node.copies.lead()
    node.copies.note(node.state)
    return node


def origins_in(written: bytes) -> list[tuple[tuple[int, int, int], int]]:
    return [records.origin_in(body[8:]) for kind, body in records_in(written) if kind == RecordKind.QUEUE_ORIGIN]


def test_what_was_had_is_recorded_with_the_message_and_what_is_over_behind_it() -> None:
    node = leader()
    name = node.hub.next_identity()
    node.publish(name)
    written = node.committed()
    assert origins_in(written) == [((name, 0, 1), records.HAD)]
    kinds = [kind for kind, _ in records_in(written)]
    assert kinds.index(RecordKind.APPEND) < kinds.index(RecordKind.QUEUE_ORIGIN)
    node.publish(name)                          # again: it has it
    assert origins_in(node.committed()) == [] and node.payloads == [b"x"]
    node.hub.origins.forget(name)
    assert origins_in(node.committed()) == [((name, 0, 1), records.RELEASED)]
    assert node.hub.ledger.in_lines == {}


def test_a_queue_of_the_journal_records_its_origins_there() -> None:
    node = Node(1)
    node.manager.declare(QueueSpec(name="q"))
    node.publish(node.hub.next_identity())
    assert node.payloads == [b"x"] and node.hub.ledger.in_lines == {} and origins_in(node.committed()) == []


@pytest.mark.parametrize("anew", [False, True])
def test_whoever_leads_next_does_not_take_it_again(anew: bool) -> None:
    former, new = leader(), Node(2)
    new.copies.apply(former.committed())
    had, over, lost = (former.hub.next_identity() for _ in range(3))
    for name in (had, over):
        former.publish(name, b"%d" % name)
    former.hub.origins.forget(over)
    new.copies.apply(former.committed())
    if anew:                                    # a new member of the group begins with a snapshot
        new.copies.clear()
        new.copies.restore(snapshot(former.manager, former.state))
    former.publish(lost, b"not committed")
    former.line.give_up("another leads")
    former.copies.follow()
    new.copies.lead()
    for name in (had, over, lost):              # whoever sends it did not hear that it was taken
        new.publish(name, b"%d" % name)
    assert new.payloads == [b"%d" % name for name in (had, over, over, lost)]
    new.hub.origins.forget(had)
    assert ((had, 0, 1), records.RELEASED) in origins_in(new.committed())


def test_who_leads_again_knows_what_the_other_one_has_taken() -> None:
    first, second = leader(), Node(2)
    second.copies.apply(first.committed())
    here, there, given_up = (first.hub.next_identity() for _ in range(3))
    first.publish(here, b"here")
    second.copies.apply(first.committed())
    first.publish(given_up, b"given up")
    first.line.give_up("another leads")
    first.copies.follow()
    second.copies.lead()
    second.publish(there, b"there")
    first.copies.apply(second.committed())
    second.copies.follow()
    first.copies.lead()
    for name in (here, there, given_up):
        first.publish(name, b"again")
    assert first.payloads == [b"here", b"there", b"again"], "given up is not had"


def test_a_queue_that_moves_into_a_line_brings_its_origins_there() -> None:
    former, there = leader(), NewOwner(1_000_000, 1)
    name = former.hub.next_identity()
    former.publish(name)
    there.arrival.feed(snapshot(former.manager, former.state))
    assert origins_in(there.line.submit()[1]) == [((name, 0, 1), records.HAD)]


def test_of_what_is_over_the_last_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed, "RELEASED_MAX", 2)
    origins, found = followed.CopyOrigins(), Node(1)
    queue = leader().state.queue
    for use in range(1, 5):
        origins.apply(5, records.origin_body((9, 1, use), records.HAD))
        origins.apply(5, records.origin_body((9, 1, use), records.RELEASED))
    origins.apply(5, records.origin_body((9, 1, 6), records.HAD))
    origins.hand_over(5, queue, found.hub.origins)
    assert list(found.hub.ledger.in_lines) == [(9, 1, 6)]
    found.hub.origins.expect_forwarded(True)
    origins.hand_over(5, queue, found.hub.origins)
    assert {use for _, _, use in found.hub.origins.released_of(mark_of(IDENTITY))} == {3, 4}
    origins.forget(5)
    again = Node(3)
    origins.hand_over(5, queue, again.hub.origins)
    assert again.hub.ledger.in_lines == {}


@pytest.mark.parametrize("body", [b"", bytes(18), bytes(20), bytes(18) + b"\x02"])
def test_an_origin_that_is_none(body: bytes) -> None:
    with pytest.raises(CorruptError, match="the origin of a queue's message has"):
        records.origin_in(body)


@pytest.mark.parametrize("body", [b"", bytes(11), bytes(8) + b"\x00\x00\x00\x02x"])
def test_a_producer_that_is_none(body: bytes) -> None:
    with pytest.raises(CorruptError, match="shorter than it says"):
        records.produced_in(body)


@pytest.mark.parametrize("known", [(0, 0), (1, 1), (1 << 63, 1), (5, (1 << 1024) - 1)])
def test_what_a_producer_has_sent_is_read_as_written(known: tuple[int, int]) -> None:
    for name in (b"", b"p\xff", bytes(100_000)):
        assert records.produced_in(records.produced_body(name, known)) == (name, known)
