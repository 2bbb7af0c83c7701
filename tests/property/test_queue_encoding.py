"""A queue as records (engine/queues/encoding.py), applied by the node that it moves to: that one knows what the first
one knows, with deadlines in its own clock, and what it has recorded says the same to whoever reads it."""
from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test
from oracle.stored import journal_record, message
from oracle.stored import records as records_in
from property.test_queue_group import SMOKE, SOAK, QueueMachine

from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.errors import CorruptError
from fluxmq._core.hub.hub import Hub
from fluxmq._core.memory.commits import Line
from fluxmq._core.queue.export import unflushed
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.line import append_records
from fluxmq._core.queue.log import Log
from fluxmq._core.queue.state import cursors_in, state_of
from fluxmq.cluster.solo import SoloReplicator, solo
from fluxmq.engine.queues.hands import Hands
from fluxmq.engine.queues.manager import QueueManager, QueueState
from fluxmq.engine.queues.moves import Arrival
from fluxmq.engine.queues.recovery.line import QueueLine
from fluxmq.engine.queues.recovery.snapshot import digest, snapshot
from fluxmq.engine.queues.relays import Relays
from fluxmq.model.queues import QueueSpec

YEARS_MS = 10 * 365 * 24 * 3600 * 1000
IDENTITY = 77


class _Lines(SoloReplicator):
    def __init__(self, line: Line) -> None:
        self.line = line

    def line_of_queue(self, namespace: bytes, name: bytes, durable: bool) -> Line | None:
        return self.line


class NewOwner:
    """A node whose clocks are ten years ahead, and what it stores of a queue that moves to it."""

    def __init__(self, wall_ms: int, mono_ms: int) -> None:
        self.hub = Hub(None)
        self.hub.set_clock(wall_ms + YEARS_MS, mono_ms, YEARS_MS)
        for at in range(3):
            self.hub.namespaces.add(b"only here %d" % at)
        self.line = self.hub.commits.open_line("group 9")
        cluster = solo()._replace(replicator=_Lines(self.line))  # type: ignore[arg-type]
        self.manager = QueueManager(self.hub, cluster=cluster)
        self.arrival = Arrival(self.manager, Hands(self.manager, Relays(), {}))

    @property
    def state(self) -> QueueState:
        assert self.arrival.state is not None
        return self.arrival.state

    def restarted(self, wall_ms: int, mono_ms: int) -> tuple[QueueManager, QueueState]:
        """What somebody knows who has what this node has recorded, and nothing else."""
        hub = Hub(None)
        hub.set_clock(wall_ms + YEARS_MS, mono_ms, YEARS_MS)
        manager = QueueManager(hub, cluster=solo())
        copies = QueueLine(manager, hub.commits.open_line("group 9"), hands=Hands(manager, Relays(), {}))
        position, records = self.line.submit()
        self.line.commit(position)
        copies.apply(records, self.hub.steady_ms)
        [state] = copies.queues.values()
        return manager, state


def in_parts(raw: bytes, cuts: list[int]) -> list[bytes]:
    """Records, divided anywhere between two of them."""
    records = [journal_record(*one) for one in records_in(raw)]
    ends = sorted({*(cut % len(records) for cut in cuts), len(records)})
    return [b"".join(records[begin:end]) for begin, end in zip([0, *ends], ends, strict=False) if end > begin]


def known(state: QueueState, steady_ms: int) -> Any:
    """Everything, by places of logs instead of their numbers, and by how long something has still to wait."""
    def left(due: int) -> int:
        return max(due - steady_ms, 0) if due > 0 else due

    places = {log.number: at for at, log in enumerate(state.logs)}

    def of_group(group: Group) -> Any:
        group.flush_records()
        return [(places[log], floor, [(base, bits) for base, bits in pages if base + bits.bit_length() > floor],
                 # What is held and below the floor was settled by a seek: it does not come again.
                 [(offset, count, left(due)) for offset, count, due in claims if offset >= floor])
                for log, _, floor, pages, claims in cursors_in(state_of(group))]

    def of_log(log: Log) -> Any:
        records = [(offset, record) for offset in range(log.first, log.next)
                   if (record := log.get(offset)) is not None]
        return log.first, log.next, [(offset, record.payload, record.priority, left(record.expires_at),
                                      left(record.not_before)) for offset, record in records]

    delays = state.queue.delays
    return (state.id, state.spec.type, dict(state.producers), [of_log(log) for log in state.logs],
            {key: (group.mode, of_group(group)) for key, group in state.groups.items()},
            of_group(delays.group) if delays is not None else None)


class MovedMachine(QueueMachine):
    """Any step may find the queue copied to another node."""

    def declare(self, spec: QueueSpec) -> Any:
        queue = super().declare(spec)
        self.manager.states[queue].id = IDENTITY
        return queue

    @rule(cuts=st.lists(st.integers(0, 200), max_size=4), sequence=st.integers(1, 3000), producer=st.binary(max_size=3))
    def copied(self, cuts: list[int], sequence: int, producer: bytes) -> None:
        self.state.note_produced(producer, (sequence, random.Random(sequence).getrandbits(1024) | 1))
        raw = snapshot(self.manager, self.state)
        before = known(self.state, self.hub.steady_ms)
        there = NewOwner(self.wall, self.mono)
        for part in in_parts(raw, cuts):
            assert not there.arrival.whole
            there.arrival.feed(part)
        assert there.arrival.whole
        assert known(there.state, there.hub.steady_ms) == before == known(self.state, self.hub.steady_ms)
        wanted = digest(there.manager, there.state)
        assert digest(*there.restarted(self.wall, self.mono)) == wanted
        assert all(unflushed(log, None) for log in there.state.logs if log.next > log.first)

    @rule(evict=st.booleans())
    def checkpoint(self, evict: bool) -> None:
        """A snapshot has what is in memory."""


def test_a_queue_that_moves_is_the_same_at_its_new_owner() -> None:
    run_state_machine_as_test(MovedMachine, settings=settings(SMOKE, max_examples=150))


@pytest.mark.soak
def test_a_queue_that_moves_is_the_same_at_its_new_owner_for_long() -> None:
    run_state_machine_as_test(MovedMachine, settings=SOAK)


def moving() -> tuple[MovedMachine, bytes]:
    """A queue with some of everything, and its records."""
    machine = MovedMachine()
    machine.make(partitions=4, lanes=3, retries=2, depth=0, drop=False, returned=0)
    machine.group("a")
    machine.group("c")
    machine.publish(4, 2, b"x", 0, 0, True)
    machine.publish(4, 0, b"y", 500, 0, True)
    machine.publish(2, 0, b"", 0, 50, True)
    machine.join("a", 5, 0)
    machine.settle("a", 0.3, True, False)
    machine.state.note_produced(b"p", (9, 5))
    return machine, snapshot(machine.manager, machine.state)


@settings(max_examples=300, deadline=None)
@given(flips=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(1, 255)), max_size=4), cut=st.integers(0, 80),
       order=st.integers(0, 3))
def test_what_is_no_queue_is_refused_or_taken(flips: list[tuple[int, int]], cut: int, order: int) -> None:
    """Whatever another node sends: nothing else is raised, and the copy can be given up."""
    machine, whole = moving()
    raw = bytearray(whole)
    for at, by in flips:
        raw[at % len(raw)] ^= by
    there = NewOwner(machine.wall, machine.mono)
    parts = [bytes(raw[:len(raw) - cut])]
    with contextlib.suppress(AssertionError):       # it does not divide into records
        parts = in_parts(parts[0], [7, 11, 30])
    if order:
        random.Random(order).shuffle(parts)
    with contextlib.suppress(CorruptError):
        for part in parts:
            there.arrival.feed(part)
    there.arrival.abandon()
    assert there.manager.states == {}


@pytest.mark.parametrize(("left_out", "why"), [
    (RecordKind.CLOCK, "begins without its clock"), (RecordKind.QUEUE, "names a log .* that was not sent"),
    (RecordKind.GROUP, "names a group .* that was not sent")])
def test_what_is_named_before_it_was_sent_is_refused(left_out: RecordKind, why: str) -> None:
    machine, raw = moving()
    records = records_in(raw)
    at = next(at for at, (kind, _) in enumerate(records) if kind == left_out)
    there = NewOwner(machine.wall, machine.mono)
    with pytest.raises(CorruptError, match=why):
        there.arrival.feed(b"".join(journal_record(*one) for one in records[:at] + records[at + 1:]))
    assert not there.arrival.whole


def test_a_group_that_comes_twice_is_refused() -> None:
    machine, raw = moving()
    records = records_in(raw)
    group = next(one for one in records if one[0] == RecordKind.GROUP)
    there = NewOwner(machine.wall, machine.mono)
    with pytest.raises(CorruptError, match="comes twice"):
        there.arrival.feed(b"".join(journal_record(*one) for one in [*records[:-1], group]))


def test_a_record_that_says_nothing_of_a_queue_is_refused() -> None:
    machine, raw = moving()
    records = records_in(raw)
    there = NewOwner(machine.wall, machine.mono)
    with pytest.raises(CorruptError, match="does not say what a queue has"):
        there.arrival.feed(b"".join(journal_record(*one) for one in [*records[:-1], (RecordKind.GROUP_END, bytes(8))]))


def test_a_claim_on_a_delayed_message_is_refused() -> None:
    """The group of a queue has nothing to do with its delay log. It would fail when the queue is this node's."""
    machine, raw = moving()
    records = records_in(raw)
    delays = machine.queue.delays
    assert delays is not None
    group = next(body[:8] for kind, body in records if kind == RecordKind.GROUP)
    claim = group + delays.log.number.to_bytes(8, "big") + bytes(8) + b"\x00\x00\x00\x01\x00\x01"
    there = NewOwner(machine.wall, machine.mono)
    with pytest.raises(CorruptError, match="a log that its group does not read"):
        there.arrival.feed(b"".join(journal_record(*one) for one in [*records[:-1], (RecordKind.CLAIM, claim)]))


@pytest.mark.parametrize("damaged", [bytes(48), b"\xff" * 48, b"x", (64).to_bytes(4, "little") + bytes(44)])
def test_what_is_no_message_is_not_sent(damaged: bytes) -> None:
    """As a segment has it whose damage nobody has found yet."""
    whole = message(0, 1, b"t", b"payload")
    assert append_records(5, whole) == journal_record(RecordKind.APPEND, (5).to_bytes(8, "big") + whole)
    with pytest.raises(CorruptError, match="has what is no message"):
        append_records(5, whole + damaged)


def test_who_holds_what_is_kept_for_them() -> None:
    machine, raw = moving()
    there = NewOwner(machine.wall, machine.mono)
    there.arrival.feed(raw)
    held = {(group.name, there.state.logs.index(next(log for log in there.state.logs if log.number == number)), offset)
            for group, found in there.arrival._objects.held.items() for number, first, count, _ in found
            for offset in range(first, first + count)}
    assert held == {(name.encode(), *place) for name, place in machine.in_hand()} and held
