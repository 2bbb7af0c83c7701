"""SimCluster: nodes, each with its member of etcd, or with fewer members than nodes.

    cluster = SimCluster(seed)                              # n1, n2, n3, and the members etcd-n1, etcd-n2, etcd-n3
    cluster.run_until(lambda: cluster.etcd.has_quorum)
    store, transport = cluster.store("n1"), cluster.transport("n1")
    cluster.nodes["n1"].driver.start(…)
    cluster.network.isolate("n1", "etcd-n1")
    cluster.nodes["n1"].pause(); cluster.etcd.kill("etcd-n2")

The logic of a node is built by the test, for each life of a node's process anew: with `store`, `transport`, and the
process's `driver` and `now`.
"""
from __future__ import annotations

from collections.abc import Sequence

from simulator.cluster.etcd import SimEtcd
from simulator.cluster.machines import Machines, Process
from simulator.cluster.member import EtcdOptions
from simulator.cluster.network import Network
from simulator.cluster.store import SimStore
from simulator.cluster.transport import SimTransport

__all__ = ["SimCluster"]


class SimCluster(Machines):
    """nodes: names of the brokers. voters: the nodes that have a member; None: all. rates_ppm: how much faster the
    clock of a machine runs, by the node's name."""

    def __init__(self, seed: int, nodes: Sequence[str] = ("n1", "n2", "n3"), *, voters: Sequence[str] | None = None,
                 options: EtcdOptions | None = None, rates_ppm: dict[str, int] | None = None) -> None:
        super().__init__(seed)
        rates = rates_ppm or {}
        self.network = Network(self)
        self.nodes: dict[str, Process] = {}
        for name in nodes:
            self.nodes[name] = self.process(name, rate_ppm=rates.get(name, 0))
        names = list(nodes if voters is None else voters)
        for name in names:
            self.process(self.member(name), rate_ppm=rates.get(name, 0))
        self.etcd = SimEtcd(self, self.network, [self.member(name) for name in names], options)

    @staticmethod
    def member(node: str) -> str:
        """The name of a node's member."""
        return f"etcd-{node}"

    def address(self, node: str) -> str:
        """Of a node's transport."""
        return f"{node}:7948"

    def store(self, node: str, **options: float) -> SimStore:
        """For the present life of a node. Its own member is preferred."""
        own = self.member(node)
        endpoints = sorted(self.etcd.members, key=lambda name: (name != own, name))
        return SimStore(self.nodes[node], self.etcd, endpoints, **options)

    def transport(self, node: str) -> SimTransport:
        """For the present life of a node."""
        return SimTransport(self.nodes[node], self.network, self.address(node))
