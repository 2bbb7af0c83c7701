"""Faults that chance does to the members of a simulated etcd and to the links, and their end."""
from __future__ import annotations

import random
from collections.abc import Sequence

from simulator.cluster.world import SimCluster

__all__ = ["Faults"]


class Faults:
    """members: which of them are killed, paused and so on; at most `most` are down at the same time."""

    def __init__(self, cluster: SimCluster, chance: random.Random, *, most: int = 3) -> None:
        self._cluster = cluster
        self._chance = chance
        self._most = most
        self.trace: list[str] = []

    def step(self) -> None:
        """Perhaps one of them begins or ends."""
        kinds = (self._kill, self._restart, self._pause, self._resume, self._cut, self._heal, self._isolate,
                 self._isolate_leader, self._outage, self._stall, self._disk, self._slow, self._transfer)
        if self._chance.random() < 0.5:
            self._chance.choice(kinds)()

    def _tell(self, *what: object) -> None:
        self.trace.append(" ".join(map(str, (self._cluster.now_ms, *what))))

    def _some(self, names: Sequence[str]) -> str | None:
        return self._chance.choice(names) if names else None

    def _down(self) -> int:
        return sum(not member.process.runs for member in self._cluster.etcd.members.values())

    def _kill(self) -> None:
        etcd = self._cluster.etcd
        name = self._some([name for name, member in etcd.members.items() if member.process.alive])
        if name is not None and self._down() < self._most:
            silent = self._chance.random() < 0.3
            self._tell("kill", name, silent)
            etcd.kill(name, silent=silent)

    def _restart(self) -> None:
        etcd = self._cluster.etcd
        name = self._some([name for name, member in etcd.members.items() if not member.process.alive])
        if name is not None:
            self._tell("restart", name)
            etcd.restart(name)

    def _pause(self) -> None:
        name = self._some([name for name, member in self._cluster.etcd.members.items() if member.process.runs])
        if name is not None and self._down() < self._most:
            self._tell("pause", name)
            self._cluster.etcd.members[name].process.pause()

    def _resume(self) -> None:
        name = self._some([name for name, member in self._cluster.etcd.members.items() if member.process.paused])
        if name is not None:
            self._tell("resume", name)
            self._cluster.etcd.members[name].process.resume()

    def _pair(self) -> list[str]:
        return self._chance.sample(list(self._cluster.etcd.members) * 2 + list(self._cluster.nodes), 2)

    def _cut(self) -> None:
        pair, back = self._pair(), self._chance.random() < 0.5
        self._tell("cut", *pair, back)
        self._cluster.network.cut(*pair, back=back)

    def _stall(self) -> None:
        pair = self._pair()
        self._tell("stall", *pair)
        self._cluster.network.stall(*pair, back=self._chance.random() < 0.5)

    def _isolate(self) -> None:
        name = self._chance.choice(list(self._cluster.nodes))
        member = self._cluster.member(name)
        names = [name, member] if self._chance.random() < 0.5 else [member]
        self._tell("isolate", *names)
        self._cluster.network.isolate(*names)

    def _isolate_leader(self) -> None:
        """With its node, and perhaps paused for a while."""
        leader = self._cluster.etcd.leader
        if leader is not None:
            names = [leader.name, leader.name.removeprefix("etcd-")]
            self._tell("isolate", *names)
            self._cluster.network.isolate(*names)
            if leader.process.runs and self._down() < self._most and self._chance.random() < 0.5:
                self._tell("pause", leader.name)
                leader.process.pause()

    def _outage(self) -> None:
        """All of them crash and begin again."""
        if self._most >= len(self._cluster.etcd.members):
            self._tell("outage")
            for name, member in self._cluster.etcd.members.items():
                if member.process.alive:
                    self._cluster.etcd.kill(name)
                self._cluster.etcd.restart(name)

    def _slow(self) -> None:
        pair = self._pair()
        self._tell("slow", *pair)
        link = self._cluster.network.link(*pair)
        link.delay_ms, link.loss = (0, self._chance.choice((20, 300, 1500))), self._chance.choice((0.0, 0.3))

    def _heal(self) -> None:
        names = [] if self._chance.random() < 0.5 else self._pair()[:1]
        self._tell("heal", *names)
        self._cluster.network.heal(*names)

    def _disk(self) -> None:
        member = self._chance.choice(list(self._cluster.etcd.members.values()))
        self._tell("disk", member.name, member.disk_stalled)
        if member.disk_stalled:
            member.unstall_disk()
        else:
            member.stall_disk()

    def _transfer(self) -> None:
        leader = self._cluster.etcd.leader
        if leader is not None and leader.process.runs:
            name = self._chance.choice(list(self._cluster.etcd.members))
            self._tell("transfer", leader.name, name)
            leader.input(lambda: leader.raft.transfer(name))

    def end(self) -> None:
        """All of them end."""
        self._tell("end of all faults")
        cluster = self._cluster
        cluster.network.heal()
        for name, member in cluster.etcd.members.items():
            member.unstall_disk()
            if member.process.paused:
                member.process.resume()
            elif not member.process.alive:
                cluster.etcd.restart(name)
