"""Who has a vote in etcd: nodes that join, lose their data, lose their vote and get it back; three real processes."""
from __future__ import annotations

import json
import shutil
import urllib.request
from pathlib import Path

import pytest
from kit.broker import Broker, BrokerDied
from kit.cluster import Cluster, cluster_command, fluxmq

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


def test_votes_are_taken_and_given(tmp_path: Path) -> None:
    with Cluster(tmp_path, 3) as cluster:
        epochs = {name: node["epoch"] for name, node in cluster.nodes(0).items()}
        assert "n2 has no vote any more" in cluster_command(cluster[0], "voters", "remove", "n2", "--yes")
        without = {"n0": VOTER, "n1": VOTER, "n2": ("none", None)}
        for number in range(3):
            cluster.wait(lambda number=number: cluster.votes(number) == without)  # type: ignore[misc]
        assert "etcd has no member n2" in cluster_command(cluster[1], "voters", "remove", "n2", "--yes")
        assert "has a member of etcd already" in cluster_command(cluster[2], "voters", "add", "n1")
        # It serves its clients as before, in the same life, and after a restart too.
        subscriber, publisher = cluster.client(2), cluster.client(0)
        subscriber.connect("s")
        subscriber.subscribe("vote/#", qos=1)
        publisher.connect("p")
        publisher.publish("vote/x", b"1", 1)
        subscriber.receive("vote/x", b"1")
        assert {name: node["epoch"] for name, node in cluster.nodes(2).items()} == epochs
        cluster[2].restart()
        assert cluster.votes(2)["n2"] == ("none", None)

        cluster.wait(lambda: "n2 has a vote" in cluster_command(cluster[0], "voters", "add", "n2"))
        for number in range(3):
            cluster.wait(lambda number=number: cluster.votes(number) == dict.fromkeys(  # type: ignore[misc]
                cluster.names, VOTER))
        # Two that are well are the majority: neither may go.
        cluster[1].kill()
        cluster.wait(lambda: cluster.votes(0)["n1"] == ("voter", False))
        assert "start these first" in cluster_command(cluster[0], "voters", "remove", "n2", "--yes")
        assert "n1 has no vote any more" in cluster_command(cluster[0], "voters", "remove", "n1", "--yes")


def recover(broker: Broker, *words: str) -> str:
    """`fluxmq cluster recover` with the configuration of a node that does not run; what it says."""
    return fluxmq("cluster", "recover", *words, *broker.sets())


def test_recovery_from_the_loss_of_a_majority(tmp_path: Path) -> None:
    """Two of three directories are gone: what the third has is the cluster, and the others join anew."""
    with Cluster(tmp_path, 3) as cluster:
        client = cluster.client(0)
        client.connect("keeps", clean_start=False, properties={"session_expiry_interval": 1000})
        client.subscribe("kept/#", qos=1)
        client.drop()
        publisher = cluster.client(1)
        publisher.connect("p")
        publisher.publish("retained/x", b"from before", 1, retain=True)
        publisher.publish("kept/x", b"for a session", 1)
        cluster.wait(lambda: cluster.view(1)["retained_pending"] == 0)
        assert "is in use" in recover(cluster[0], "--yes")
        cluster[2].terminate()
        assert "there is nothing to recover" in recover(cluster[2], "--yes")
        for number in (1, 2):
            cluster[number].stop()
            shutil.rmtree(tmp_path / f"n{number}" / "data")
        cluster[0].stop()
        assert "is not the storage directory of a node" in recover(cluster[1], "--yes")
        assert "revision" in recover(cluster[0], "--look")
        assert "etcd has one member now" in recover(cluster[0], "--yes")
        cluster[0].start()
        assert cluster.votes(0)["n0"] == VOTER
        for number in (1, 2):
            cluster.wait(lambda number=number: f"n{number}" not in cluster.nodes(0))  # type: ignore[misc]
            cluster[number].settings["cluster.etcd.bootstrap"] = False
            cluster[number].start()
        cluster.wait(lambda: cluster.votes(0) == dict.fromkeys(cluster.names, VOTER))
        returned, reader = cluster.client(2), cluster.client(1)
        assert returned.connect("keeps", clean_start=False,
                                properties={"session_expiry_interval": 1000}).session_present
        returned.receive("kept/x", b"for a session")
        reader.connect("r")
        reader.subscribe("retained/#", qos=1)
        reader.receive("retained/x", b"from before")


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
