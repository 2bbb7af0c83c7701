"""Faults of three real nodes under the load of clients that hop between them (kit/faulty.py): whatever fails, nothing
that was acknowledged is lost, the order is each publisher's, nothing comes twice but where QoS 1 allows it, and no
session is served by two nodes at once. docs/guide/cluster-faults.md is the table of them all.

The tests share a cluster; each leaves it whole.
"""
from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.client import Client
from kit.faulty import FaultyCluster, Load, nobody_noticed, see_renewal
from kit.proxy import FROM_TARGET, TO_TARGET
from kit.setclock import Clocks
from oracle.mqtt import Connack, Connect, Pingreq, Publish

TTL_S, LIMIT_S = 6, 5
HOUR, YEAR = 3600, 365 * 86400
KEPT = {"session_expiry_interval": 1000}


@pytest.fixture(scope="module")
def clocks(tmp_path_factory: pytest.TempPathFactory) -> Clocks:
    """Of node n1."""
    return Clocks(tmp_path_factory.mktemp("clocks"))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, clocks: Clocks) -> Iterator[FaultyCluster]:
    cluster = FaultyCluster(tmp_path_factory.mktemp("cluster"), 3, ttl_s=TTL_S, settings={
        "cluster.route_publish_timeout": LIMIT_S})
    cluster[1].environ.update(clocks.environ)
    with cluster:
        yield cluster


@pytest.fixture
def cluster(shared: FaultyCluster) -> Iterator[FaultyCluster]:
    shared.wait(shared.everybody_serves)
    yield shared
    shared.resume_links()
    for broker in shared.brokers:
        broker.check()


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[FaultyCluster]:
    """With leases that outlast the election of a leader of etcd on a busy machine, too. That it fits into the shortest
    ones the simulator shows (test_quorum)."""
    settings: dict[str, object] = {"cluster.route_publish_timeout": LIMIT_S}
    with FaultyCluster(tmp_path / "patient", 3, ttl_s=15, settings=settings) as cluster:
        cluster.wait(cluster.everybody_serves)
        yield cluster
        for broker in cluster.brokers:
            broker.check()


# ── nodes that die ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_node_that_publishes_and_subscribes_is_killed(cluster: FaultyCluster) -> None:
    other = next(number for number in range(3) if number not in (cluster.leader(), cluster.etcd_leader()))
    kill_and_start(cluster, other, "other")


@pytest.mark.soak       # simulator/cluster/faults.py plays it
def test_the_leader_is_killed(cluster: FaultyCluster) -> None:
    leader = cluster.leader()
    kill_and_start(cluster, leader, "leader")
    assert cluster.leader() != leader


@pytest.mark.soak       # simulator/cluster/faults.py plays it
def test_the_node_whose_etcd_member_leads_is_killed(cluster: FaultyCluster) -> None:
    """The lease ends later: the other members elect first, and a new leader of etcd extends leases."""
    leader = cluster.etcd_leader()
    kill_and_start(cluster, leader, "etcd-leader")
    assert cluster.etcd_leader() != leader


def kill_and_start(cluster: FaultyCluster, number: int, name: str) -> None:
    """kill -9 under load. The others go on after the node's lease has ended, its clients at another node; it comes back
    with a new epoch."""
    other, before = (number + 1) % 3, cluster.epochs()[number]
    with Load(cluster, name, [number]) as load:
        said = cluster[other].stderr_size()
        cluster[number].kill()
        cluster.wait(lambda: cluster.names[number] not in cluster.nodes(other))
        load.goes_on()
        warnings = [line for line in cluster[other].stderr(said).splitlines() if " WARN " in line]
        assert any(f"fluxmq.cluster a node's lease has ended node={cluster.names[number]}" in line for line in warnings)
        assert not any(" fluxmq.etcd " in line for line in warnings), "what matters drowns in what etcd repeats"
        cluster[number].start()
        cluster.wait(cluster.everybody_serves)
        load.goes_on()
    assert cluster.epochs()[number] > before
    assert not load.bereft


def test_etcds_leader_is_killed(patient: FaultyCluster) -> None:
    """Its node starts it again. No lease ends, and no client notices."""
    cluster = patient
    leader, epochs = cluster.etcd_leader(), cluster.epochs()
    with Load(cluster, "member") as load:
        before = cluster.member_pid(leader)
        cluster.kill_member(leader)
        cluster.wait(lambda: cluster.member_pid(leader) not in (before, 0))
        cluster.wait(lambda: cluster.etcd_leader() != -1)        # it may be the same
        load.goes_on()
    assert cluster.epochs() == epochs
    assert nobody_noticed(load)
    assert "the etcd member has ended (" in cluster[leader].stderr()


# ── what stands still ────────────────────────────────────────────────────────────────────────────────────────


def test_a_node_stands_still_beyond_its_lease(cluster: FaultyCluster) -> None:
    stand_still(cluster, 2, "still", with_member=False)


@pytest.mark.soak       # simulator/cluster/faults.py plays it
def test_a_node_and_its_member_stand_still(cluster: FaultyCluster) -> None:
    number = next(number for number in range(3) if number != cluster.etcd_leader())
    stand_still(cluster, number, "both-still", with_member=True)


def stand_still(cluster: FaultyCluster, number: int, name: str, *, with_member: bool) -> None:
    """SIGSTOP until the lease has ended and the clients are served elsewhere. A client that has stayed, with packets
    that the node has not read, gets nothing of it afterwards."""
    other, epoch = (number + 1) % 3, cluster.epochs()[number]
    with Load(cluster, name, [number]) as load:
        stayed = [cluster.client(number) for _ in range(2)]
        for count, client in enumerate(stayed):
            client.connect(f"{name}-{count}", clean_start=False, properties=KEPT)
            client.subscribe(f"{name}/#", qos=1)
        member = cluster.member_pid(number)
        cluster.pause(number)
        if with_member:
            cluster.pause_member(number)
        try:
            cluster.wait(lambda: cluster.names[number] not in cluster.nodes(other))
            elsewhere = [cluster.client(other) for _ in stayed]
            for count, (client, there) in enumerate(zip(stayed, elsewhere, strict=True)):
                there.connect(f"{name}-{count}", clean_start=False, properties=KEPT)
                client.send(Pingreq(), Publish(topic=f"{name}/x", payload=b"to a node without a lease", qos=1,
                                               packet_id=9))
            for client in stayed:               # what the node had sent before it stood still
                while came(client):
                    pass
        finally:
            cluster.resume_members()
            cluster.resume(number)
        for client in stayed:
            with contextlib.suppress(ConnectionError):
                assert client.rest() == b""
        cluster.wait(cluster.everybody_serves)
        load.goes_on()
    assert cluster.epochs()[number] > epoch
    assert cluster.member_pid(number) == member
    assert all(b"to a node without a lease" not in one.got for one in load.subscribers)
    assert not load.bereft


def came(client: Client) -> bool:
    """Whether there is a further packet already."""
    try:
        client.recv(0.2)
    except AssertionError:
        return False
    return True


@pytest.mark.soak       # simulator/cluster/test_quorum.py plays it
def test_etcds_leader_stands_still(cluster: FaultyCluster) -> None:
    """Beyond the time of a lease. The other members elect another; no lease ends, and no client notices. When it goes
    on it may end all leases (etcd issues 12528 and 15247): each node whose lease has ended joins again."""
    leader, epochs = cluster.etcd_leader(), cluster.epochs()
    with Load(cluster, "member-still") as load:
        cluster.pause_member(leader)
        try:
            cluster.wait(lambda: cluster.etcd_leader() not in (leader, -1))
            for number in (*range(3), *range(3), *range(3)):        # six are the time of a lease
                see_renewal(cluster, number)
            load.goes_on()
            assert cluster.epochs() == epochs
            assert nobody_noticed(load)
        finally:
            cluster.resume_members()
        load.goes_on()
        cluster.wait(cluster.everybody_serves)
        load.goes_on()
        load.fails = {number for number in range(3) if cluster.epochs()[number] > epochs[number]}
    assert not load.bereft


# ── links between nodes ──────────────────────────────────────────────────────────────────────────────────────


def test_a_link_stands_still_in_one_direction(cluster: FaultyCluster) -> None:
    """Longer than a publish waits: the publisher is told that the other node did not take it. When the link is whole
    again everything goes on, and what was refused may have arrived."""
    epochs = cluster.epochs()
    with Load(cluster, "one-way") as load:
        old, listener = cluster.client(0, version=4), cluster.client(1)
        listener.connect("listener")
        listener.subscribe("old/#", qos=1)
        old.connect("old")
        cluster.link(0, 1).stall(TO_TARGET)
        old.send(Publish(topic="old/x", payload=b"", qos=1, packet_id=1))
        old.expect_closed(timeout=60)           # MQTT 3.1.1 has no other way to say it
        cluster.wait(lambda: load.publishers[0].refusals)
        assert {*load.publishers[0].refusals} == {0x80}
        load.goes_on(2)                         # which needs neither end of the link to send over it
        cluster.resume_links()
        load.goes_on()
    assert cluster.epochs() == epochs


def test_answers_do_not_come_back(cluster: FaultyCluster) -> None:
    """The other direction of that connection: acknowledgements come with the messages of the other node, so nothing
    waits for it until the connection counts as broken, and is made anew."""
    with Load(cluster, "no-answers") as load:
        cluster.link(0, 1).stall(FROM_TARGET)
        load.goes_on()
        cluster.link(0, 1).cut()
        cluster.resume_links()
        load.goes_on()
    assert not any(publisher.refusals for publisher in load.publishers)


@pytest.mark.soak       # simulator/cluster/faults.py plays it
def test_a_slow_link(cluster: FaultyCluster) -> None:
    """A tenth of a second in each direction: everything is slower, and nothing else."""
    with Load(cluster, "slow") as load:
        for link in (cluster.link(0, 1), cluster.link(1, 0)):
            link.delay(0.1)
        for _ in range(3):
            load.goes_on()
    assert nobody_noticed(load)


def test_connections_between_nodes_break(cluster: FaultyCluster) -> None:
    """Again and again, in the middle of frames too: streams go on where they were."""
    with Load(cluster, "broken") as load:
        for size in (1, 500, 5000):
            cluster.link(0, 1).cut_after(size, TO_TARGET)
            cluster.link(2, 0).cut_after(size, FROM_TARGET)
            for link in cluster.links_of(1):
                link.cut()
            load.goes_on()
    assert not any(publisher.refusals for publisher in load.publishers)


@pytest.mark.soak       # simulator/cluster/faults.py plays it
def test_a_node_that_no_other_node_reaches(cluster: FaultyCluster) -> None:
    """It has its lease, so nobody may take its sessions from it: who asks for one elsewhere is refused, and who
    publishes across the cut is told. Each side goes on for its own clients."""
    epochs = cluster.epochs()
    owner = cluster.client(2)
    owner.connect("cut", clean_start=False, properties=KEPT)
    owner.subscribe("cut/#", qos=1)
    near, far = cluster.client(2), cluster.client(0)
    near.connect("near")
    far.connect("far")
    for link in cluster.links_of(2):
        link.stall()
    elsewhere = cluster.client(1)
    elsewhere.timeout = 60
    far.timeout = 60
    elsewhere.send(Connect(client_id="cut", clean_start=False, properties=[*KEPT.items()]))
    far.publish("cut/x", b"across", 1, expect=0x80)
    elsewhere.expect(Connack, reason=0x88)
    owner.expect_quiet()
    near.publish("near/x", b"nobody else wants it", 1)
    far.publish("far/x", b"nobody else wants it", 1)
    cluster.resume_links()
    cluster.wait(cluster.everybody_serves)
    far.publish("cut/x", b"again", 1)
    while (message := owner.receive("cut/x")).payload != b"again":
        assert message.payload == b"across"
    assert cluster.epochs() == epochs


# ── clocks ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_wall_clock_is_set(cluster: FaultyCluster, clocks: Clocks) -> None:
    """On one node, forward and back: leases are measured by another clock."""
    epochs = cluster.epochs()
    with Load(cluster, "clock") as load:
        for seconds in (HOUR, -2 * HOUR, YEAR, -YEAR, HOUR):
            clocks.step(seconds)
            see_renewal(cluster, 1)
            load.goes_on()
    assert cluster.epochs() == epochs
    assert nobody_noticed(load)


def test_a_machine_has_slept(cluster: FaultyCluster, clocks: Clocks) -> None:
    """Its node finds that its lease has ended, serves nobody, and joins again."""
    epoch = cluster.epochs()[1]
    with Load(cluster, "slept", [1]) as load:
        client = cluster.client(1)
        client.connect("of-n1")
        clocks.sleep(HOUR)
        client.send_to_the_end(Pingreq())
        with contextlib.suppress(ConnectionError):
            assert client.rest() == b""
        cluster.wait(lambda: cluster.everybody_serves() and cluster.epochs()[1] > epoch)
        load.goes_on()
    assert not load.bereft
