"""Records of a commit line, taken apart and applied to the objects that they name (_core/queue/line). What becomes of
queues over whole histories: property/test_queue_follower.py."""
from __future__ import annotations

import contextlib
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle.stored import records as records_in

from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.errors import CorruptError
from fluxmq._core.hub.hub import Hub
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.line import LineObjects
from fluxmq._core.queue.member import PyMember
from fluxmq._core.queue.state import cursors_in, holders_of, state_of
from fluxmq._core.testing.probes import holders_known, pump_queues
from fluxmq.cluster.solo import solo
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.engine.queues.recovery.line import QueueLine
from fluxmq.engine.queues.recovery.snapshot import snapshot
from fluxmq.engine.stored import WRONG_SHAPE
from fluxmq.model.queues import QueueSpec


class Pair:
    """A queue with a group, and an instance that follows it on another node."""

    def __init__(self) -> None:
        self.hub, self.there = Hub(None), Hub(None)
        self.line = self.hub.commits.open_line("group 7")
        manager = self.manager = QueueManager(self.hub, cluster=solo())
        self.follower = QueueLine(QueueManager(self.there, cluster=solo()), self.there.commits.open_line("group 7"))
        self.queue = manager.declare(QueueSpec(name="q"), self.line)[0]
        self.group = manager.group(self.queue, b"g")
        self.follower.apply(self.committed())

    def committed(self) -> bytes:
        pump_queues(self.hub)
        position, records = self.line.submit()
        self.line.commit(position)
        return records

    def appended(self, payload: bytes, **properties: Any) -> bytes:
        assert self.queue.append_message(b"t", payload, **properties) == 0
        return self.committed()

    def kept(self) -> list[bytes]:
        """What the follower has."""
        [(_, log)] = self.follower.logs.values()
        return [record.payload for offset in range(log.first, log.next) if (record := log.get(offset)) is not None]

    def names(self) -> bytes:
        return struct.pack(">QQ", self.group.number, self.queue.logs[0].number)


def record(kind: int, body: bytes) -> bytes:
    return struct.pack("<BI", kind, len(body)) + body


@pytest.fixture
def pair() -> Pair:
    return Pair()


@pytest.mark.parametrize("before", range(9))
def test_a_message_may_begin_anywhere_in_a_batch(pair: Pair, before: int) -> None:
    """Messages in memory are aligned, records are not."""
    pair.follower.apply(record(RecordKind.LINK, b"x" * before) + pair.appended(b"one"))
    assert pair.kept() == [b"one"]


@pytest.mark.parametrize("cut", [1, 3, 10, 60])
def test_of_a_batch_that_does_not_divide_nothing_is_applied(pair: Pair, cut: int) -> None:
    first, second = pair.appended(b"one"), pair.appended(b"two")
    with pytest.raises(CorruptError, match="does not divide into records after 1 of them"):
        pair.follower.apply(first + second[:-cut])
    assert pair.kept() == []
    pair.follower.apply(first + second)
    assert pair.kept() == [b"one", b"two"]


@pytest.mark.parametrize(("kind", "body", "why"), [
    (RecordKind.APPEND, b"1234567", "a record of kind 20 has 7 bytes"),
    (RecordKind.SETTLE, b"", "a record of kind 22 has 0 bytes"),
    (RecordKind.QUEUE, b"123", "a record of kind 24 has 3 bytes"),
    (RecordKind.TRIM, bytes(15), "a record of kind 29 has 15 bytes"),
    (RecordKind.TRIM, bytes(17), "a record of kind 29 has 17 bytes"),
])
def test_a_record_that_is_none(pair: Pair, kind: int, body: bytes, why: str) -> None:
    with pytest.raises(CorruptError, match=why):
        pair.follower.apply(record(kind, body))


@pytest.mark.parametrize("message", [b"", b"x" * 47, bytes(48), b"\x30\x00\x00\x00" + bytes(43),
                                     struct.pack("<IIQQQQIHBB", 48, 1, 0, 0, 0, 0, 0, 0, 1, 0)])
def test_an_append_that_holds_no_message(pair: Pair, message: bytes) -> None:
    body = pair.queue.logs[0].number.to_bytes(8, "big") + message
    with pytest.raises(CorruptError, match="an APPEND record holds what is no message of it"):
        pair.follower.apply(record(RecordKind.APPEND, body))
    assert pair.kept() == []


@pytest.mark.parametrize(("kind", "length"), [(RecordKind.CLAIM, 30), (RecordKind.SETTLE, 28), (RecordKind.RETURN, 34),
                                              (RecordKind.CURSOR, 24)])
def test_a_record_of_a_group_with_another_length(pair: Pair, kind: int, length: int) -> None:
    rest = {RecordKind.CLAIM: struct.pack(">QIH", 0, 1, 4), RecordKind.SETTLE: struct.pack(">QI", 0, 1),
            RecordKind.RETURN: struct.pack(">QHq", 0, 4, 1_234_567), RecordKind.CURSOR: struct.pack(">Q", 1)}
    whole = pair.names() + rest[RecordKind(kind)]
    assert len(whole) == length
    pair.follower.apply(pair.appended(b"one"))
    for size in (length - 1, length + 1, 16):
        with pytest.raises(CorruptError, match=f"a record of kind {kind} of group .* has the wrong length"):
            pair.follower.apply(record(kind, (whole + bytes(4))[:size]))
    [group] = pair.follower.groups.values()
    assert state_of(group) == state_of(pair.group)
    pair.follower.apply(record(kind, whole))
    [(log, next_, floor, pages, claims)] = cursors_in(state_of(group))
    assert claims == {RecordKind.CLAIM: [(0, 4, 0)], RecordKind.RETURN: [(0, 4, 1_234_567)]}.get(RecordKind(kind), [])
    assert (log, next_, floor, pages) == (pair.queue.logs[0].number, 1, int(not claims), [])


@pytest.mark.parametrize(("first", "kept", "next_"),
                         [(0, [b"one", b"two"], 2), (1, [b"two"], 2), (2, [], 2), (5, [], 5)])
def test_a_trim_removes_what_is_below(pair: Pair, first: int, kept: list[bytes], next_: int) -> None:
    """Above the end: a log that came from another node begins there."""
    pair.follower.apply(pair.appended(b"one") + pair.appended(b"two"))
    trim = record(RecordKind.TRIM, pair.queue.logs[0].number.to_bytes(8, "big") + first.to_bytes(8, "big"))
    pair.follower.apply(trim)
    pair.follower.apply(trim)
    [(_, log)] = pair.follower.logs.values()
    assert (pair.kept(), log.first, log.next) == (kept, first, next_)


@pytest.mark.parametrize(("first", "next_", "kept"), [
    (0, 2, (0, 2)), (1, 7, (1, 7)), (3, 2, (3, 3)), (0, 1 << 56, (0, 2))])
def test_a_trim_says_where_a_log_goes_on(pair: Pair, first: int, next_: int, kept: tuple[int, int]) -> None:
    """What was there between is not stored any more, and its offsets are not used again. Another lane's are none."""
    pair.follower.apply(pair.appended(b"one") + pair.appended(b"two"))
    trim = record(RecordKind.TRIM, struct.pack(">QQQ", pair.queue.logs[0].number, first, next_))
    pair.follower.apply(trim)
    pair.follower.apply(trim)
    [(_, log)] = pair.follower.logs.values()
    assert (log.first, log.next) == kept


def test_a_claim_names_who_holds_it(pair: Pair) -> None:
    """Each by the life of its node and its mark; what was given back or settled is nobody's."""
    pair.hub.begin_identities(9)
    members = []
    for mark, life in ((5, 0), (6, 0), (6, 8)):
        member = PyMember(lambda log, offset, deliveries: True, room=2)
        member.mark, member.life = mark, life
        members.append(member)
        pair.group.join(member)
    written = b"".join(pair.appended(b"%d" % number) for number in range(6))
    claims = [body for kind, body in records_in(written) if kind == RecordKind.CLAIM]
    assert {struct.unpack(">QIHQQ", body[16:]) for body in claims} == {
        (offset, 1, 1, (9, 9, 8)[offset % 3], (5, 6, 6)[offset % 3]) for offset in range(6)}
    pair.follower.apply(written)
    [copy] = pair.follower.groups.values()
    wanted = [(0, offset, 1, (9, 9, 8)[offset % 3], (5, 6, 6)[offset % 3]) for offset in range(6)]
    assert holders_of(copy) == wanted
    log = pair.queue.logs[0].number
    by_offset.settle_at(pair.group, log, 1)
    for member in members:
        member.room = 0
    by_offset.give_back_at(pair.group, log, 2, 0, True)
    pair.follower.apply(pair.committed())
    assert holders_of(copy) == [wanted[0], *wanted[3:]]
    raw = snapshot(pair.manager, pair.manager.states[pair.queue])
    pair.follower.clear()
    pair.follower.restore(raw)
    assert holders_of(next(iter(pair.follower.groups.values()))) == [wanted[0], *wanted[3:]]
    assert holders_of(pair.group) == []


def test_a_run_of_one_member_is_one_record(pair: Pair) -> None:
    for number in range(4):
        pair.queue.append_message(b"t", b"%d" % number)
    for mark in (5, 6):
        member = PyMember(lambda log, offset, deliveries: True, room=2)
        member.mark = mark
        pair.group.join(member)
        pump_queues(pair.hub)
    claims = [struct.unpack(">QIHQQ", body[16:]) for kind, body in records_in(pair.committed())
              if kind == RecordKind.CLAIM]
    assert claims == [(0, 2, 1, 0, 5), (2, 2, 1, 0, 6)]


def test_who_holds_nothing_any_more_is_forgotten(pair: Pair) -> None:
    """Consumers come and go for ever."""
    written = pair.appended(b"one")
    pair.follower.apply(written)
    [copy] = pair.follower.groups.values()
    for mark in range(5000):
        pair.follower.apply(record(RecordKind.CLAIM, pair.names() + struct.pack(">QIHQQ", 0, 1, 1, 1, mark)))
    assert holders_of(copy) == [(0, 0, 1, 1, 4999)]
    assert holders_known(copy) <= 2000


def test_what_is_not_there_has_ended_later(pair: Pair) -> None:
    other = (99).to_bytes(8, "big")
    pair.follower.apply(record(RecordKind.APPEND, other + b"x") + record(RecordKind.TRIM, other + bytes(8))
                        + record(RecordKind.SETTLE, other + bytes(20)) + pair.appended(b"one"))
    assert pair.kept() == [b"one"]


def test_what_is_not_about_messages_is_passed_on_in_its_order() -> None:
    objects, seen = LineObjects(lambda state, message: None), list[tuple[int, int, bytes]]()
    kinds = [kind for kind in RecordKind if kind not in (
        RecordKind.APPEND, RecordKind.TRIM, RecordKind.CLAIM, RecordKind.SETTLE, RecordKind.RETURN, RecordKind.CURSOR)]
    batch = b"".join(record(kind, kind.to_bytes(8, "big") + b"rest") for kind in kinds)
    assert objects.apply(batch, lambda kind, number, body: seen.append((kind, number, body))) == set()
    assert seen == [(kind, kind, b"rest") for kind in (
        RecordKind.CLOCK, RecordKind.NAMESPACE, RecordKind.QUEUE, RecordKind.QUEUE_END, RecordKind.GROUP,
        RecordKind.GROUP_END, RecordKind.PRODUCED, RecordKind.QUEUE_ORIGIN)]


def test_homes_of_groups_that_changed(pair: Pair) -> None:
    batch = pair.appended(b"one") + record(RecordKind.SETTLE, pair.names() + struct.pack(">QI", 0, 1))
    [state] = pair.follower.queues.values()
    assert pair.follower.objects.apply(pair.appended(b"zero"), pair.follower.replay) == set()
    assert pair.follower.objects.apply(batch, pair.follower.replay) == {state.queue}


def test_who_produced_a_message_is_known_to_the_follower(pair: Pair) -> None:
    user = b"".join(b"\x26" + len(name).to_bytes(2, "big") + name + len(value).to_bytes(2, "big") + value
                    for name, value in ((b"producer-id", b"meter"), (b"producer-sequence", b"7")))
    assert pair.queue.publish(b"$queue/q", b"one", user) == 0
    pair.follower.apply(pair.committed())
    [state] = pair.follower.queues.values()
    assert {name: highest for name, (highest, _) in state.producers.items()} == {b"meter": 7}


@settings(max_examples=150, deadline=None)
@given(flips=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(1, 255)), min_size=1, max_size=4),
       cut=st.integers(0, 40))
def test_bytes_that_have_changed_are_refused_or_applied(flips: list[tuple[int, int]], cut: int) -> None:
    """Whatever they say: nothing else is raised, and what is whole behind them is applied."""
    pair = Pair()
    batch = bytearray(b"".join(pair.appended(b"%d" % number, priority=number) for number in range(4)))
    for at, kind in enumerate((RecordKind.CLAIM, RecordKind.SETTLE, RecordKind.RETURN, RecordKind.CURSOR)):
        rest = (struct.pack(">QIH", at, 1, 1), struct.pack(">QI", at, 1), struct.pack(">QHq", at, 1, 5),
                struct.pack(">Q", at))[at]
        batch += record(kind, pair.names() + rest)
    batch += record(RecordKind.TRIM, pair.queue.logs[0].number.to_bytes(8, "big") + (2).to_bytes(8, "big"))
    for at, by in flips:
        batch[at % len(batch)] ^= by
    with contextlib.suppress(CorruptError, *WRONG_SHAPE):
        pair.follower.apply(bytes(batch[:len(batch) - cut]))
    pair.follower.apply(pair.appended(b"last"))
    assert all(log.first <= log.next for _, log in pair.follower.logs.values())
