"""A node that waits for the others of its cluster: its operator can ask it what for, and can use its queues."""
from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kit.cluster import Cluster, cluster_command, fluxmq

WAITS = "waits for etcd, of whose members a majority must run and reach each other: etcd at "


def test_a_node_that_waits_for_etcd_says_so(tmp_path: Path) -> None:
    """Of three nodes one is started."""
    cluster = Cluster(tmp_path, 3)
    first, *others = cluster.brokers
    first.start_seconds = 100.0     # it waits while six commands run
    socket = ("--socket", str(first.directory / "data" / "admin.sock"))
    try:
        with ThreadPoolExecutor(3) as pool:
            starts = [pool.submit(first.start)]
            cluster.wait(lambda: f"joining: {WAITS}" in cluster_command(first, "status"))
            assert "0 of 1 have a lease" in cluster_command(first, "status")
            first.reload()
            cluster.wait(lambda: "reloaded certificates, users and ACL" in first.stderr())
            # All nodes must know of a queue.
            assert "this node is joining its cluster" in fluxmq("queue", "create", "jobs", *socket)
            fluxmq("namespace", "create", "shop", *socket)
            refused = fluxmq("namespace", "delete", "shop", "--yes", *socket)
            assert "this node is joining its cluster: namespace shop is not deleted (repeat it when" in refused
            assert "SIGTERM stops it" in cluster_command(first, "leave", "--yes")
            starts += [pool.submit(other.start) for other in others]
            for start in starts:
                start.result()
        cluster.wait(cluster.everybody_serves)
        assert "jobs" in fluxmq("queue", "create", "jobs", *socket)
        assert "shop" in fluxmq("namespace", "delete", "shop", "--yes", *socket)
        assert "shop" not in fluxmq("namespace", "list", *socket)
        lines = [line for line in first.stderr().splitlines() if f"this node {WAITS}" in line]
        assert "It goes on trying; start the other nodes, or" in lines[0]
        # Each of three steps says the same once in a minute, and a start of this test ends within two.
        often = Counter(line.partition(WAITS)[2] for line in lines)
        assert max(often.values()) <= 3 * 2
    finally:
        cluster.__exit__(None, None, None)
