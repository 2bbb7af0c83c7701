"""Many queues, many groups: everything arrives once, and the work for one of them does not grow with the others. Work
is counted in records, in what a checkpoint takes over and in bytes, never in time."""
from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from crash.queue_node import QueueNode, View
from kit.settling import settle_upto
from oracle.stored import batches_of_journals

from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.member import PyMember
from fluxmq.engine import durability
from fluxmq.engine.queues.recovery.store import EXPORT_WORK, WORK_OF_A_QUEUE
from fluxmq.model.queues import QueueSpec

QUEUES = 10_000
GROUPS = 1_000
CLOCK = (1_000_000, 0)
CHUNK_BYTES_MIN = 4096


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


class Counting:
    """Who got what, how often."""

    def __init__(self) -> None:
        self.got: Counter[tuple[bytes, int]] = Counter()

    def member(self, name: bytes, room: int) -> PyMember:
        def deliver(log: int, offset: int, count: int) -> None:
            self.got[name, offset] += 1

        return PyMember(deliver, None, room)


def records(directory: Path, after: int = 0) -> Counter[int]:
    """Of the journal, by kind, but for the time that closes each batch."""
    return Counter(kind for batch in batches_of_journals(directory / "journal", after) for kind, _ in batch.records
                   if kind != RecordKind.CLOCK)


def restart(node: QueueNode, identity: int) -> QueueNode:
    """As a kill would leave it: without a last checkpoint."""
    assert node.store is not None
    view = node.store.view
    node.stop()
    return QueueNode(node.directory, node.loop, view, CLOCK, identity, False)


def exported(node: QueueNode) -> int:
    """What a checkpoint would write into the view now, in keys."""
    assert node.checkpoint is None
    before = node.store.view.data if node.store is not None else {}
    node.begin_checkpoint()
    node.finish_checkpoint()
    assert node.store is not None
    return sum(before.get(key) is not value for key, value in node.store.view.data.items())


def test_ten_thousand_queues(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    node = QueueNode(tmp_path, loop, View(), CLOCK, 1, False)
    manager = node.manager
    names = [b"q%d" % number for number in range(QUEUES)]
    node.in_turn(lambda: [manager.declare(QueueSpec(name=name.decode())) for name in names])
    node.sync()
    assert records(tmp_path) == {RecordKind.QUEUE: QUEUES}
    assert sum(log.memory for state in manager.queues.values() for log in state.queue.logs) == 0
    node.in_turn(lambda: [manager.queues[b"/", name].queue.append_message(b"$queue/" + name, name) for name in names])
    node.sync()
    assert records(tmp_path) == {RecordKind.QUEUE: QUEUES, RecordKind.APPEND: QUEUES}
    assert all(state.queue.logs[0].memory <= CHUNK_BYTES_MIN for state in manager.queues.values())

    node = restart(node, 2)
    manager, counting = node.manager, Counting()
    assert sorted(name for _, name in manager.queues) == sorted(names)
    firsts = [manager.queues[b"/", name].queue.logs[0].get(0) for name in names]
    assert [first and first.payload for first in firsts] == names

    def consume() -> None:
        for name in names:
            manager.group(manager.queues[b"/", name].queue, b"g").join(counting.member(name, 2))

    node.in_turn(consume)
    node.sync()
    assert counting.got == {(name, 0): 1 for name in names}
    assert exported(node) >= 2 * QUEUES

    # One queue is busy, the others are not: they cost nothing, not in the journal and not in a checkpoint.
    looked = node.queues.looked
    last = node.journal.durable
    one = manager.queues[b"/", names[4711]].queue
    node.in_turn(lambda: one.append_message(b"$queue/q4711", b"more"))
    node.sync()
    assert records(tmp_path, last) == {RecordKind.APPEND: 1, RecordKind.CLAIM: 1}
    assert exported(node) <= 4
    assert node.queues.looked == looked + 1

    def settle() -> None:
        for name in names:
            (group,) = manager.queues[b"/", name].groups.values()
            assert by_offset.settle_at(group, manager.queues[b"/", name].queue.logs[0].number, 0)

    node.in_turn(settle)
    node.sync()
    node = restart(node, 3)
    node.in_turn(lambda: None)
    depths = {name: state.queue.depth for (_, name), state in node.manager.queues.items()}
    assert depths == {name: int(name == names[4711]) for name in names}
    node.stop()


def test_a_thousand_groups(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    node = QueueNode(tmp_path, loop, View(), CLOCK, 1, False)
    queue = node.manager.declare(QueueSpec(name="q"))[0]
    counting = Counting()
    names = [b"g%d" % number for number in range(GROUPS)]

    def join() -> None:
        for name in names:
            node.manager.group(queue, name).join(counting.member(name, 5))

    node.in_turn(join)
    node.sync()
    last = node.journal.durable
    node.in_turn(lambda: [queue.append_message(b"$queue/q", b"x" * 100) for _ in range(20)])
    node.sync()
    # A message is there once, however many groups look at it; claims in a row are one record.
    assert records(tmp_path, last) == {RecordKind.APPEND: 20, RecordKind.CLAIM: GROUPS}
    assert queue.logs[0].memory <= 2 * CHUNK_BYTES_MIN
    assert counting.got == {(name, offset): 1 for name in names for offset in range(5)}

    number = queue.logs[0].number
    state = node.manager.queues[b"/", b"q"]
    slow = state.groups[b"g77", b""]

    def settle(first: int) -> None:
        for (name, _), group in state.groups.items():
            for offset in range(first, first + 5):
                assert group is slow or by_offset.settle_at(group, number, offset), (name, offset)

    for first in range(0, 20, 5):
        node.in_turn(lambda first=first: settle(first))
    assert counting.got == {(name, offset): 1 for name in names for offset in range(5 if name == b"g77" else 20)}
    assert queue.depth == 20 and queue.logs[0].first == 0       # one group is not done with any
    node.sync()

    node = restart(node, 2)
    state = node.manager.queues[b"/", b"q"]
    again = Counting()

    def rejoin() -> None:
        for (name, _), group in state.groups.items():
            group.join(again.member(name, 100))

    node.in_turn(rejoin)
    assert again.got == {(b"g77", offset): 1 for offset in range(20)}
    node.in_turn(lambda: settle_upto(state.groups[b"g77", b""], number, 19))
    node.sync()
    assert state.queue.depth == 0 and state.queue.logs[0].memory == 0
    node.stop()


def test_a_checkpoint_of_many_queues_lets_the_loop_turn(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    node = QueueNode(tmp_path, loop, View(), CLOCK, 1, False)
    manager = node.manager
    names = [b"q%d" % number for number in range(QUEUES // 10)]

    def make() -> None:
        for name in names:
            queue = manager.declare(QueueSpec(name=name.decode()))[0]
            manager.group(queue, b"g")
            queue.append_message(b"$queue/" + name, name)

    node.in_turn(make)
    node.sync()
    made, slices, parts = node.queues.begin_export(node.journal.rotate()), [0], []
    queues = [manager.queues[b"/", name].queue for name in names]
    assert all(queue.dirty for queue in queues), "none was looked at yet"

    def meanwhile() -> None:
        manager.delete((b"/", names[0]))
        queues[1].append_message(b"$queue/" + names[1], b"more")

    node.in_turn(meanwhile)
    more = True
    while more:
        more = node.queues.export(made)
        slices.append(node.queues.looked)
        parts.append(made.take())
    assert slices[-1] == len(names) - 1
    assert max(after - before for before, after in pairwise(slices)) <= EXPORT_WORK // WORK_OF_A_QUEUE
    assert max(len(puts) + len(deletes) for puts, deletes in parts) <= EXPORT_WORK
    written = dict(put for puts, _ in parts for put in puts)
    assert {key[:1] for key in written} == {b"q", b"g", b"k"}
    assert {key[:1] for _, deletes in parts for key in deletes} >= {b"q", b"g", b"l"}
    assert written[b"k" + queues[1].logs[0].number.to_bytes(8, "big")][:8] == bytes((*bytes(7), 2))
    node.in_turn(lambda: queues[2].append_message(b"$queue/" + names[2], b"more"))
    # What came after its instant is the next one's, and nothing else is.
    assert node.queues.begin_export(node.journal.rotate()).left == [queues[2]]
    node.stop()


def test_a_checkpoint_has_what_a_pump_appended_to_another_queue(tmp_path: Path,
                                                                loop: asyncio.AbstractEventLoop) -> None:
    """A dead letter is recorded in the batch of the turn in which it dies, and its queue is pumped in the next turn."""
    node = QueueNode(tmp_path, loop, View(), CLOCK, 1, False)
    manager = node.manager
    source, target = (manager.declare(QueueSpec(name=name))[0] for name in ("source", "target"))
    group = manager.group(source, b"g")
    group.join(PyMember(lambda *delivered: target.append_message(b"$queue/target", b"dead"), None, 1))
    node.in_turn(lambda: None)
    exported(node)
    node.in_turn(lambda: source.append_message(b"$queue/source", b"x"))
    assert target.logs[0].next == 1
    node.submit()
    assert set(node.queues.begin_export(node.journal.rotate()).left) == {source, target}
    node.stop()


def test_a_checkpoint_of_many_queues_that_ended_lets_the_loop_turn(tmp_path: Path,
                                                                   loop: asyncio.AbstractEventLoop) -> None:
    node = QueueNode(tmp_path, loop, View(), CLOCK, 1, False)
    names = [f"q{number}" for number in range(QUEUES // 10)]
    node.in_turn(lambda: [node.manager.declare(QueueSpec(name=name)) for name in names])
    node.begin_checkpoint()
    node.finish_checkpoint()
    node.in_turn(lambda: [node.manager.delete((b"/", name.encode())) for name in names])
    made, more, parts = node.queues.begin_export(node.journal.rotate()), True, []
    while more:
        more = node.queues.export(made)
        parts.append(made.take())
    deleted = {key for _, deletes in parts for key in deletes}
    assert len(deleted) >= 2 * len(names) and not any(puts for puts, _ in parts)
    assert max(len(deletes) for _, deletes in parts) <= EXPORT_WORK
    node.stop()


def test_a_group_that_ends_is_found_in_its_own_queue(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    node = QueueNode(tmp_path, loop, View(), CLOCK, 1, False)
    for name in ("a", "b"):
        node.in_turn(lambda name=name: node.manager.group(node.manager.declare(QueueSpec(name=name))[0], b"g"))
    node.in_turn(lambda: node.manager.drop_group(node.manager.queues[b"/", b"a"], (b"g", b"")))
    node.sync()
    node = restart(node, 2)
    assert {name: len(state.groups) for (_, name), state in node.manager.queues.items()} == {b"a": 0, b"b": 1}
    node.stop()


def test_a_stop_does_not_wait_for_a_checkpoint_of_many_queues(
        tmp_path: Path, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durability, "LAST_QUEUES_MAX", 20)
    node = QueueNode(tmp_path, loop, View(), CLOCK, 1, False)
    names = [b"q%d" % number for number in range(21)]

    def publish(some: list[bytes]) -> None:
        for name in some:
            node.manager.declare(QueueSpec(name=name.decode()))[0].append_message(b"$queue/" + name, name)

    for looked in (0, 20):
        node.in_turn(lambda some=names[looked and 1:]: publish(some))
        node.sync()
        loop.run_until_complete(node.keeper.close(20.0))
        assert node.queues.looked == looked             # all but one are few enough
        node = restart(node, looked + 2)
        depths = {name: state.queue.depth for (_, name), state in node.manager.queues.items()}
        assert depths == {name: 1 + (looked > 0 and name != names[0]) for name in names}
        node.in_turn(lambda: None)
        node.begin_checkpoint()
        node.finish_checkpoint()
        node.queues.looked = 0
    node.stop()
