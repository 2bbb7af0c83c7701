"""A second instance of a queue that applies what the first one records (engine/queues/recovery/line.py), on a node
whose own numbers are the same: after every turn both know the same, and when the second one leads, nothing is missing
and nothing that was settled comes again. The first is driven as in test_queue_group.py."""
from __future__ import annotations

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test
from property.test_queue_group import SMOKE, SOAK, START_MS, QueueMachine

from fluxmq._core.errors import UsageError
from fluxmq._core.hub.hub import Hub
from fluxmq._core.memory.commits import Line
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.member import PyMember
from fluxmq._core.queue.queue import Queue
from fluxmq._core.testing.probes import claims_of, pump_queues
from fluxmq.cluster.solo import SoloReplicator, solo
from fluxmq.engine.queues.hands import Hands
from fluxmq.engine.queues.manager import QueueManager, QueueState
from fluxmq.engine.queues.recovery.line import QueueLine
from fluxmq.engine.queues.recovery.snapshot import digest, snapshot
from fluxmq.engine.queues.relays import Relays
from fluxmq.model.queues import QueueSpec


class OneLine(SoloReplicator):
    """Every queue is in the line, the dead-letter queue, too: so a dead letter is there at once."""

    def __init__(self, line: Line) -> None:
        self.line = line

    def line_of_queue(self, namespace: bytes, name: bytes, durable: bool) -> Line | None:
        return self.line


class FollowedMachine(QueueMachine):
    """here: the instance that follows, on a node of its own."""

    def declare(self, spec: QueueSpec) -> Queue:
        self.line = self.hub.commits.open_line("group 7")
        self.manager.replicator = OneLine(self.line)
        self.there = Hub(None)
        self.there.set_clock(START_MS, 0)
        self.here = QueueManager(self.there, cluster=solo())
        # Queues of that node's own, whose numbers are those of the leader's queue, logs and groups.
        self.own = [self.here.declare(QueueSpec(name=f"own{n}", partitions=4))[0] for n in range(4)]
        for queue in self.own:
            for name in (b"a", b"b", b"c"):
                self.here.group(queue, name)
        self.follower = self.new_follower()
        self.records: list[bytes] = []
        # Each of the two nodes has given its namespaces other numbers.
        for at in range(2):
            self.hub.namespaces.add(b"elsewhere %d" % at)
        self.there.namespaces.add(b"own")
        self.hub.namespaces.add(b"tenant")
        queue = self.manager.declare(msgspec.structs.replace(spec, namespace="tenant"), self.line)[0]
        assert queue.number in self.here.numbers.values() or queue.number <= self.here.numbers[0]
        return queue

    def new_follower(self) -> QueueLine:
        return QueueLine(self.here, self.there.commits.open_line("group 7"), hands=Hands(self.here, Relays(), {}))

    def pump(self) -> None:
        super().pump()
        self.replicate()

    def replicate(self) -> None:
        """What was recorded is committed, and reaches the other instance."""
        self.there.set_clock(self.wall, self.mono)
        wanted = digest(self.manager, self.state)           # writes open runs down
        position, records = self.line.submit()
        if position:
            self.line.commit(position)
            self.records.append(records)
            self.follower.apply(records)
        followed = self.follower.queues[self.queue.number]
        assert digest(self.here, followed) == wanted
        assert digest(self.manager, self.state) == wanted

    @rule()
    def the_same_records_again(self) -> None:
        """As after a crash of the one that follows, which had applied more than it knows."""
        self.replicate()
        self.follower.apply(self.records[-1])
        assert digest(self.here, self.follower.queues[self.queue.number]) == digest(self.manager, self.state)

    @rule(late=st.booleans())
    def from_a_snapshot(self, late: bool) -> None:
        """It has lost what it knew, or a new one comes: a snapshot, and what is recorded from then on."""
        self.replicate()
        raw = [snapshot(self.manager, state) for state in self.manager.queues.values() if state is not self.state]
        if late:
            self.follower = self.new_follower()
        for one in raw:
            self.follower.restore(one)
        state = self.follower.restore(snapshot(self.manager, self.state))
        assert digest(self.here, state) == digest(self.manager, self.state)

    @rule(evict=st.booleans())
    def checkpoint(self, evict: bool) -> None:
        """No segments have what another line than the journal keeps."""

    def teardown(self) -> None:
        if not hasattr(self, "queue"):
            return
        self.replicate()
        with pytest.raises(UsageError, match="is led here"):
            QueueLine(self.here, self.there.commits.local).apply(b"")
        self.there.set_clock(self.now, self.mono)
        self.here.let_go(self.follower.lead())      # nobody comes from another node for what is kept
        led = self.here.queues[b"tenant", b"q"]
        assert led.queue.namespace is self.there.namespaces[b"tenant"] and led.spec.namespace == "tenant"
        wanted = {name: {(log.number, offset) for log in self.queue.logs for offset in range(log.first, log.next)
                         if log.get(offset) is not None and not by_offset.is_settled(group, log.number, offset)}
                  for name, group in self.groups.items()}
        for name, unsettled in wanted.items():
            self.is_handed_out(led, name, unsettled)
        assert all(queue.depth == 0 for queue in self.own)

    def is_handed_out(self, led: QueueState, name: str, unsettled: set[tuple[int, int]]) -> None:
        """Whoever comes has all that the first instance had not settled, but what has expired or must wait. What else
        comes was delayed, and is due: where messages have expired there is room for it now."""
        got: set[tuple[int, int]] = set()
        group, logs = led.groups[name.encode(), b""], {log.number: log for log in led.queue.logs}

        def take(log: int, offset: int, count: int) -> bool:
            assert logs[log].get(offset) is not None and (log, offset) not in got
            got.add((log, offset))
            return True

        group.join(PyMember(take, lambda *lost: None, 100_000, 0))
        led.queue.notify()
        while pump_queues(self.there):
            pass
        ends = {log.number: log.next for log in self.queue.logs}
        due = {one.payload for one in self.delayed if one.due <= self.now}
        late = {(log, offset) for log, offset in got if offset >= ends[log]}
        assert got - late <= unsettled
        moved = [logs[log].get(offset) for log, offset in late]
        assert {record.payload for record in moved if record is not None} <= due
        claims = claims_of(group)
        for log, offset in unsettled - got:
            assert (by_offset.is_settled(group, log, offset) or offset < logs[log].first
                    or claims[log, offset][0] != "ready")


def test_a_follower_knows_what_its_leader_knows() -> None:
    run_state_machine_as_test(FollowedMachine, settings=settings(SMOKE, max_examples=200))


def test_a_group_made_after_a_snapshot_begins_where_its_leader_lets_it_begin() -> None:
    """Settled by all, but still in memory: what a snapshot left out, a group that is made later would miss."""
    machine = FollowedMachine()
    machine.make(partitions=1, lanes=1, retries=0, depth=0, drop=False, returned=0)
    machine.group("a")
    machine.publish(4, 0, b"", 0, 0, True)
    machine.join("a", 4, 0)
    machine.settle("a", 0.3, True, False)
    machine.settle("a", 0.4, True, False)
    machine.from_a_snapshot(late=False)
    machine.group("b")
    assert machine.queue.logs[0].first == 0
    machine.teardown()


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_follower_knows_what_its_leader_knows_for_long() -> None:
    run_state_machine_as_test(FollowedMachine, settings=SOAK)
