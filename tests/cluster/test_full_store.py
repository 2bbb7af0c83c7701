"""An etcd member whose disk is full, and an etcd whose quota is used up: three real nodes, and what their clients
see."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.client import Client
from kit.faulty import FaultyCluster, Load
from kit.smalldisk import fill, small_disk
from kit.watch import metrics
from oracle.mqtt import Connack, Connect

KEPT = {"session_expiry_interval": 1000}
QUOTA = 16 << 20
TTL_S = 10  # no lease ends here. Members answer nobody while they are defragmented, which takes long on a busy machine
PAYLOAD = bytes(60_000)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """etcd takes 64 MB for a file of its log before it writes it, and so for the next one."""
    with small_disk(tmp_path / "disk", "200m") as where:
        yield where


def test_the_disk_of_a_member_is_full(tmp_path: Path, disk: Path) -> None:
    """etcd ends there, and its node uses the members of the others meanwhile: no lease ends, and no client notices."""
    cluster = FaultyCluster(tmp_path, 3, ttl_s=TTL_S)
    cluster[2].settings["cluster.etcd.data_dir"] = str(disk / "etcd")
    with cluster:
        cluster.wait(cluster.everybody_serves)
        epochs = cluster.epochs()
        with Load(cluster, "disk") as load:
            ballast = fill(disk, 0)
            number = 0
            while " is full; it is started again" not in cluster[2].stderr():
                publisher = cluster.client(0)
                publisher.connect("filler")
                for _ in range(10):
                    publisher.publish(f"filler/{number}", PAYLOAD, 1, retain=True)
                    number += 1
                load.goes_on()
            for _ in range(3):
                load.goes_on()
            ballast.unlink()
            cluster.wait(lambda: cluster.member_pid(2) and cluster.votes(0)["n2"] == ("voter", True))
            load.goes_on()
        assert cluster.epochs() == epochs
        assert not any(hopper.lost or hopper.refused for hopper in (*load.publishers, *load.subscribers))


def said(cluster: FaultyCluster, text: str) -> bool:
    """A node has it in its log."""
    return any(text in broker.stderr() for broker in cluster.brokers)


def connects(newcomer: Client) -> bool:
    """Whether a client without a session may connect; else it is told that the server is unavailable."""
    newcomer.timeout = 60
    newcomer.send(Connect(client_id="new"))
    reason = newcomer.expect(Connack).reason
    assert reason in (0, 0x88)
    if reason == 0:
        newcomer.disconnect()
    return reason == 0


def test_the_quota_is_used_up(tmp_path: Path) -> None:
    """By messages that are retained, so that giving up history does not help. Nobody new can connect, and what is
    retained waits; who is connected is served. When enough was cleared there is space again."""
    with FaultyCluster(tmp_path, 3, ttl_s=TTL_S, settings={
            "cluster.etcd.quota_bytes": QUOTA, "cluster.etcd.hybrid_retained_size_threshold": 65536}) as cluster:
        cluster.wait(cluster.everybody_serves)
        epochs = cluster.epochs()
        subscriber, publisher = cluster.client(1), cluster.client(0)
        subscriber.connect("s", clean_start=False, properties=KEPT)
        subscriber.subscribe("live/#", qos=1)
        ends = cluster.client(0)
        ends.connect("ends", clean_start=False, properties=KEPT)
        ends.subscribe("x", qos=1)
        ends = cluster.client(0)
        ends.connect("ends", clean_start=False, properties=KEPT)
        ends.subscribe("other", qos=1)
        publisher.connect("p")
        number = 0
        while not said(cluster, "the quota of etcd is used up"):
            publisher.publish(f"kept/{number}", PAYLOAD, 1, retain=True)
            number += 1
        while connects(cluster.client(2)):  # giving up history has made room for a little more
            for _ in range(10):
                publisher.publish(f"kept/{number}", PAYLOAD, 1, retain=True)
                number += 1
        publisher.publish("live/x", b"1", 1)
        subscriber.receive("live/x", b"1")
        assert any(metrics(broker)["fluxmq_cluster_retained_pending"] for broker in cluster.brokers)
        assert all(cluster.view(node)["state"] == "serving" for node in range(3))
        assert cluster.epochs() == epochs
        first, sessions = cluster.names[0], cluster.nodes(1)[cluster.names[0]]["sessions"]
        ends.disconnect(properties={"session_expiry_interval": 0})
        cluster.wait(lambda: cluster.nodes(1)[first]["sessions"] == sessions - 1)
        for one in range(number):
            publisher.publish(f"kept/{one}", b"", 1, retain=True)
        cluster.wait(lambda: metrics(cluster[0])["fluxmq_cluster_retained_pending"] == 0)
        # Each time that a node has said so: a put is taken when no member has the alarm any more.
        cluster.wait(lambda: all(broker.stderr().count("etcd has space again") >= broker.stderr().count(
            "the quota of etcd is used up") for broker in cluster.brokers))
        cluster.wait(lambda: connects(cluster.client(2)))
        newcomer = cluster.client(2)
        newcomer.connect("new")
        newcomer.subscribe("#", qos=1)
        publisher.publish("kept/0", b"back", 1, retain=True)
        newcomer.receive("kept/0", b"back")
        cluster.wait(lambda: metrics(cluster[0])["fluxmq_cluster_retained_pending"] == 0)
        assert cluster.epochs() == epochs
