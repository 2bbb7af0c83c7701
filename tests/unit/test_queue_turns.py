"""What queues decide in one turn is in one batch of the journal, also when the disk is done in the middle of the turn
and takes the next batch over: the two halves of a transaction, a dead letter and its end where it was."""
from __future__ import annotations

from pathlib import Path

from kit.journals import contents, wait_event, writing

from fluxmq._core.hub import Hub
from fluxmq._core.poller import Poller
from fluxmq._core.queue_member import PyMember
from fluxmq.engine.queue_records import RecordKind
from fluxmq.engine.queues import QueueManager
from fluxmq.model.queues import QueueSpec

MOVED = b"this one is moved"


def test_a_batch_that_is_handed_over_in_the_middle_of_a_turn(tmp_path: Path) -> None:
    with writing(tmp_path) as journal:
        hub = Hub(journal, 64)
        hub.set_clock(1_000_000, 1_000)
        poller, manager = Poller(hub, 0), QueueManager(hub)
        one, other = (manager.declare(QueueSpec(name=name))[0] for name in ("one", "other"))
        group = manager.group(one, b"default")
        given: list[tuple[int, int]] = []
        group.join(PyMember(lambda log, offset, _: given.append((log, offset)), None, 10))
        assert one.publish(b"$queue/one", MOVED) == 0
        poller.turn()
        assert given
        # A batch is on disk, and nobody has heard of it: the next turn begins with that.
        wait_event(journal)
        assert group.settle_at(*given[0])
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
