"""Machines that have a node's name, and copies of its disk: two at one time, one after the other, an old copy put back,
between kills and losses of power.

In every instant: a node that serves does so with the directory that served last under its name, or with one that has
never served; and never two at one time. Only a copy that is younger than the life in which it was made, and than
PERIOD_S, is not told from the directory. At the end a session has everything that was acknowledged for it, unless its
node's disk was given up.
"""
from __future__ import annotations

import random

import pytest
from kit.sizes import some
from simulator.cluster.brokers import BrokerProcess, Brokers, Client
from simulator.cluster.test_adoption import back, end_lease, persistent
from simulator.cluster.test_brokers import cluster, connected
from simulator.disk import Disk

from fluxmq.cluster.claim import PERIOD_S, OldStorage

NAMES = ("one", "two", "three")
VICTIM, OTHER = "one", "two"
STEPS = 10
WRITER_S = 0.05


class Wrong(AssertionError):
    """The judge has found something."""


class History:
    """directories: each has a number, the same as long as it is the same directory; a copy has another."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.brokers: Brokers = cluster(*NAMES, seed=seed)
        self.brokers.writer_s = WRITER_S
        self.brokers.start()
        self.node = self.brokers.processes[VICTIM]
        self.rival = BrokerProcess(self.brokers, VICTIM, f"{VICTIM} again")     # another machine
        self.last: Disk = self.node.disk            # which served last as this node
        self.served = {id(self.last)}
        self.kept: list[Disk] = [self.last]         # so that no number is given out twice
        self.copies: list[Disk] = []
        self.young: dict[int, float] = {}           # since when; copies that the node has not lived on behind
        self.life = self.node.cluster
        self.given_up = False                       # the node has gone on with another disk
        self.sent = 0
        self.waiting: dict[int, bytes] = {}
        self.acknowledged: list[bytes] = []
        self.publisher: Client = connected(self.brokers, OTHER, "p")
        self.subscriber: Client = persistent(self.brokers, VICTIM, filters=(("t/#", 1),))
        self.subscriber.leave()
        self.brokers.run_for(0.5)
        self.brokers.world.checks.append(self._check)

    # ── the judge ────────────────────────────────────────────────────────────────────────────────────────

    def _check(self) -> None:
        serving = [one for one in (self.node, self.rival) if one.process.alive and hasattr(one, "cluster")
                   and one.serving]
        if len(serving) > 1 and all(one.cluster.membership.may_serve() for one in serving):
            raise Wrong("two machines serve as one node")
        for one in serving:
            if one.cluster is not self.life:
                self.life = one.cluster
                for number in [number for number in self.young if number != id(one.disk)]:
                    del self.young[number]
            for number in [number for number, since in self.young.items()
                           if self.brokers.world.now - since > PERIOD_S + 1]:
                del self.young[number]
            if one.disk is self.last or not one.cluster.membership.may_serve():
                continue
            young = self.young.pop(id(one.disk), None) is not None
            if (id(one.disk) in self.served or one.disk in self.copies) and not young:
                raise Wrong("a node serves with an old copy of its directory, or one that was replaced")
            self.given_up = True
            self.last = one.disk
            self.served.add(id(one.disk))

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────

    def publish(self) -> None:
        for _ in range(self.chance.randint(1, 4)):
            payload = b"%d" % self.sent
            self.waiting[self.publisher.publish("t/x", payload, 1)] = payload
            self.sent += 1
        self.pass_time(0.6)

    def read(self) -> None:
        """The session's client takes what there is, at its node."""
        if self.node.serving:
            self.subscriber.connect(at=VICTIM, clean_start=False, expiry_s=1000)
            self.pass_time(1.0)
            if self.subscriber.open:
                self.subscriber.leave()

    def copy(self) -> None:
        """Of the directory as it is, while its node runs or not."""
        if self.last is self.node.disk:
            self.copies.append(self._new(self.node.disk.copy(random.Random(self.chance.getrandbits(48)))))
            self.young[id(self.copies[-1])] = self.brokers.world.now

    def _new(self, disk: Disk) -> Disk:
        self.kept.append(disk)
        return disk

    def kill(self) -> None:
        if self.node.process.alive:
            self.brokers.kill(VICTIM)
            self.node.disk.crash(self.chance.choice(("kill", "power")))
            self.pass_time(self.chance.choice((0.0, 0.2, 1.0)))

    def serve_long(self) -> None:
        if self.node.serving:
            self.brokers.writer_s = 5.0
            self.pass_time(PERIOD_S + 2)
            self.brokers.writer_s = WRITER_S

    def lease_ends(self) -> None:
        """It does not while a node renews it."""
        if not self.node.process.alive and not self.rival.process.alive:
            end_lease(self.brokers, VICTIM)
            self.pass_time(self.chance.choice((0.1, 2.0)))

    def start(self) -> None:
        """As it was."""
        if not self.node.process.alive:
            self._begin(self.node)
            self._settle(self.node)

    def restart(self) -> None:
        self.kill()
        self.start()

    def put_back(self) -> None:
        """An old copy in the place of the directory. Refused, the directory is put back."""
        if not self.copies:
            return
        self.kill()
        if self.chance.random() < 0.5:
            self.lease_ends()
        own, self.node.disk = self.node.disk, self.chance.choice(self.copies)
        self._begin(self.node)
        self._settle(self.node)
        self.kill()
        self.node.disk = own
        self.start()

    def rival_comes(self) -> None:
        """Another machine with the name: with an empty directory, or with a copy."""
        if self.rival.process.alive and hasattr(self.rival, "cluster"):
            return
        if self.copies and self.chance.random() < 0.5:
            self.rival.disk = self.chance.choice(self.copies)
        else:
            self.rival.disk = self._new(Disk(random.Random(self.chance.getrandbits(48))))
        runs = self.node.process.alive and self.node.serving
        epoch = self.node.cluster.membership.epoch if runs else 0
        self._begin(self.rival)
        self.pass_time(self.chance.choice((0.5, 5.0, 16.0)))
        if runs and not (self.node.serving and self.node.cluster.membership.epoch == epoch):
            raise Wrong("a machine with the name of a node that serves has thrown it out")

    def rival_goes(self) -> None:
        if self.rival.process.alive and hasattr(self.rival, "cluster"):
            self.rival.process.kill()
            if not self.node.process.alive:
                end_lease(self.brokers, VICTIM)
            self.pass_time(1.0)

    def _begin(self, one: BrokerProcess) -> None:
        one.start()

    def _settle(self, one: BrokerProcess) -> None:
        """It serves, or is refused. One that waits for a machine that is there gets its name in the end."""
        settled = self.brokers.world.holds_within(lambda: one.serving or one.started.done(), 5.0)
        if not settled:
            self.rival_goes()
            end_lease(self.brokers, VICTIM)
            self.brokers.run_until(lambda: one.serving or one.started.done(), 60.0)
        if not one.serving:
            error = one.started.exception()
            if isinstance(error, OldStorage) and one.disk is self.last:
                raise Wrong(f"the last directory was refused: {error}")
            one.process.kill()

    def pass_time(self, seconds: float) -> None:
        self.brokers.run_for(seconds)
        for packet_id, payload in list(self.waiting.items()):
            if self.publisher.acknowledged(packet_id):
                del self.waiting[packet_id]
                if all(answer.reason < 0x80 for answer in self.publisher.got
                       if getattr(answer, "packet_id", 0) == packet_id):
                    self.acknowledged.append(payload)

    def play(self) -> None:
        steps = [self.publish, self.publish, self.read, self.copy, self.restart, self.kill, self.lease_ends, self.start,
                 self.put_back, self.put_back, self.rival_comes, self.rival_goes, self.serve_long]
        for _ in range(STEPS):
            self.chance.choice(steps)()
        self.finish()

    def finish(self) -> None:
        """The other machine is gone, and the node has its last directory."""
        self.rival_goes()
        self.kill()
        if self.node.disk is not self.last:
            self.node.disk = self.last
        self.start()
        self.brokers.run_until(lambda: self.node.serving, 60.0)
        self.pass_time(5.0)
        back(self.brokers, self.subscriber, lambda: self.chance.choice(NAMES))
        self.pass_time(10.0)
        got = {payload for _, payload in self.subscriber.messages}
        missing = [payload for payload in self.acknowledged if payload not in got]
        if missing and not self.given_up:
            raise Wrong(f"{len(missing)} messages were acknowledged and are lost")


def play(seed: int) -> None:
    History(seed).play()


@pytest.mark.parametrize("seed", some(6, range(60)))
def test_the_last_directory_serves_and_no_other(seed: int) -> None:
    play(seed)
