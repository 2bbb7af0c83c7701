"""QoS 2 on three real nodes under faults: nodes that are killed, that stand still, and that are cut off, with or
without their members of etcd, by proxies (kit/parted.py), so without root. Publishers and subscribers of QoS 2 go from
node to node when they lose one. Nothing acknowledged is lost; nothing comes twice, but what was on its way to a session
when its node died; the order is the publisher's; and no session is served by two nodes at once.
"""
from __future__ import annotations

from collections.abc import Iterator

import pytest
from kit.faulty import Load, nobody_noticed, see_renewal
from kit.hoppers import Publisher
from kit.parted import PartedCluster

TTL_S, LIMIT_S = 6, 5
NODES = 3


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PartedCluster]:
    with PartedCluster(tmp_path_factory.mktemp("cluster"), NODES, ttl_s=TTL_S, settings={
            "cluster.route_publish_timeout": LIMIT_S}) as cluster:
        yield cluster
        for broker in cluster.brokers:
            broker.check()
            broker.kill()


@pytest.fixture
def cluster(shared: PartedCluster) -> Iterator[PartedCluster]:
    shared.wait(shared.everybody_serves)
    yield shared
    shared.resume_links()
    for broker in shared.brokers:
        broker.check()


def others(number: int) -> list[int]:
    return [other for other in range(NODES) if other != number]


def gone(cluster: PartedCluster, number: int) -> None:
    """Waits until the lease of a node has ended for the others."""
    for other in others(number):
        cluster.wait(lambda other=other: cluster.names[number] not in cluster.nodes(other))  # type: ignore[misc]


def troubles(publisher: Publisher) -> int:
    """How often it was refused, or lost its connection."""
    return len(publisher.refusals) + publisher.lost


# ── nodes ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_node_is_killed_under_qos_2(cluster: PartedCluster) -> None:
    number = cluster.leader()
    with Load(cluster, "killed", [number], qos=2) as load:
        cluster[number].kill()
        gone(cluster, number)
        load.goes_on()
        cluster[number].start()
        cluster.wait(cluster.everybody_serves)
        load.goes_on()
    assert not load.bereft


@pytest.mark.soak       # simulator/cluster/test_hop_histories.py plays it
def test_a_node_stands_still_under_qos_2(cluster: PartedCluster) -> None:
    """Longer than its lease."""
    number, epochs = 1, cluster.epochs()
    with Load(cluster, "still", [number], qos=2) as load:
        cluster.pause(number)
        try:
            gone(cluster, number)
            load.goes_on(*others(number))
        finally:
            cluster.resume(number)
        cluster.wait(cluster.everybody_serves)
        load.goes_on()
    assert cluster.epochs()[number] > epochs[number]
    assert not load.bereft


@pytest.mark.soak       # simulator/cluster/test_hop_histories.py plays it
def test_no_node_reaches_one_under_qos_2(cluster: PartedCluster) -> None:
    """It has its lease. What cannot be taken there is refused, and comes once at most; a connection whose PUBREL is not
    recorded there ends."""
    number, epochs = 2, cluster.epochs()
    with Load(cluster, "unreached", qos=2) as load:
        for link in cluster.links_of(number):
            link.stall()
        cluster.wait(lambda: all(troubles(publisher) for publisher in load.publishers))
        cluster.resume_links()
        cluster.wait(cluster.everybody_serves)
        load.goes_on()
    assert {reason for publisher in load.publishers for reason in publisher.refusals} <= {0x80}
    assert cluster.epochs() == epochs


# ── a node with its member of etcd ───────────────────────────────────────────────────────────────────────────


def test_the_node_whose_member_leads_etcd_is_cut_off(cluster: PartedCluster) -> None:
    """From everything but its clients: it stops at the end of its lease, and the others have its sessions."""
    cluster.wait(lambda: cluster.etcd_leader() != -1)
    number, epochs = cluster.etcd_leader(), cluster.epochs()
    with Load(cluster, "cut-off", [number], qos=2) as load:
        cluster.cut_off(number)
        gone(cluster, number)
        load.goes_on()
        cluster.resume_links()
        cluster.wait(cluster.everybody_serves)
        load.goes_on()
    now = cluster.epochs()
    assert now[number] > epochs[number]
    assert [now[other] for other in others(number)] == [epochs[other] for other in others(number)]
    assert not load.bereft


# ── links between the members of etcd alone ──────────────────────────────────────────────────────────────────


def serve_on(cluster: PartedCluster, load: Load) -> None:
    """For as long as a lease: none ends, and clients notice nothing."""
    epochs = cluster.epochs()
    for number in (*range(NODES), *range(NODES), *range(NODES)):        # six are the time of a lease
        see_renewal(cluster, number)
    load.goes_on()
    assert cluster.epochs() == epochs
    assert nobody_noticed(load)


@pytest.mark.soak
@pytest.mark.parametrize("what", ["it sends", "is sent to it"])
def test_what_concerns_etcds_leader_is_lost(cluster: PartedCluster, what: str) -> None:
    """It hears the others, who elect another. Or it is heard, and hears nobody: it gives up, and they elect. Its node
    uses their members."""
    cluster.wait(lambda: cluster.etcd_leader() != -1)
    leader = cluster.etcd_leader()
    with Load(cluster, "unheard" if what == "it sends" else "deaf", qos=2) as load:
        for other in others(leader):
            cluster.silence(*((leader, other) if what == "it sends" else (other, leader)))
        cluster.wait(lambda: cluster.etcd_leader() not in (leader, -1))
        serve_on(cluster, load)
        cluster.resume_links()
        load.goes_on()
    assert nobody_noticed(load)


@pytest.mark.soak
def test_a_member_of_etcd_does_not_reach_the_leader(cluster: PartedCluster) -> None:
    """Nor is it reached by it; the third reaches both. It does not unseat the leader, and its node uses the others'."""
    cluster.wait(lambda: cluster.etcd_leader() != -1)
    leader = cluster.etcd_leader()
    other = others(leader)[0]
    with Load(cluster, "bridge", qos=2) as load:
        cluster.silence(leader, other)
        cluster.silence(other, leader)
        serve_on(cluster, load)
        assert cluster.etcd_leader() == leader
        cluster.resume_links()
        serve_on(cluster, load)


@pytest.mark.soak
def test_links_between_the_members_are_slow(cluster: PartedCluster) -> None:
    """A tenth of a second in each direction. Whatever waits for etcd is slower."""
    epochs = cluster.epochs()
    with Load(cluster, "slow", qos=2) as load:
        for source in range(NODES):
            for target in others(source):
                cluster.member_link(source, target).delay(0.1)
                cluster.client_link(source, target).delay(0.1)
        for number in range(NODES):
            see_renewal(cluster, number)
        load.goes_on()
    assert nobody_noticed(load)
    assert cluster.epochs() == epochs
