"""Histories of queues that a replication group has, with the clients, faults and verdicts of test_queue_histories.

Besides these: what a queue has is the same at every replica in the end, and the replicas have it on their disks; and a
message that was confirmed is there although its leader's node is never seen again.
"""
from __future__ import annotations

import random

import pytest
from kit.sizes import some
from simulator.cluster.test_queue_histories import NAMES, VOLATILE, History
from simulator.cluster.test_replicated_queues import RAFT
from simulator.disk import Disk

from fluxmq.cluster.raft import groups
from fluxmq.engine.queues.recovery.snapshot import digest

FAULTS = ("kill", "restart", "revive", "tear", "isolate", "heal", "pause", "resume", "end_lease", "bury")
GROUP = 1


class ReplicatedHistory(History):
    """Its queues but one are replicated."""

    raft = RAFT
    FAULTS = History.FAULTS | {"lose_disk": 2}

    def lose_disk(self) -> None:
        """Of a node, while all have what is confirmed on theirs."""
        if len(self.up()) < len(NAMES) or self.cut_ms is not None:
            return
        led = [broker.cluster.groups.groups[GROUP] for name in NAMES
               if (broker := self.brokers.processes[name]).cluster.groups.line(GROUP) is not None]
        if len(led) != 1 or len(led[0].raft.voters) != len(NAMES) or any(
                replica.match < led[0].raft.commit for replica in led[0].raft.replicas):
            return
        name = self.chance.choice(NAMES)
        self.trouble(f"{name} loses its disk")
        self.dies(name)
        self.brokers.kill(name)
        self.lease_ends(name)
        broker = self.brokers.processes[name]
        broker.disk = Disk(random.Random(self.chance.random()))
        broker.start()

    def declare(self) -> None:
        self.brokers.run_for(1.0)       # each node knows that the others serve
        super().declare()
        for queue in ("dead", "target", *self.queues):
            if queue != VOLATILE:
                self.owners[queue] = [*NAMES]

    def check_order(self) -> None:
        """Who does not lead any more refuses what reaches it, and nothing is proposed again in its order yet: order is
        that of one leader (docs/decisions/0013, step 5)."""
        if not self.failed:
            super().check_order()

    def verdict(self) -> None:
        super().verdict()
        digests = {}
        for name in NAMES:
            queues = self.brokers.processes[name].node.keeper.queues
            assert queues is not None
            copies = queues.copies.lines[GROUP]
            digests[name] = copies.applied, {
                copy.queue.name: digest(self.brokers.processes[name].node.manager, copy)
                for copy in copies.queues.values()}
        if len({str(found) for found in digests.values()}) > 1:
            self.wrong.append(f"replicas differ: {digests}")


@pytest.mark.parametrize("seed", some(40, range(1000)))
def test_a_history_of_replicated_queues(seed: int) -> None:
    ReplicatedHistory(seed, FAULTS)


def test_a_delivery_that_has_not_left_when_another_leads() -> None:
    """The one of a thousand that finds a leader that steps down before such deliveries are given back."""
    ReplicatedHistory(119, FAULTS)


@pytest.mark.parametrize("seed", some(20, range(500)))
def test_a_history_with_copies(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log has so few entries that who was away needs a copy of the queues."""
    monkeypatch.setattr(groups, "KEEP_BYTES", 500)
    ReplicatedHistory(seed + 1_000_000, FAULTS)


@pytest.mark.parametrize("seed", some(20, range(500)))
def test_a_history_with_lost_disks(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "KEEP_BYTES", 500 if seed % 2 else 1 << 20)
    ReplicatedHistory(seed + 2_000_000, ("lose_disk", "kill", "revive", "restart", "tear"))


@pytest.mark.parametrize("seed", range(4))
def test_a_history_without_faults(seed: int) -> None:
    ReplicatedHistory(seed)
