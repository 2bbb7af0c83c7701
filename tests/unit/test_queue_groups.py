"""What all groups have settled goes, and finding out what that is costs each group one question per message."""
from __future__ import annotations

import random
import tracemalloc

import pytest
from oracle import stored

from fluxmq._core.hub.hub import Hub
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.export import Export
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.log import Log
from fluxmq._core.queue.queue import QUEUE_CLASSIC, Queue
from fluxmq._core.testing.probes import pump_queues


def made(groups: int, messages: int = 0, lanes: int = 1) -> tuple[Hub, Queue, list[Group]]:
    hub = Hub(None)
    queue = Queue(hub.ledger, 1, b"q", QUEUE_CLASSIC, [Log(hub.ledger, 10 + lane, lane=lane) for lane in range(lanes)],
                  lanes)
    members = [Group(hub.ledger, 1000 + number, b"g%d" % number) for number in range(groups)]
    for group in members:
        for log in queue.logs:
            group.add_cursor(log)
        queue.add_group(group)
    for _ in range(messages):
        queue.append_message(b"t", b"x")
    pump_queues(hub)
    return hub, queue, members


def settle(hub: Hub, group: Group, offset: int, log: int = 10) -> None:
    by_offset.settle_any(group, log, offset)
    pump_queues(hub)


def test_a_group_that_settles_nothing_is_asked_alone() -> None:
    hub, queue, groups = made(1000, messages=50)
    before = queue.floors_read
    for offset in range(50):
        for group in groups[:400] + groups[401:440]:
            settle(hub, group, offset)
    # Each pump asks the one that is behind; it was found once, after those before it had moved.
    pumps = 50 * 439
    assert queue.floors_read - before <= pumps + 1000
    assert queue.logs[0].first == 0


def test_all_settle_in_turn() -> None:
    hub, queue, groups = made(1000, messages=20)
    before = queue.floors_read
    pumps = 0
    for offset in range(20):
        for group in groups:
            assert queue.logs[0].first == offset
            settle(hub, group, offset)
            pumps += 1
        assert queue.logs[0].first == offset + 1
    # One question for each pump, and two for each group and message; a scan of all would be a thousand each
    assert queue.floors_read - before <= pumps + 2 * 20 * 1000


def test_a_queue_that_is_empty_asks_nobody() -> None:
    hub, queue, _ = made(1000)
    before = queue.floors_read
    for _ in range(100):
        queue.notify()
        pump_queues(hub)
    assert queue.floors_read == before


@pytest.mark.parametrize("seed", range(6))
def test_groups_come_and_go_and_seek(seed: int) -> None:
    """Against the lowest floor of all, found by looking at all."""
    choose = random.Random(seed)
    hub, queue, groups = made(7, messages=30, lanes=2)
    logs = queue.logs
    number = 5000
    for _ in range(600):
        what = choose.random()
        group = choose.choice(groups)
        log = choose.choice(logs)
        if what < 0.75:
            low = min(g.cursors[logs.index(log)].floor for g in groups)
            if low < log.next:
                by_offset.settle_any(group, log.number, min(low + choose.randrange(4), log.next - 1))
        elif what < 0.85:
            queue.append_message(b"t", b"x", priority=choose.randrange(2))
        elif what < 0.9 and len(groups) > 2:
            groups.remove(group)
            queue.remove_group(group)
        elif what < 0.95:
            number += 1
            groups.append(Group(hub.ledger, number, b"g%d" % number))
            for each in logs:
                groups[-1].add_cursor(each)
            queue.add_group(groups[-1])
        else:
            by_offset.seek(group, log.number, choose.randint(log.first, log.next))
        expected = [max(each.first, min(g.cursors[at].floor for g in groups)) for at, each in enumerate(logs)]
        queue.notify()
        pump_queues(hub)
        assert [each.first for each in logs] == expected


def test_what_is_exported_is_decided_at_once_and_copied_later() -> None:
    """A message that is settled after that instant is still written: its settling may not be durable yet."""
    hub, queue, groups = made(3, messages=2000)
    for group in groups:
        for offset in range(0, 2000, 3):
            by_offset.settle_any(group, 10, offset)
    expected = [offset for offset in range(2000) if offset % 3]
    made_ = Export(queue.logs[0], 10, queue.needs(queue.logs[0]))
    for group in groups:
        for offset in range(2000):
            by_offset.settle_any(group, 10, offset)
    queue.notify()
    pump_queues(hub)
    assert queue.logs[0].first == 2000
    queue.append_message(b"t", b"x")
    blocks = list(made_)
    assert blocks[0][0] == 1 and len(blocks) > 1
    assert sum(block[2] for block in blocks) == made_.messages == len(expected)
    assert [offset for block in blocks for offset in stored.offsets(block[7])] == expected


def test_bytes_kept_are_those_that_are_somewhere() -> None:
    """What all groups have settled out of order is counted until a checkpoint leaves it out."""
    _, queue, groups = made(2, messages=3000)
    log = queue.logs[0]
    each = log.kept_bytes // 3000
    assert log.kept_bytes == 3000 * each
    for group in groups:
        for offset in range(10, 3000, 3):
            by_offset.settle_any(group, 10, offset)
    export = Export(log, 10, queue.needs(log))
    left = [offset for offset in range(3000) if offset < 10 or offset % 3 != 1]
    log.exported()
    assert (export.messages, log.kept_bytes) == (len(left), len(left) * each)
    log.trim(1500)
    assert log.kept_bytes == len([offset for offset in left if offset >= 1500]) * each and not log.uncertain
    assert log.first_within(100 * each) == left[-100]
    del export          # it holds the chunks
    log.evict(1 << 30)
    log.trim(1600)
    assert log.uncertain
    log.trim(3000)
    assert log.kept_bytes == 0 and not log.uncertain


def test_an_export_takes_no_copy() -> None:
    """Of a backlog of 100 MB that is handed out, a block at a time is copied."""
    _, queue, _ = made(1)
    for _ in range(1600):
        queue.append_message(b"t", bytes(60_000))
    tracemalloc.start()
    try:
        count = 0
        for block in Export(queue.logs[0], 10, queue.needs(queue.logs[0])):
            count += block[2]
        assert count == 1600
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
