"""What queues decide in one turn is in one batch of the journal, also when the disk is done in the middle of the turn
and takes the next batch over: the two halves of a transaction, a dead letter and its end where it was."""
from __future__ import annotations

from pathlib import Path

from kit.journals import contents, wait_event, writing

from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.hub.hub import Hub
from fluxmq._core.net.poller import Poller
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.member import PyMember
from fluxmq._core.queue.state import RECORD_OFFSETS_MAX
from fluxmq.cluster.solo import solo
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.model.queues import QueueSpec

MOVED = b"this one is moved"
QUOTA_EXCEEDED = 0x97


def test_a_batch_that_is_handed_over_in_the_middle_of_a_turn(tmp_path: Path) -> None:
    with writing(tmp_path) as journal:
        hub = Hub(journal, 64)
        hub.set_clock(1_000_000, 1_000)
        poller, manager = Poller(hub, 0), QueueManager(hub, cluster=solo())
        one, other = (manager.declare(QueueSpec(name=name))[0] for name in ("one", "other"))
        group = manager.group(one, b"default")
        given: list[tuple[int, int]] = []
        group.join(PyMember(lambda log, offset, _: given.append((log, offset)), None, 10))
        assert one.publish(b"$queue/one", MOVED) == 0
        poller.turn()
        assert given
        # A batch is on disk, and nobody has heard of it: the next turn begins with that.
        wait_event(journal)
        assert by_offset.settle_at(group, *given[0])
        assert other.publish(b"$queue/other", MOVED) == 0
        last = journal.gathering
        poller.turn()
        while journal.durable < last:
            wait_event(journal)
            poller.turn()
        journal.close()
    found = [number for number, records in contents(tmp_path) for kind, body in records
             if kind == RecordKind.SETTLE or MOVED in body]
    assert len(found) == 3
    assert found[1] == found[2] > found[0], "taken from one queue in another batch than put into the other"


def test_a_batch_that_is_too_large_already_takes_nothing_new(tmp_path: Path) -> None:
    """One large message for hundreds of queues: the last of them refuse it, and the node lives."""
    with writing(tmp_path) as journal:
        hub = Hub(journal, 64)
        hub.ledger.batch_bytes_max = 100_000
        poller, manager = Poller(hub, 0), QueueManager(hub, cluster=solo())
        queues = [manager.declare(QueueSpec(name=f"q{number}"))[0] for number in range(10)]
        refused = [queue.publish(b"$queue/x", bytes(30_000)) for queue in queues]
        assert refused[:3] == [0, 0, 0] and refused[5:] == [QUOTA_EXCEEDED] * 5
        brief = manager.declare(QueueSpec(name="brief", type="ephemeral"))[0]
        assert brief.publish(b"$queue/brief", bytes(30_000)) == 0, "what is not durable needs no room in a batch"
        last = journal.gathering
        poller.turn()
        while journal.durable < last:
            wait_event(journal)
            poller.turn()
        assert queues[9].publish(b"$queue/x", bytes(30_000)) == 0
        journal.close()


def test_a_record_is_about_no_more_messages_than_a_start_takes(tmp_path: Path) -> None:
    """Who settles more than that at once writes two records."""
    count = RECORD_OFFSETS_MAX + 2
    with writing(tmp_path) as journal:
        hub = Hub(journal, 64)
        hub.set_clock(1_000_000, 1_000)
        hub.ledger.limit_claims(count, count)
        poller, manager = Poller(hub, 0), QueueManager(hub, cluster=solo())
        queue = manager.declare(QueueSpec(name="q"))[0]
        group = manager.group(queue, b"default")
        given: list[tuple[int, int]] = []
        group.join(PyMember(lambda log, offset, _: given.append((log, offset)), None, count))
        for put in range(count):
            assert queue.publish(b"$queue/q", b"") == 0
            if put % 50_000 == 0:
                poller.turn()
        for _ in range(1000):       # a turn hands out a part
            poller.turn()
        assert len(given) == count
        for log, offset in given:
            assert by_offset.settle_at(group, log, offset)
        poller.turn()
        journal.close()
    settled = [int.from_bytes(body[24:28], "big") for _, records in contents(tmp_path) for kind, body in records
               if kind == RecordKind.SETTLE]
    assert settled == [RECORD_OFFSETS_MAX, 2]
