"""etcd without quorum, as clients of three processes see it: they are served on; where nobody can know whether there is
a quorum, they are not."""
from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import pytest
from kit.client import Client
from kit.cluster import Cluster, cluster_command
from oracle.mqtt import Will

TTL_S = 6  # leases of 3 s are the simulator's: a busy machine renews them too late (quorum_history.py)
NODES = range(3)


def view(cluster: Cluster, number: int) -> dict[str, Any]:
    """While a node is built anew it does not even say that."""
    with contextlib.suppress(OSError):
        return cluster.view(number)
    return {"state": "fenced", "nodes": (), "leader": ""}


def ready(cluster: Cluster) -> None:
    """Each node knows all, and who leads."""
    def well(seen: dict[str, Any]) -> bool:
        return seen["state"] == "serving" and bool(seen["leader"]) and all(node["epoch"] for node in seen["nodes"])

    cluster.wait(lambda: all(well(view(cluster, number)) for number in NODES))


def epochs(cluster: Cluster) -> list[int]:
    return [cluster.nodes(number)[f"n{number}"]["epoch"] for number in NODES]


def clients(cluster: Cluster) -> list[Client]:
    """One at each node, which hears everybody."""
    found = [cluster.client(number) for number in NODES]
    for number, client in enumerate(found):
        client.connect(f"c{number}", clean_start=False, properties={"session_expiry_interval": 1000})
        client.subscribe("all/#", qos=1)
    return found


def all_hear_all(found: list[Client], text: str) -> None:
    for number, client in enumerate(found):
        client.publish("all/x", f"{text} {number}".encode(), 1)
        for other in found:
            other.receive("all/x", f"{text} {number}".encode())


def serve_on(cluster: Cluster) -> None:
    """All nodes do, past the ends of their leases. On a busy machine answers may be late, and a node in doubt."""
    def does(seen: dict[str, Any]) -> bool:
        assert seen["state"] == "without_quorum" and seen["quorum_lost"] == 1, seen["reason"]
        return seen["without_quorum_ms"] > 1500 * TTL_S and "serves on" in seen["reason"]

    def begun(seen: dict[str, Any]) -> bool:
        return seen["state"] == "without_quorum" and seen["quorum_lost"] == 1

    cluster.wait(lambda: all(begun(cluster.view(number)) for number in NODES))
    cluster.wait(lambda: all(does(cluster.view(number)) for number in NODES))


def test_without_quorum_everybody_serves_on(tmp_path: Path) -> None:
    with Cluster(tmp_path, 3, ttl_s=TTL_S, can_hold=True) as cluster:
        ready(cluster)
        found, before = clients(cluster), epochs(cluster)
        all_hear_all(found, "before")
        cluster.hold_member(1)
        cluster.hold_member(2)
        serve_on(cluster)
        all_hear_all(found, "without quorum")
        # The two do not answer the third one for longer than an answer counts, nor do they get one.
        cluster.pause(1)
        cluster.pause(2)
        time.sleep(1.5)
        cluster.resume(1)
        cluster.resume(2)
        serve_on(cluster)
        all_hear_all(found, "after a pause")
        # What needs etcd is refused, and does not hang: a session that nobody has, and one that must change hands.
        for name in ("new", "c1"):
            assert cluster.client(0).connect(name, expect=0x88).reason == 0x88
        # A client that returns to its node is served, also with a will, and so are new subscriptions.
        found[1].drop()
        found[1] = cluster.client(1)
        assert found[1].connect("c1", clean_start=False, properties={"session_expiry_interval": 1000},
                                will=Will(topic="gone", payload=b"c1")).session_present
        found[1].subscribe("more", qos=1)
        all_hear_all(found, "once more")
        cluster.release_member(1)
        cluster.release_member(2)
        cluster.wait(lambda: all(cluster.view(number)["state"] == "serving" for number in NODES))
        assert epochs(cluster) == before
        all_hear_all(found, "afterwards")
        cluster.client(0).connect("new")


@pytest.mark.soak       # simulator/cluster/test_quorum.py plays it
def test_a_node_that_is_cut_off_with_a_minority_stops(tmp_path: Path) -> None:
    """The two others stand still with their members: it cannot be known whether they have a leader."""
    with Cluster(tmp_path, 3, ttl_s=TTL_S) as cluster:
        ready(cluster)
        found, before = clients(cluster), epochs(cluster)
        for number in (1, 2):
            cluster.pause(number)
            cluster.pause_member(number)
        with contextlib.suppress(ConnectionError):
            assert found[0].rest() == b""
        cluster.wait(lambda: view(cluster, 0)["state"] in ("joining", "fenced"))
        # Its new life says what it waits for.
        cluster.wait(lambda: "joining: waits for etcd" in cluster_command(cluster[0], "status"))
        cluster.resume_members()
        for number in (1, 2):
            cluster.resume(number)
        ready(cluster)
        assert epochs(cluster)[0] > before[0]
        all_hear_all(clients(cluster), "afterwards")


@pytest.mark.soak       # simulator/cluster/test_quorum.py plays it
def test_the_death_of_etcds_leader_ends_no_lease(tmp_path: Path) -> None:
    """Of leases of 3 s the simulator shows it (quorum_history.py): here the machine may be too slow for that."""
    with Cluster(tmp_path, 3, ttl_s=8, can_hold=True) as cluster:
        ready(cluster)
        found, before = clients(cluster), epochs(cluster)
        leader = cluster.etcd_leader()
        cluster.hold_member(leader)
        cluster.wait(lambda: cluster.etcd_leader() not in (leader, -1))
        cluster.release_member(leader)
        ready(cluster)
        all_hear_all(found, "under a new leader")
        assert epochs(cluster) == before
