"""Queues that the cluster has defined, on a node to which the owner is not known yet; and what the configuration says
of publishes to other nodes' queues."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kit.definer import defined
from kit.node import Node
from kit.peers import PeerNode

from fluxmq._core.errors import UsageError
from fluxmq._core.peer.outbox import PeerOutbox
from fluxmq._core.queue.queue import Queue
from fluxmq.cluster.solo import solo
from fluxmq.engine.ports.cluster import Cluster
from fluxmq.engine.ports.definitions import QueueDefinition
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.model.queues import QueueSpec

Q = QueueDefinition(77, QueueSpec(name="q"))


class Peers:
    """known: the nodes to which there is a way."""

    def __init__(self, node: PeerNode) -> None:
        self.node = node
        self.known: set[str] = set()

    def hop(self, node: str) -> PeerOutbox:
        if node not in self.known:
            raise UsageError(f"node {node} is not known")
        return self.node.to(node)

    def reference(self, node: str) -> str:
        return ""


class Heard:
    def __init__(self) -> None:
        self.of: list[bytes] = []

    def owner_changed(self, queue: Queue) -> None:
        self.of.append(queue.name)


def world() -> tuple[QueueManager, Any, Peers, Heard]:
    alone, node = solo(), PeerNode("a", 1)
    peers, heard = Peers(node), Heard()
    cluster: Any = Cluster(alone.directory, peers, alone.replicator)
    manager = QueueManager(node.hub, cluster=cluster)
    manager.on_owner.append(heard.owner_changed)
    return manager, defined(manager), peers, heard


def test_its_owner_is_reached_when_it_appears() -> None:
    manager, queues, peers, heard = world()
    queues.learn(Q, "b")
    relay: Any = manager.queues[Q.address].queue.relay
    assert relay.owner == "b" and relay.outbox is None and len(manager.away) == 1
    peers.known = {"b", "c"}
    queues.node_appeared("c")
    assert relay.outbox is None and heard.of == [b"q"]
    queues.node_appeared("b")
    assert relay.outbox is peers.hop("b") and len(manager.away) == 0 and heard.of == [b"q", b"q"]
    queues.node_appeared("b")
    assert heard.of == [b"q", b"q"]             # it waits for nobody any more


def test_one_that_is_forgotten_waits_for_nobody() -> None:
    manager, queues, peers, heard = world()
    queues.learn(Q, "b")
    queues.forget(Q)
    assert not manager.queues
    peers.known = {"b"}
    queues.node_appeared("b")
    assert heard.of == [b"q"]                   # when it was learned


@pytest.mark.parametrize("policy", ["forward", "reject"])
def test_the_configuration_says_what_comes_to_publishes_elsewhere(tmp_path: Path, policy: str) -> None:
    node = Node(tmp_path, {"cluster.raft.write_policy": policy})
    assert node.server.queues.consumers.defined.write_policy == policy
    node.stop()
