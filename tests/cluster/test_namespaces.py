"""Packets between three real nodes that vanish, in network namespaces: no end of a connection is told. What holds is
the same as where connections stand still (test_cut_off.py). Needs root and iproute2.
"""
from __future__ import annotations

from collections.abc import Iterator

import pytest
from kit.faulty import Load
from kit.namespaces import Network, SpacedCluster

TTL_S, LIMIT_S = 4, 5
NODES = 3


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with Network(NODES) as network:
        yield network


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, network: Network) -> Iterator[SpacedCluster]:
    with SpacedCluster(tmp_path_factory.mktemp("cluster"), network, ttl_s=TTL_S, settings={
            "cluster.route_publish_timeout": LIMIT_S}) as cluster:
        yield cluster
        for broker in cluster.brokers:
            broker.check()
            broker.kill()


def vanish(cluster: SpacedCluster, network: Network, number: int, how: str) -> None:
    """The node stops at the end of its lease, the others have its sessions, and it comes back with a new epoch."""
    cluster.wait(cluster.everybody_serves)
    epochs = cluster.epochs()
    with Load(cluster, how, [number], qos=2) as load:
        getattr(network, how)(number)
        try:
            for other in range(NODES):
                if other != number:
                    cluster.wait(lambda other=other: cluster.names[number]      # type: ignore[misc]
                                 not in cluster.nodes(other))
            load.goes_on()
        finally:
            network.mend(number)
        cluster.wait(cluster.everybody_serves)
        load.goes_on()
    now = cluster.epochs()
    assert now[number] > epochs[number]
    assert [now[other] for other in range(NODES) if other != number] == [
        epochs[other] for other in range(NODES) if other != number]
    assert not load.bereft


def test_the_packets_of_a_node_vanish(cluster: SpacedCluster, network: Network) -> None:
    vanish(cluster, network, 1, "cut")


@pytest.mark.soak
def test_what_a_node_sends_vanishes(cluster: SpacedCluster, network: Network) -> None:
    """It hears the others, who do not hear it."""
    vanish(cluster, network, 2, "lose_from")


@pytest.mark.soak
def test_what_is_sent_to_a_node_vanishes(cluster: SpacedCluster, network: Network) -> None:
    vanish(cluster, network, 0, "lose_to")
