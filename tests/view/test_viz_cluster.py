"""`fluxmq viz` on three nodes: lanes have their owners, a move is seen, a node that dies is said."""
from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kit.cluster import Cluster, fluxmq
from kit.terminal import Screen


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), 3, ttl_s=6) as cluster:
        cluster.wait(cluster.everybody_serves)
        yield cluster


def socket(cluster: Cluster, number: int) -> str:
    return str(cluster[number].directory / "data" / "admin.sock")


def test_lanes_of_a_cluster(cluster: Cluster, tmp_path: Path) -> None:
    assert "orders" in fluxmq("queue", "create", "orders", "--partitions", "3", "--socket", socket(cluster, 0))
    words = [word for number in range(3) for word in ("--attach", socket(cluster, number))]
    screen = Screen(tmp_path, [sys.executable, "-P", "-m", "fluxmq", "viz", *words], 100, 24)
    try:
        text = screen.until(r"FluxMQ  cluster \S+  3 nodes", r"n0 \d+ sessions +● n1 \d+ sessions +● n2 \d+ sessions",
                            *(rf"orders/{at} +n[012] +├" for at in range(3)))
        owners = {line.split()[0]: line.split()[1] for line in text.splitlines() if "orders/" in line}
        assert sorted(owners.values()) == ["n0", "n1", "n2"]
        # What is published at one node and delivered at another is on one lane.
        publisher, consumer = cluster.client(0), cluster.client(1)
        consumer.connect("consumer")
        consumer.subscribe("$queue/orders", qos=1)
        publisher.connect("publisher")
        for _ in range(10):
            publisher.publish("$queue/orders", b"x", 1)
            consumer.receive("$queue/orders", b"x")
        screen.until(r"confirm p50 \d", r"ack p50 \d")
        target = owners["orders/1"]
        before = owners["orders/0"]
        with ThreadPoolExecutor(1) as pool:     # the sign is shown for a moment
            said = pool.submit(fluxmq, "queue", "move", "orders", target, "--partition", "0", "--socket",
                               socket(cluster, 2))
            screen.until(rf"orders/0 +{before}▸{target} +├", rf"orders/0 moved from {before} to {target}")
            assert said.result() == f"orders partition 0 is at node {target}\n"
        screen.until(rf"orders/0 +{target} +├")
        screen.press("Tab")
        screen.until(r"\[● n0 \d+ sessions\]", "node n0")
        cluster[2].kill()
        screen.until("✖ n2 down", "n2 is not watched: ")
        cluster[2].start()
        screen.until(r"● n2 \d+ sessions")
        screen.press("q")
        assert screen.ended() == 0
    finally:
        screen.close()
