"""Nodes that join a cluster, and nodes that lose the data of their member of etcd: three real processes."""
from __future__ import annotations

import json
import shutil
import urllib.request
from pathlib import Path

import pytest
from kit.broker import BrokerDied
from kit.cluster import Cluster

VOTER = ("voter", True)


def test_one_node_grows_to_three_and_a_wiped_one_is_added_anew(tmp_path: Path) -> None:
    with Cluster(tmp_path, 1) as cluster:
        subscriber = cluster.client(0)
        subscriber.connect("s")
        subscriber.subscribe("grown/#", qos=1)
        for _ in range(2):
            cluster.add().start()
        for number in range(3):
            cluster.wait(lambda number=number: cluster.votes(number) == dict.fromkeys(  # type: ignore[misc]
                cluster.names, VOTER))
        publisher = cluster.client(2)
        publisher.connect("p")
        publisher.publish("grown/x", b"from a node that has joined", 1)
        subscriber.receive("grown/x", b"from a node that has joined")

        # A restart with data is a plain one. The data of n1's member are lost then, and those of n0's, which has
        # made the cluster: neither comes back under its number.
        cluster[2].restart()
        for number in (1, 0):
            assert cluster[number].terminate() == 0
            shutil.rmtree(tmp_path / f"n{number}" / "data" / "etcd")
            cluster[number].start()
            cluster.wait(lambda: cluster.votes(2) == dict.fromkeys(cluster.names, VOTER))
            assert "its data are gone" in cluster[number].stderr()
        # With three members that all count, one may be away.
        cluster[2].kill()
        publisher, subscriber = cluster.client(0), cluster.client(1)
        subscriber.connect("s2")
        subscriber.subscribe("again/#", qos=1)
        publisher.connect("p2")
        publisher.publish("again/x", b"1", 1)
        subscriber.receive("again/x", b"1")


def test_a_node_that_has_lost_everything_is_added_anew(tmp_path: Path) -> None:
    """Also with bootstrap, as the first three have it: etcd itself knows that the others have been started."""
    with Cluster(tmp_path, 3) as cluster:
        cluster.wait(lambda: cluster.votes(2) == dict.fromkeys(cluster.names, VOTER))
        cluster[1].kill()
        shutil.rmtree(tmp_path / "n1" / "data")
        cluster.wait(lambda: "n1" not in cluster.nodes(0))  # on a new disk it is nobody's former life
        cluster[1].start()
        cluster.wait(lambda: cluster.votes(1) == dict.fromkeys(cluster.names, VOTER))
        assert "its data are gone" in cluster[1].stderr()


def test_a_lonely_node_is_registered_at_the_address_that_others_will_dial(tmp_path: Path) -> None:
    with Cluster(tmp_path, 1) as cluster:
        settings = cluster[0].settings
        port = str(settings["cluster.etcd.bind_addr"]).rpartition(":")[2]
        assert peer_urls(port) == [f"http://127.0.0.1:{port}"]
        settings["cluster.etcd.bind_addr"] = f"0.0.0.0:{port}"
        settings["cluster.etcd.initial_cluster"] = f"n0=http://127.0.0.2:{port}"
        cluster[0].restart()
        cluster.wait(lambda: peer_urls(port) == [f"http://127.0.0.2:{port}"])


def peer_urls(port: str) -> list[str]:
    """Of the only member, as it says itself."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/members", timeout=5) as answer:
        [member] = json.load(answer)
    urls: list[str] = member["peerURLs"]
    return urls


def test_a_cluster_is_not_made_a_second_time(tmp_path: Path) -> None:
    """A newcomer with bootstrap, by mistake, is refused when it finds a cluster without it."""
    with Cluster(tmp_path, 1) as cluster:
        newcomer = cluster.add()
        newcomer.settings["cluster.etcd.bootstrap"] = True
        with pytest.raises(BrokerDied, match="to join it set"):
            newcomer.start()
