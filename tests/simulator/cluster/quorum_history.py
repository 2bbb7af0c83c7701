"""Histories of whole brokers over the simulated etcd, whose members lose their quorum and find it again. Each is from
one seed.

    play(seed)          # raises Wrong, with the faults that there were

In every instant no session has connections at two nodes that may serve; unless etcd 3.4.23 has ended a lease that was
renewed. At the end nothing is missing that was acknowledged while the subscriber's node kept its lease. Some episodes
have expectations of their own: without quorum everybody serves on, a minority that is cut off stops, the death of
etcd's leader ends no lease.
"""
from __future__ import annotations

import random
from collections.abc import Callable

from oracle.mqtt import Puback
from simulator.cluster.api import number_of
from simulator.cluster.brokers import Brokers
from simulator.cluster.faults import Faults
from simulator.cluster.local_member import SimLocalMember
from simulator.cluster.machines import Process
from simulator.cluster.member import EtcdOptions, LeaseChecks, Member
from simulator.cluster.raft import Entry
from simulator.cluster.store import SimStore
from simulator.cluster.world import SimCluster

from fluxmq.cluster.leaderless import LeaderWatch

__all__ = ["QuorumHistory", "Wrong", "play"]

EPISODES = 2
EXPIRY_S = 10_000
RATE_PPM = 4000         # of clocks: within membership.CLOCK_RATE_ERROR, for two of them
PERIOD_S = 0.3          # between two looks of the clients at their connections
STRANGE_S = 0.25        # how late a node may notice its deadline
STALL_S = (0.2, 3.0)    # of a node without quorum: it waits longer than that to be certain again
VARIANTS = [*(EtcdOptions(lease_checks=LeaseChecks.ALWAYS).with_raft(pre_vote=pre_vote, check_quorum=check_quorum)
              for pre_vote, check_quorum in ((True, True), (True, True), (False, True), (True, False))),
            *[EtcdOptions(lease_checks=LeaseChecks.NEVER).with_raft(pre_vote=True)] * 3]


class Wrong(AssertionError):
    """The judge has found something."""


class Stayer:
    """A subscriber with a persistent session, which comes back to its node, and a publisher there."""

    def __init__(self, history: QuorumHistory, node: str) -> None:
        self.node = node
        self.history = history
        self.subscriber = history.brokers.client(node, f"s-{node}")
        self.publisher = history.brokers.client(node, f"p-{node}")
        self.subscribed = False
        self.waits = 0          # packet identifier of its SUBSCRIBE
        self.pending: dict[int, tuple[bytes, list[str]]] = {}   # payload, and the nodes whose subscriber must get it
        self.read = 0
        self.disturbed = False  # its node has lost its lease, or its process

    def look(self) -> None:
        """Connects, subscribes, publishes; takes acknowledgements."""
        subscriber, publisher = self.subscriber, self.publisher
        if not subscriber.open:
            subscriber.connect(clean_start=False, expiry_s=EXPIRY_S)
        elif subscriber.connected and not self.subscribed:
            if not self.waits:
                self.waits = subscriber.subscribe("t/#", 1)
            self.subscribed = subscriber.acknowledged(self.waits)
        if not publisher.open:
            self.pending.clear()
            self.read = 0
            publisher.got.clear()
            publisher.connect()
        elif publisher.connected:
            self._take()
            if self.history.publishes and len(self.pending) < 8:
                payload = b"%s %d" % (self.node.encode(), self.history.next())
                self.pending[publisher.publish(f"t/{self.node}", payload, 1)] = payload, self.history.subscribed()

    def _take(self) -> None:
        got = self.publisher.got
        for packet in got[self.read:]:
            if isinstance(packet, Puback) and packet.packet_id in self.pending:
                kept = self.pending.pop(packet.packet_id)
                if packet.reason < 0x80:
                    self.history.kept.append(kept)
        self.read = len(got)


class Twins:
    """Two clients with one identifier at two nodes: each connects again when it can."""

    def __init__(self, history: QuorumHistory, name: str, nodes: list[str]) -> None:
        self._history = history
        self._nodes = nodes
        self.clients = [history.brokers.client(node, name) for node in nodes]

    def look(self) -> None:
        for client in self.clients:
            if not client.open and (self._history.eager or self._history.chance.random() < 0.4):
                client.connect(clean_start=False, expiry_s=EXPIRY_S, at=self._history.chance.choice(self._nodes))


class QuorumHistory:
    def __init__(self, seed: int, options: EtcdOptions | None = None) -> None:
        self.chance = chance = random.Random(seed)
        nodes = [f"n{number}" for number in range(1, chance.choice((3, 3, 3, 4)) + 1)]
        voters = nodes[:3]
        rates = {name: chance.randint(-RATE_PPM, RATE_PPM) for name in nodes}
        self.cluster = cluster = SimCluster(chance.getrandbits(48), nodes, voters=voters, rates_ppm=rates,
                                            options=options or chance.choice(VARIANTS))
        self.ttl_s = chance.choice((3, 3, 3, 6))
        self.voters = voters
        self.own_only = chance.random() < 0.3       # a node does not reach the members of the others as their client
        self.brokers = Brokers(0, nodes, self._store_of, ttl_s=self.ttl_s, world=cluster, network=cluster.network,
                               watch_of=self._watch_of, writer_s=0.03)
        self.faults = Faults(cluster, random.Random(chance.getrandbits(48)), most=3)
        self.publishes = True
        self.eager = False      # clients lose no time
        self.counts = {"served on": 0, "stalls": 0, "fences": 0, "outages": 0, "cut off": 0, "leaders": 0}
        self.stayers = {name: Stayer(self, name) for name in nodes}
        self.twins = [Twins(self, f"twin{number}", chance.sample(nodes, 2)) for number in range(3)]
        self._numbers = 0
        self.kept: list[tuple[bytes, list[str]]] = []      # acknowledged; as Stayer.pending
        self._fences = dict.fromkeys(nodes, 0)
        self._robbed: set[str] = set()      # nodes whose lease etcd has ended without cause, until they notice
        self.robberies = 0
        cluster.checks.append(self._check)
        check_entry = cluster.etcd.check_entry

        def look(index: int, entry: Entry) -> None:
            if index > len(cluster.etcd.log) and entry.data is not None and entry.data[2][0] == "revoke":
                self._on_revoke(entry.data[2][1])
            check_entry(index, entry)

        cluster.etcd.check_entry = look  # type: ignore[method-assign]

    def _store_of(self, process: Process) -> SimStore:
        store = self.cluster.store(process.name)
        if self.own_only and process.name in self.voters:
            store.endpoints = [self.cluster.member(process.name)]
        return store

    def _watch_of(self, process: Process) -> LeaderWatch | None:
        if process.name not in self.voters:
            return None
        watch = LeaderWatch(SimLocalMember(self._store_of(process), self.cluster.member(process.name)), process.driver,
                            process.now, random.Random(f"{process.name} {process.life}").getrandbits)
        watch.number = number_of(self.cluster.member(process.name))     # a watch outlives a fence
        process.driver.start(watch.keep())
        return watch

    # ── what clients do ──────────────────────────────────────────────────────────────────────────────────

    def next(self) -> int:
        self._numbers += 1
        return self._numbers

    def subscribed(self) -> list[str]:
        """The nodes whose subscriber must get what is published now."""
        return [name for name, stayer in self.stayers.items() if stayer.subscribed]

    def run(self, seconds: float, until: Callable[[], object] = lambda: False) -> bool:
        """Lets time pass, and clients act."""
        end = self.cluster.now + seconds
        while self.cluster.now < end and not until():
            self.cluster.run_for(min(PERIOD_S / 4 if self.eager else PERIOD_S, max(0.001, end - self.cluster.now)))
            for one in (*self.stayers.values(), *self.twins):
                one.look()
        return bool(until())

    # ── the judge ────────────────────────────────────────────────────────────────────────────────────────

    def _on_revoke(self, lease: int) -> None:
        """The first member applies the end of a lease. If the leader has renewed it since, a former leader has ended it
        (etcd issue 15247): nobody can know."""
        leader = self.cluster.etcd.leader
        if leader is None or (leader.lessor.left_ms(lease) or 0) <= 0:
            return
        for name, broker in self.brokers.processes.items():
            if broker.process.alive and broker.cluster.membership.lease == lease:
                self.robberies += 1
                self._robbed.add(name)

    def _check(self) -> None:
        """In every instant."""
        seen: dict[bytes, str] = {}
        for name, broker in self.brokers.processes.items():
            if not broker.process.alive or broker.fences != self._fences[name]:
                self.stayers[name].disturbed = True
                self._fences[name] = broker.fences
                self._robbed.discard(name)
            if name in self._robbed or not broker.process.runs or not self._serves(name):
                continue
            for (_, client), session in broker.node.broker.sessions.items():
                if session.data.connection is not None:
                    if client in seen:
                        raise Wrong(f"{client!r} is served by {seen[client]} and {name} at {self.cluster.now_ms}")
                    seen[client] = name

    def _judge(self) -> None:
        for name, stayer in self.stayers.items():
            got = {payload for _, payload in stayer.subscriber.messages}
            for payload, nodes in self.kept:
                own = payload.split()[0].decode() == name
                if name in nodes and (own or not stayer.disturbed) and payload not in got:
                    raise Wrong(f"{payload!r} was acknowledged, and {name}'s subscriber has not got it")

    # ── episodes ─────────────────────────────────────────────────────────────────────────────────────────

    def play(self) -> None:
        """Plays it. Raises AssertionError."""
        for broker in self.brokers.processes.values():
            broker.start()
        self._recover()
        episodes = [self._outage, self._outage, self._leader_dies, self._leader_dies, self._old_leader_returns,
                    self._old_leader_returns, self._cut_off, self._members_apart, self._stands_still, self._node_dies,
                    self._chaos, self._chaos, self._chaos]
        for episode in self.chance.sample(episodes, EPISODES):
            self.faults.trace.append(f"{self.cluster.now_ms} --- {episode.__name__.strip('_')}")
            episode()
            self._recover()
        self.publishes = False
        answered = self.run(30.0, lambda: not any(stayer.pending for stayer in self.stayers.values()))
        assert answered, "answers are missing"
        self.run(2.0)
        self._judge()

    def _tell(self, *what: object) -> None:
        self.faults.trace.append(" ".join(map(str, (self.cluster.now_ms, *what))))

    def _recover(self) -> None:
        """Everything works again."""
        self.faults.end()
        for name, broker in self.brokers.processes.items():
            if broker.process.paused:
                broker.process.resume()
            elif not broker.process.alive:
                self._tell("start", name)
                broker.start()
        well = self.run(60.0, lambda: self.cluster.etcd.has_quorum and all(self._well(name) for name in self.stayers))
        assert well, f"not well: {[name for name in self.stayers if not self._well(name)]}"

    def _well(self, name: str) -> bool:
        broker, stayer = self.brokers.processes[name], self.stayers[name]
        member = broker.cluster.membership
        return broker.serving and not member.late and len(member.nodes) == len(self.stayers) and bool(member.voters) \
            and stayer.subscriber.connected and stayer.subscribed and stayer.publisher.connected

    def _serving(self) -> dict[str, int]:
        return {name: broker.fences for name, broker in self.brokers.processes.items()}

    def _leader(self) -> Member:
        leader = self.cluster.etcd.leader
        assert leader is not None
        return leader

    def _others(self) -> list[Member]:
        return [member for member in self.cluster.etcd.members.values() if member is not self._leader()]

    def _outage(self) -> None:
        """A majority of the members is gone for long: everybody serves on, messages go from node to node."""
        before, robberies = self._serving(), self.robberies
        names = self.chance.sample(list(self.cluster.etcd.members), self.chance.choice((2, 2, 3)))
        for name in names:
            self._tell("kill", name)
            self.cluster.etcd.kill(name)
            self.run(self.chance.choice((0.0, 0.0, 0.2, 1.0)))
        self.run(self.ttl_s * self.chance.choice((1.5, 2, 4)))
        assert self._serving() == before, f"{self._serving()}: a node has stopped although there was no quorum"
        for stayer in self.stayers.values():
            assert stayer.subscriber.connected and stayer.publisher.connected, f"{stayer.node} serves nobody"
        if self.chance.random() < 0.5:
            self._stall(names)
            assert self._serving() == before, f"{self._serving()}: a node has stopped that had only stood still"
        mark = self._numbers
        self.run(2.0)
        for stayer in self.stayers.values():
            found = {payload.split()[0] for _, payload in stayer.subscriber.messages if int(payload.split()[1]) > mark}
            assert len(found) == len(self.stayers), f"{stayer.node}'s subscriber does not hear everybody"
        self.counts["served on"] += sum(broker.cluster.quorum.serves_on for broker in self.brokers.processes.values())
        self.counts["outages"] += 1
        for name in self.chance.sample(names, len(names)):
            self._tell("restart", name)
            self.cluster.etcd.restart(name)
            self.run(self.chance.choice((0.0, 0.3, 2.0)))
        self.run(self.ttl_s)
        after = self._serving()
        for name in names if self.own_only else ():
            before[name.removeprefix("etcd-")] = after[name.removeprefix("etcd-")]
        raft = self.cluster.etcd.options.raft
        if not raft.check_quorum or not raft.pre_vote or self.robberies != robberies:
            return      # one that has not noticed anything ends leases at once; one is unseated before it renews any
        assert after == before, f"{after}: a node has stopped when the quorum was back"

    def _stall(self, down: list[str]) -> None:
        """Nodes stand still for a moment, or processors have too much to do: what is asked is answered late. Meanwhile
        members that are down may be started, and end."""
        for _ in range(self.chance.choice((1, 2, 4))):
            processes = [self.brokers.processes[name].process
                         for name in self.chance.sample(list(self.stayers), self.chance.choice((1, 1, 2)))]
            for process in processes:
                self._tell("pause", process.name)
                process.pause()
            if self.chance.random() < 0.3:
                name = self.chance.choice(down)
                self._tell("restart in vain", name)
                self.cluster.etcd.restart(name)
                self.run(0.05)
                self.cluster.etcd.kill(name)
            self.run(STALL_S[0] + self.chance.random() * (STALL_S[1] - STALL_S[0]))
            for process in processes:
                self._tell("resume", process.name)
                process.resume()
            self.run(self.chance.choice((0.1, 0.6, 1.5)))
            self.counts["stalls"] += 1
        self.run(2.0)

    def _leader_dies(self) -> None:
        """Its node may lose its lease, if the member is away for long; the others do not."""
        before, leader, robberies = self._serving(), self._leader(), self.robberies
        node = leader.name.removeprefix("etcd-")
        self._tell("kill", leader.name)
        self.cluster.etcd.kill(leader.name)
        self.run(self.chance.choice((0.6, 1.0, 3.0, 8.0)))
        self._tell("restart", leader.name)
        self.cluster.etcd.restart(leader.name)
        self.run(self.ttl_s)
        after = self._serving()
        if not self.cluster.etcd.options.raft.pre_vote or self.robberies != robberies:
            return
        assert {name: count for name, count in after.items() if name != node} == {
            name: count for name, count in before.items() if name != node}, f"{after}: more than {node} has stopped"
        self.counts["leaders"] += 1

    def _old_leader_returns(self) -> None:
        """It was paused, nobody could be elected meanwhile, and it ends leases at once."""
        leader, others = self._leader(), self._others()
        down = self.chance.choice(others)
        self._tell("kill", down.name)
        self.cluster.etcd.kill(down.name)
        self.run(self.chance.choice((0.0, 0.5)))
        with_node = self.chance.random() < 0.3
        node = self.brokers.processes[leader.name.removeprefix("etcd-")].process
        self._tell("pause", leader.name, "with its node" if with_node else "")
        leader.process.pause()
        if with_node:
            node.pause()
        self.run(self.ttl_s * self.chance.choice((0.7, 1.0, 1.2, 2, 3)) + self.chance.random())
        self._tell("resume", leader.name)
        if with_node and self.chance.random() < 0.5:
            node.resume()
        leader.process.resume()
        self.eager = self.chance.random() < 0.7
        self.run(self.ttl_s * self.chance.random() * 2)
        self.eager = False

    def _cut_off(self) -> None:
        """A node with its member is cut off from everybody: it stops, and the others serve."""
        name = self.chance.choice(self.voters)
        self._tell("isolate", name)
        self.cluster.network.isolate(name, self.cluster.member(name))
        self.run(self.ttl_s + STRANGE_S)
        assert not self._serves(name), f"{name} serves, cut off"
        assert self.cluster.etcd.has_quorum
        self.run(self.ttl_s * self.chance.random() * 2)
        assert not self._serves(name), f"{name} serves, cut off"
        self.counts["cut off"] += 1

    def _serves(self, name: str) -> bool:
        broker = self.brokers.processes[name]
        return broker.serving and broker.cluster.membership.may_serve()

    def _members_apart(self) -> None:
        """The members do not reach each other, their nodes do; perhaps one way only."""
        names = list(self.cluster.etcd.members)
        pairs = [(one, other) for one in names for other in names if one < other]
        for pair in self.chance.sample(pairs, self.chance.choice((1, 2, 2, 3))):
            back = self.chance.random() < 0.7
            self._tell("cut", *pair, back)
            self.cluster.network.cut(*pair, back=back)
        self.run(self.ttl_s * self.chance.choice((0.5, 1, 2)) + self.chance.random())
        self.cluster.network.heal()
        self._tell("heal")
        self.run(self.ttl_s * self.chance.random())

    def _stands_still(self) -> None:
        """A node, perhaps with its member, past its time to live."""
        name = self.chance.choice(list(self.stayers))
        processes = [self.brokers.processes[name].process]
        if name in self.voters and self.chance.random() < 0.5:
            processes.append(self.cluster.etcd.members[self.cluster.member(name)].process)
        for process in processes:
            self._tell("pause", process.name)
            process.pause()
        self.run(self.ttl_s * self.chance.choice((0.5, 1.0, 1.3, 2)) + self.chance.random())
        for process in self.chance.sample(processes, len(processes)):
            self._tell("resume", process.name)
            process.resume()
            self.run(self.chance.choice((0.0, 0.5)))
        self.run(self.ttl_s * self.chance.random())

    def _node_dies(self) -> None:
        """With its member."""
        name = self.chance.choice(list(self.stayers))
        self._tell("kill", name)
        self.brokers.kill(name)
        if name in self.voters:
            self.cluster.etcd.kill(self.cluster.member(name))
        self.run(self.ttl_s * self.chance.choice((0.3, 1, 2)))
        self._tell("start", name)
        if name in self.voters:
            self.cluster.etcd.restart(self.cluster.member(name))
        self.brokers.processes[name].start()
        self.run(self.ttl_s * self.chance.random())

    def _chaos(self) -> None:
        """Anything."""
        for _ in range(self.chance.choice((6, 12))):
            self.faults.step()
            if self.chance.random() < 0.1:
                process = self.brokers.processes[self.chance.choice(list(self.stayers))].process
                if process.runs:
                    self._tell("pause", process.name)
                    process.pause()
                elif process.paused:
                    self._tell("resume", process.name)
                    process.resume()
            self.run(self.chance.choice((0.1, 0.5, 1.0, 2.5)))


def play(seed: int, options: EtcdOptions | None = None) -> QuorumHistory:
    """One history. Raises Wrong."""
    history = QuorumHistory(seed, options)
    try:
        history.play()
    except AssertionError as error:
        trace = "\n".join([*history.faults.trace, *(
            f"{name}: {level}: {text} {fields}" for name, broker in history.brokers.processes.items()
            for level, text, fields in broker.log if level != "info")])
        raise Wrong(f"seed {seed}: {error} (lease {history.ttl_s} s)\n{trace}") from error
    history.counts["fences"] = sum(broker.fences for broker in history.brokers.processes.values())
    return history
